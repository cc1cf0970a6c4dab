import { PlatformError, type BehaviourEvent, type BehaviourReport } from '@dsec/contract';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Fixture, newSandboxId } from '../apiserver.fixture.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
});
afterEach(() => fixture[Symbol.asyncDispose]());

const event = (sandboxId: string): BehaviourEvent => ({
  cursor: 'abc-1',
  atMs: 1,
  sandboxId,
  keyId: 'k',
  kind: 'call',
  what: 'bpf',
  outcome: 'EPERM',
  count: 2,
  call: 'bpf',
  process: { pid: 7, uid: 0, comm: 'python3', argv: ['python3'] },
  execId: 'e1',
  command: ['python3'],
});
const lines = (text: string): readonly unknown[] =>
  text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as unknown);

describe('events', () => {
  test('are those of the project of the key, as the query wants them', async () => {
    const { edge, sandboxId } = fixture;
    edge.on('behaviour.events', async (_params, stream) => {
      await stream.message({ at: 'abc-0' });
      await stream.message({ lost: 3 });
      await stream.message({ event: event(sandboxId) });
      return {};
    });
    const { key } = await fixture.services.keys.create({ project: 'mine', name: 'k', readOnly: true });
    const answer = await fixture.ask('GET', `/events?sandbox=${sandboxId}&kind=tripwire,call&after=abc-0&follow=true`, {
      key,
    });
    expect([answer.status, answer.headers['content-type']]).toEqual([200, 'application/x-ndjson']);
    expect(lines(answer.text)).toEqual([{ at: 'abc-0' }, { lost: 3 }, { event: event(sandboxId) }]);
    const asked = { project: 'mine', sandboxId, kinds: ['call', 'tripwire'], after: 'abc-0', follow: true };
    expect(edge.last('behaviour.events')).toEqual(asked);
    await fixture.ask('GET', '/events?after=now');
    expect(edge.last('behaviour.events')).toEqual({ project: 'default', after: 'now' });
  });

  test.each([
    'kind=',
    'kind=everything',
    'kind=call,call,call,call,call,call,call',
    'after=yesterday',
    'sandbox=nothing',
    'follow=yes',
    'colour=red',
  ])('are refused to a query that is wrong: %s', async (query) => {
    const { status, error } = await fixture.ask('GET', `/events?${query}`);
    expect([status, error.code]).toEqual([400, query.startsWith('sandbox') ? 'invalid_id' : 'invalid_argument']);
    expect(fixture.edge.last('behaviour.events')).toBeUndefined();
  });

  test('that do not have their form end the answer, and are not passed on', async () => {
    fixture.edge.on('behaviour.events', async (_params, stream) => {
      await stream.message({ at: 'abc-0' });
      await stream.message({ event: { ...event(fixture.sandboxId), surprise: 1 } });
      return {};
    });
    const { text } = await fixture.ask('GET', '/events');
    expect(lines(text)).toEqual([
      { at: 'abc-0' },
      { error: expect.objectContaining({ code: 'protocol_error' }) as object },
    ]);
  });

  test('are for those who have a key', async () => {
    expect((await fixture.ask('GET', '/events', { key: null })).status).toBe(401);
    expect((await fixture.ask('GET', `/sandboxes/${newSandboxId()}/behaviour`, { key: null })).status).toBe(401);
  });
});

describe('the report of a sandbox', () => {
  test('is asked for in the name of the project', async () => {
    const { edge, sandboxId } = fixture;
    const counts = { call: 1, open: 0, tripwire: 0, connect: 0, name: 0, service: 0 };
    const report: BehaviourReport = {
      sandboxId,
      tripwires: ['/k'],
      absentTripwires: [],
      counts,
      entries: [],
      withoutEntry: 1,
    };
    edge.on('behaviour.report', () => Promise.resolve(report));
    const answer = await fixture.ask('GET', `/sandboxes/${sandboxId}/behaviour`);
    expect([answer.status, answer.json()]).toEqual([200, report]);
    expect(edge.last('behaviour.report')).toEqual({ sandboxId, project: 'default' });
    edge.on('behaviour.report', () => Promise.reject(new PlatformError('sandbox_not_found', 'none')));
    expect((await fixture.ask('GET', `/sandboxes/${sandboxId}/behaviour`)).status).toBe(404);
  });
});
