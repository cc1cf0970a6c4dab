/** What sandboxes did, from launcher and network to those who listen, over real sockets; what tells of it is a double. */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { BehaviourEvent, BehaviourLine, BehaviourReport } from '@dsec/contract';
import { SystemClock } from '@dsec/kit';
import type { WireClient, WireItem, WireStream } from '@dsec/native-link';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { MAX_KEPT_EVENTS, MAX_WAITING_ACTS } from '../src/behaviour/bounds.ts';
import { create, EdgeFixture, failureOf, stop, TemporaryDirectory, waitFor } from './edge-fixture.ts';
import { LauncherDouble } from './launcher-double.ts';
import { NetworkDouble } from './network-double.ts';

const clock = new SystemClock();
const TRIPWIRE = '/root/answers';

class Setup implements AsyncDisposable {
  readonly launcher: LauncherDouble;
  readonly network = new NetworkDouble({ isLive: (sandboxId) => this.launcher.sandboxes.has(sandboxId) });
  readonly #directory: TemporaryDirectory;
  #fixture: EdgeFixture | undefined;

  private constructor(directory: TemporaryDirectory) {
    this.#directory = directory;
    this.launcher = new LauncherDouble(directory.path);
  }

  static async make(): Promise<Setup> {
    const setup = new Setup(await TemporaryDirectory.make());
    await setup.launcher.start();
    await setup.startEdge();
    return setup;
  }

