import type { BehaviourEvent } from '@dsec/contract';
import { expect, test } from 'vitest';
import { DSecClient, type EventsOptions } from '../src/index.ts';
import { ScriptedServer, type Exchange } from './scripted-server.ts';

const event = (index: number): BehaviourEvent => ({
  cursor: `abc-${index}`,
  atMs: index,
  sandboxId: 's1',
  keyId: 'k',
  kind: 'call',
  what: `call${index}`,
  outcome: 'EPERM',
  count: 1,
});
const lines = (exchange: Exchange, ...values: readonly object[]): void =>
  exchange.send(...values.map((value) => Buffer.from(`${JSON.stringify(value)}\n`)));
const clientOf = (server: ScriptedServer): DSecClient =>
  new DSecClient({ endpoint: server.endpoint, apiKey: 'k', retry: { firstDelayMs: 1 } });

/** What a loop over the events hears until it has heard `count`, or to the end. */
async function heard(client: DSecClient, options: EventsOptions, count = Infinity): Promise<readonly string[]> {
  const told: string[] = [];
  for await (const { what } of client.events(options)) {
    told.push(what);
    if (told.length >= count) break;
  }
  return told;
}

test('events go on after the last one when the connection breaks, and none is told twice', async () => {
  await using server = await ScriptedServer.start((exchange, index) => {
    if (index === 0) {
      lines(exchange, { at: 'abc-0' }, { event: event(1) }, { keepalive: true }, { event: event(2) });
      exchange.cut();
    } else if (index === 1) exchange.fail(503, 'unavailable');
    else lines(exchange, { at: 'abc-2' }, { lost: 4 }, { lost: null }, { event: event(3) });
  });
  await using client = clientOf(server);
  const lost: (number | null)[] = [];
  const options = {
    sandboxId: 's1',
    kinds: ['call', 'open'],
    after: 'now',
    onLost: (count: number | null) => lost.push(count),
  } as const;
  expect(await heard(client, options, 3)).toEqual(['call1', 'call2', 'call3']);
  expect(lost).toEqual([4, null]);
  expect(server.exchanges.map(({ query }) => Object.fromEntries(query))).toEqual([
    { sandbox: 's1', kind: 'call,open', after: 'now', follow: 'true' },
    { sandbox: 's1', kind: 'call,open', after: 'abc-2', follow: 'true' },
    { sandbox: 's1', kind: 'call,open', after: 'abc-2', follow: 'true' },
  ]);
});

test('events that are only to be shown end with what is kept', async () => {
  await using server = await ScriptedServer.start((exchange) => {
    lines(exchange, { at: 'abc-0' }, { event: event(1) });
    exchange.response.end();
  });
  await using client = clientOf(server);
  expect(await heard(client, { follow: false })).toEqual(['call1']);
  expect(Object.fromEntries(server.exchanges[0]?.query ?? [])).toEqual({ follow: 'false' });
});

test('events end with what is wrong: an error of the server, a form that none has, a caller who has heard enough', async () => {
  const answers: readonly (readonly object[])[] = [
    [{ at: 'abc-0' }, { error: { code: 'permission_denied', message: 'no', details: {} } }],
    [{ at: 'abc-0' }, { event: { what: 'half' } }],
  ];
  await using server = await ScriptedServer.start((exchange, index) =>
    lines(exchange, ...(answers[index] ?? [{ at: 'abc-0' }])),
  );
  await using client = clientOf(server);
  await expect(heard(client, {})).rejects.toMatchObject({ code: 'permission_denied', message: 'no' });
  await expect(heard(client, {})).rejects.toMatchObject({ code: 'protocol_error' });
  const controller = new AbortController();
  const waiting = heard(client, { signal: controller.signal });
  controller.abort();
  await expect(waiting).rejects.toMatchObject({ code: 'cancelled' });
});
