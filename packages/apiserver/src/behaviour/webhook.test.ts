import { createHmac } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { BehaviourEvent, WebhookPayload, WebhookSettings } from '@dsec/contract';
import { ManualClock, SystemClock, SystemRandom } from '@dsec/kit';
import type { WireServerStream } from '@dsec/native-link';
import { EmbeddedStore } from '@dsec/store';
import { waitFor } from '@dsec/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Fixture } from '../apiserver.fixture.ts';
import { readWebhook } from './read-webhook.ts';
import { DELIVERY_MS, GATHER_MS, MAX_BATCH, Webhook } from './webhook.ts';

const KEY = Buffer.alloc(32, 3);
const secret = `whsec_${KEY.toString('base64')}`;
const systemClock = new SystemClock();

interface Posted {
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
  readonly payload: WebhookPayload;
}

/** A receiver over real HTTP, which answers as its test says. */
class Receiver {
  readonly posted: Posted[] = [];
  answer: (attempt: number) => number = () => 204;
  readonly #server: Server;

  constructor() {
    this.#server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const body = Buffer.concat(chunks).toString();
        this.posted.push({ headers: request.headers, body, payload: JSON.parse(body) as WebhookPayload });
        response.writeHead(this.answer(this.posted.length), { location: '/elsewhere' }).end('said');
      });
    });
  }

  async start(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/hook`;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  get told(): readonly string[] {
    return this.posted.flatMap(({ payload }) => payload.data.events.map(({ what }) => what));
  }
}

const event = (index: number): BehaviourEvent => ({
  cursor: `abc-${index.toString(36)}`,
  atMs: index,
  sandboxId: 's1',
  keyId: 'k',
  kind: 'call',
  what: `call${index}`,
  outcome: 'EPERM',
  count: 1,
});

let fixture: Fixture;
let receiver: Receiver;
let store: EmbeddedStore;
let clock: ManualClock;
let settings: WebhookSettings;
let running: { readonly stop: AbortController; readonly done: Promise<void> } | undefined;
/** Of the edge, to those who follow. */
let streams: WireServerStream[];

beforeEach(async () => {
  fixture = await Fixture.start();
  receiver = new Receiver();
  settings = { url: await receiver.start(), secret };
  store = EmbeddedStore.open({ path: ':memory:' });
  clock = new ManualClock();
  streams = [];
  fixture.edge.on('behaviour.events', async (_params, stream) => {
    await stream.message({ at: 'abc-0' });
    streams.push(stream);
    await new Promise((resolve) => stream.signal.addEventListener('abort', resolve, { once: true }));
  });
});
afterEach(async () => {
  await stop();
  await receiver.stop();
  await store.close();
  await fixture[Symbol.asyncDispose]();
});

async function start(): Promise<void> {
  const controller = new AbortController();
  const { edge, random, logger } = { ...fixture.services, random: new SystemRandom() };
  const webhook = new Webhook({ settings, edge, store, clock, random, logger });
  running = { stop: controller, done: webhook.run(controller.signal) };
  running.done.catch(() => undefined);
  const before = streams.length;
  await advanceUntil('the webhook to listen', () => streams.length > before);
}
async function stop(): Promise<void> {
  running?.stop.abort();
  await running?.done.catch(() => undefined);
  running = undefined;
}
const tell = async (...indexes: readonly number[]): Promise<void> => {
  for (const index of indexes) await streams.at(-1)?.message({ event: event(index) });
};
/** Time goes on in small steps while sockets do their work. */
const advanceUntil = (what: string, condition: () => boolean, stepMs = GATHER_MS): Promise<unknown> =>
  waitFor(systemClock, what, async () => {
    await clock.advance(stepMs);
    return condition();
  });

describe('a webhook', () => {
  test('gets batches that are signed as the standard has it', async () => {
    await start();
    await tell(1, 2, 3);
    await advanceUntil('the post', () => receiver.told.length === 3);
    const { headers, body, payload } = receiver.posted[0] ?? expect.unreachable();
    expect(payload).toMatchObject({ type: 'sandbox.behaviour', data: { lost: 0 } });
    expect(receiver.told).toEqual(['call1', 'call2', 'call3']);
    const signed = `${String(headers['webhook-id'])}.${String(headers['webhook-timestamp'])}.${body}`;
    expect(headers['webhook-signature']).toBe(`v1,${createHmac('sha256', KEY).update(signed).digest('base64')}`);
    expect(Math.abs(Number(headers['webhook-timestamp']) * 1000 - clock.now())).toBeLessThan(60_000);
    expect(headers['content-type']).toBe('application/json');
    expect(fixture.edge.last('behaviour.events')).toEqual({ follow: true });
  });

  test('that fails is asked again with the same id, also where it only sends elsewhere, and gets what came meanwhile', async () => {
    receiver.answer = (attempt) => [500, 302, 429, 204][attempt - 1] ?? 204;
    await start();
    await tell(1);
    await advanceUntil('the first try', () => receiver.posted.length === 1);
    await tell(2, 3);
    await advanceUntil('all', () => receiver.told.includes('call3'), 10_000);
    const ids = receiver.posted.map(({ headers }) => headers['webhook-id']);
    expect(new Set(ids.slice(0, 4)).size).toBe(1);
    expect(ids[4]).not.toBe(ids[0]);
    expect(receiver.told).toEqual(['call1', 'call1', 'call1', 'call1', 'call2', 'call3']);
  });

  test('that stays away loses what cannot wait, is told how much, and holds nobody up', async () => {
    receiver.answer = (attempt) => (attempt === 1 ? 500 : 204);
    await start();
    await tell(1, 2);
    await advanceUntil('the first try', () => receiver.posted.length === 1);
    receiver.answer = () => 503;
    await advanceUntil(
      'it is given up',
      () => fixture.logger.records.some(({ fields }) => fields['outcome'] === 'given_up'),
      DELIVERY_MS / 8,
    );
    receiver.answer = () => 200;
    await streams.at(-1)?.message({ lost: 5 });
    await tell(3);
    await advanceUntil('the next', () => receiver.told.includes('call3'));
    expect(receiver.posted.at(-1)?.payload.data).toMatchObject({ lost: 7, events: [{ what: 'call3' }] });
    await tell(4);
    await advanceUntil('the one after', () => receiver.told.includes('call4'));
    expect(receiver.posted.at(-1)?.payload.data.lost).toBe(0);
  });

  test('takes as many at once as a batch has', async () => {
    await start();
    const many = Array.from({ length: 2 * MAX_BATCH + 50 }, (_, index) => index + 1);
    await tell(...many);
    await advanceUntil('all', () => receiver.told.length === many.length);
    expect(receiver.told).toEqual(many.map((index) => `call${index}`));
    expect(Math.max(...receiver.posted.map(({ payload }) => payload.data.events.length))).toBeLessThanOrEqual(
      MAX_BATCH,
    );
  });

  test('goes on after what it has got when the apiserver or the edge starts anew', async () => {
    settings = { ...settings, kinds: ['call', 'tripwire'] };
    await start();
    await tell(1, 2);
    await advanceUntil('the first', () => receiver.told.length === 2);
    await waitFor(systemClock, 'the cursor', async () => (await store.get('webhook/cursor'))?.value === 'abc-2');
    await stop();
    await start();
    expect(fixture.edge.last('behaviour.events')).toEqual({
      follow: true,
      after: 'abc-2',
      kinds: ['call', 'tripwire'],
    });
    await tell(3);
    await advanceUntil('the next', () => receiver.told.length === 3);
    await fixture.edge.stop();
    await fixture.edge.start();
    await advanceUntil('another stream', () => streams.length === 3);
    expect(fixture.edge.last('behaviour.events')).toMatchObject({ after: 'abc-3' });
    await streams.at(-1)?.message({ lost: null });
    await tell(4);
    await advanceUntil('the last', () => receiver.told.length === 4);
    expect(receiver.posted.at(-1)?.payload.data.lost).toBeNull();
  });

  test('that is gone for good is left alone', async () => {
    receiver.answer = () => 410;
    await start();
    await tell(1);
    await advanceUntil('the post', () => receiver.posted.length === 1);
    await running?.done;
    await waitFor(systemClock, 'the end of the stream', () => streams[0]?.signal.aborted);
  });
});

describe('the file of a webhook', () => {
  test.each<[string, string]>([
    ['nothing', ''],
    ['no object', '[]'],
    ['a short secret', JSON.stringify({ url: 'https://a.test', secret: 'whsec_c2hvcnQ=' })],
    ['no URL', JSON.stringify({ url: 'a.test', secret })],
    ['a password in its URL', JSON.stringify({ url: 'https://user:password@a.test', secret })],
    ['an unknown kind', JSON.stringify({ url: 'https://a.test', secret, kinds: ['all'] })],
    ['more', JSON.stringify({ url: 'https://a.test', secret, colour: 'red' })],
  ])('with %s is refused, and its secret is not shown', async (_what, text) => {
    const directory = await mkdtemp(join(tmpdir(), 'webhook-'));
    try {
      const file = join(directory, 'webhook.json');
      await writeFile(file, text);
      const refused = expect.objectContaining({ code: 'config_invalid' }) as Error;
      expect(() => readWebhook(file)).toThrow(refused);
      await writeFile(file, JSON.stringify({ url: 'http://10.0.0.1:8080/x?y=z', secret, kinds: ['tripwire'] }));
      expect(readWebhook(file)).toMatchObject({ kinds: ['tripwire'] });
    } finally {
      await rm(directory, { recursive: true });
    }
  });
});