  async startEdge(): Promise<void> {
    const { socket: launcherSocket, sandboxSockets } = this.launcher;
    const directory = this.#directory.path;
    this.#fixture = await EdgeFixture.start({
      launcherSocket,
      sandboxSockets,
      directory,
      sandboxNetwork: this.network,
    });
  }

  async stopEdge(): Promise<void> {
    await this.#fixture?.[Symbol.asyncDispose]();
    this.#fixture = undefined;
  }

  get client(): WireClient {
    return this.#fixture?.client ?? expect.unreachable('the edge is stopped');
  }

  /** Names of the files of reports. */
  files(): Promise<readonly string[]> {
    return readdir(join(this.#directory.path, 'behaviour'));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stopEdge();
    await this.launcher[Symbol.asyncDispose]();
    await this.#directory[Symbol.asyncDispose]();
  }
}

let on: Setup;
beforeEach(async () => {
  on = await Setup.make();
});
afterEach(() => on[Symbol.asyncDispose]());

const process = (pid: number, ancestors: readonly number[] = [1], session = pid) => ({
  pid,
  ancestors,
  session,
  uid: 0,
  comm: 'python3',
  argv: ['python3', 'attack.py'],
});
const denied = (id: string, more: object = {}) => ({
  event: { id, atMs: clock.now(), kind: 'call', call: 'bpf', outcome: 'EPERM', count: 1, ...more },
});
const report = (sandboxId: string, project = 'p') =>
  on.client.call('behaviour.report', { sandboxId, project }) as Promise<BehaviourReport>;
const listen = (params: object): WireStream => on.client.open('behaviour.events', params);

function messageOf(item: WireItem | undefined): unknown {
  if (item?.type !== 'message') throw new Error('it is no message');
  return item.value;
}
const lineOf = (item: WireItem | undefined): BehaviourLine => messageOf(item) as BehaviourLine;

async function kept(params: object = {}): Promise<readonly BehaviourEvent[]> {
  const stream = listen(params);
  const events: BehaviourEvent[] = [];
  for await (const item of stream) {
    const line = lineOf(item);
    if ('event' in line) events.push(line.event);
  }
  await stream.result;
  return events;
}

/** Starts a command that goes on; its pid. */
async function start(sandboxId: string, execId: string, command: object): Promise<number> {
  const stream = on.client.open('exec.start', { sandboxId, execId, stdin: 'none', ...command });
  const first = await stream.next();
  const { started } = messageOf(first.value) as { readonly started: { readonly pid: number } };
  return started.pid;
}

async function eventually(count: number, params: object = {}): Promise<readonly BehaviourEvent[]> {
  let events: readonly BehaviourEvent[] = [];
  await waitFor(async () => (events = await kept(params)).length >= count, `${count} events`);
  return events;
}

describe('what a program did', () => {
  it('is told with the command that caused it, of launcher and network alike', async () => {
    const { sandboxId } = await create(on.client, { keyId: 'maker' });
    const pid = await start(sandboxId, 'e1', { argv: ['sh', '-c', 'python3 attack.py'] });
    const other = await start(sandboxId, 'e2', { shell: { script: 'curl evil.test' } });
    await on.launcher.tell(denied(sandboxId, { process: process(40, [pid, 1], pid) }));
    on.network.tell({
      sandboxId,
      atMs: clock.now(),
      kind: 'name',
      name: 'evil.test',
      type: 28,
      outcome: 'name',
      count: 2,
      process: process(41, [1], other),
    });
    const events = await eventually(2);
    expect(events.find(({ kind }) => kind === 'call')).toMatchObject({
      sandboxId,
      keyId: 'maker',
      what: 'bpf',
      outcome: 'EPERM',
      count: 1,
      process: { pid: 40, uid: 0, comm: 'python3', argv: ['python3', 'attack.py'] },
      execId: 'e1',
      command: ['sh', '-c', 'python3 attack.py'],
    });
    expect(events.find(({ kind }) => kind === 'name')).toMatchObject({
      what: 'evil.test AAAA',
      outcome: 'name',
      count: 2,
      execId: 'e2',
      command: ['curl evil.test'],
    });
    expect(await report(sandboxId)).toMatchObject({ counts: { call: 1, name: 2, open: 0 }, withoutEntry: 0 });
  });

  it('is told with its command when that has just ended, and with its session', async () => {
    const { sandboxId } = await create(on.client);
    const aether = on.launcher.aether(sandboxId);
    const pid = await start(sandboxId, 'e1', { argv: ['true'] });
    aether.finish('e1');
    aether.sessions.push({ sessionId: 'shell', pid: 90, busy: false });
    await on.launcher.tell(
      denied(sandboxId, { process: process(pid) }),
      denied(sandboxId, { call: 'keyctl', process: process(95, [90, 1], 90) }),
      denied(sandboxId, { call: 'acct' }),
    );
    expect(await eventually(3)).toMatchObject([
      { what: 'bpf', execId: 'e1', command: ['true'] },
      { what: 'keyctl', sessionId: 'shell' },
      { what: 'acct' },
    ]);
    expect((await kept())[2]).not.toHaveProperty('process');
  });

  it('is told of its own project alone, and to nobody of a sandbox that is not there', async () => {
    const { sandboxId } = await create(on.client, { project: 'p' });
    await on.launcher.tell(denied('nobody'), denied(sandboxId));
    await eventually(1);
    expect(await kept({ project: 'elsewhere' })).toEqual([]);
    expect(await kept({ project: 'p', kinds: ['tripwire'] })).toEqual([]);
    expect(await kept({ project: 'p', sandboxId })).toHaveLength(1);
    await expect(report(sandboxId, 'elsewhere')).rejects.toMatchObject({ code: 'sandbox_not_found' });
    await expect(kept({ kinds: [] })).rejects.toMatchObject({ code: 'invalid_argument' });
    await expect(kept({ after: 'yesterday' })).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  it('asks a sandbox once for its commands, however much it does', async () => {
    const { sandboxId } = await create(on.client);
    const pid = await start(sandboxId, 'e1', { argv: ['sh'] });
    const acts = Array.from({ length: 200 }, (_, index) =>
      denied(sandboxId, { argument: `${index}`, process: process(100 + index, [pid, 1], pid) }),
    );
    await on.launcher.tell(...acts);
    const events = await eventually(200);
    expect(events.every(({ execId }) => execId === 'e1')).toBe(true);
    const asked = on.launcher.aether(sandboxId).opened.filter(({ method }) => method === 'exec.list');
    expect(asked.length).toBeLessThan(5);
  });
});

describe('a follower', () => {
  it('hears what happens, and goes on after what it has heard', async () => {
    const { sandboxId } = await create(on.client);
    const stream = listen({ project: 'p', follow: true });
    const next = async (): Promise<BehaviourLine> => lineOf((await stream.next()).value);
    expect(await next()).toHaveProperty('at');
    await on.launcher.tell(denied(sandboxId));
    const first = await next();
    expect(first).toMatchObject({ event: { what: 'bpf' } });
    await on.launcher.tell({ ...denied(sandboxId, { call: 'acct' }), lost: 7 });
    expect([await next(), await next()]).toMatchObject([{ lost: 7 }, { event: { what: 'acct' } }]);
    stream.reset();
    expect(await kept({ after: 'event' in first ? first.event.cursor : '' })).toMatchObject([{ what: 'acct' }]);
  });

  it('that does not read loses the oldest and is told how many; a flood costs the edge no more than its bounds', async () => {
    const { sandboxId } = await create(on.client);
    const slow = listen({ project: 'p', follow: true });
    await slow.next();
    const rounds = 2 * Math.ceil(MAX_KEPT_EVENTS / MAX_WAITING_ACTS) + 2;
    for (let round = 1; round <= rounds; round++) {
      const acts = Array.from({ length: MAX_WAITING_ACTS }, () => denied(sandboxId, { argument: 'x'.repeat(500) }));
      await on.launcher.tell(...acts);
      await waitFor(
        async () => (await report(sandboxId)).counts.call === round * MAX_WAITING_ACTS,
        `${round} rounds`,
        20_000,
      );
    }
    const told = rounds * MAX_WAITING_ACTS;
    expect(await kept()).toHaveLength(MAX_KEPT_EVENTS);
    expect(await report(sandboxId)).toMatchObject({ counts: { call: told }, entries: [{ count: told }] });
    let heard = 0;
    let lost = 0;
    for await (const item of slow) {
      const line = lineOf(item);
      if ('event' in line) heard++;
      if ('lost' in line) lost += line.lost ?? 0;
      if (heard + lost >= told) break;
    }
    slow.reset();
    expect(heard + lost).toBe(told);
    expect(lost).toBeGreaterThan(0);
  });
});

describe('a report', () => {
  it('outlives the edge and its sandbox, and goes on', async () => {
    on.launcher.script.absentTripwires = ['/root/gone'];
    const tripwires = [TRIPWIRE, '/root/gone'];
    const { sandboxId } = await create(on.client, { request: { policy: { tripwires } } });
    expect(on.launcher.created[0]).toMatchObject({ tripwires });
    const touch = { kind: 'tripwire', call: undefined, path: TRIPWIRE, outcome: 'seen' };
    await on.launcher.tell(denied(sandboxId, touch));
    await eventually(1);
    const before = await report(sandboxId);
    expect(before).toMatchObject({
      tripwires,
      absentTripwires: ['/root/gone'],
      entries: [{ kind: 'tripwire', what: TRIPWIRE, outcome: 'seen', count: 1 }],
    });
    const [last] = await kept();
    await on.stopEdge();
    await on.startEdge();
    expect(await report(sandboxId)).toEqual(before);
    // The stream begins anew.
    expect(await kept({ after: last?.cursor })).toEqual([]);
    await on.launcher.tell(denied(sandboxId, touch));
    await eventually(1);
    expect((await report(sandboxId)).entries).toMatchObject([{ count: 2 }]);
    await stop(on.client, sandboxId);
    await waitFor(async () => (await report(sandboxId)).counts.tripwire === 2, 'the report of the end');
    await waitFor(async () => (await on.files()).join(' ') === `${sandboxId}.json`, 'its file alone');
    await on.stopEdge();
    await on.startEdge();
    expect(await report(sandboxId)).toMatchObject({ tripwires, counts: { tripwire: 2 } });
  });

  it('of a sandbox that did nothing is empty, and has no file', async () => {
    const { sandboxId } = await create(on.client, { request: { policy: { tripwires: [TRIPWIRE] } } });
    expect(await report(sandboxId)).toMatchObject({ tripwires: [TRIPWIRE], absentTripwires: [], entries: [] });
    await stop(on.client, sandboxId);
    expect(await report(sandboxId)).toMatchObject({ tripwires: [TRIPWIRE], entries: [] });
    expect(await on.files()).toEqual([]);
    expect(await failureOf(report('0000'))).toMatchObject({ code: 'invalid_id' });
  });

  it('takes what is told after the end of its sandbox', async () => {
    const { sandboxId } = await create(on.client);
    const pid = await start(sandboxId, 'e1', { argv: ['true'] });
    await on.launcher.tell(denied(sandboxId, { process: process(pid) }));
    await eventually(1);
    await stop(on.client, sandboxId);
    await on.launcher.tell(denied(sandboxId, { call: 'acct', process: process(pid), atMs: clock.now() + 5 }));
    expect(await eventually(2)).toMatchObject([{ execId: 'e1' }, { what: 'acct', execId: 'e1' }]);
    expect(await report(sandboxId)).toMatchObject({ counts: { call: 2 } });
  });
});
