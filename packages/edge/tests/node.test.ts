/** The edge over the real launcher and the real aether. */
import { readFile } from 'node:fs/promises';
import type { ExecStatus, SandboxInfo } from '@dsec/contract';
import { AetherClient, type WireClient } from '@dsec/native-link';
import { lacking } from '@dsec/testkit';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  create,
  createMany,
  failureOf,
  get,
  list,
  stop,
  stopMany,
  waitFor,
  type CreateOptions,
} from './edge-fixture.ts';
import { NodeFixture, type EdgeProcess } from './node-fixture.ts';

const missing = lacking('root', 'erofs', 'overlay', 'cgroup');
if (missing !== undefined) process.stderr.write(`skipped: the edge over a real node: ${missing}\n`);

let node: NodeFixture;
let edge: EdgeProcess;

const made = (options: CreateOptions = {}): Promise<SandboxInfo> =>
  create(edge.client, { layers: [node.digest], ...options });
const inside = (sandboxId: string, client: WireClient = edge.client): AetherClient =>
  new AetherClient(client, { sandboxId });

interface Output {
  readonly status: ExecStatus;
  readonly stdout: string;
}

let execs = 0;
const nextExecId = (): string => `x${execs++}`;

async function sh(
  sandboxId: string,
  script: string,
  options: { readonly execId?: string; readonly client?: WireClient } = {},
): Promise<Output> {
  const exec = inside(sandboxId, options.client).execStart({
    execId: options.execId ?? nextExecId(),
    argv: ['/bin/sh', '-c', script],
    env: {},
    stdin: 'none',
  });
  let stdout = '';
  for await (const item of exec) if (item.type === 'output' && item.channel === 1) stdout += item.bytes.toString();
  return { status: await exec.result, stdout };
}

/** Starts a command and loses interest in it once it runs. */
async function detach(sandboxId: string, script: string): Promise<string> {
  const execId = nextExecId();
  const exec = inside(sandboxId).execStart({ execId, argv: ['/bin/sh', '-c', script], env: {}, stdin: 'none' });
  for await (const item of exec) if (item.type === 'started') break;
  exec.reset();
  return execId;
}

const stopAll = async (): Promise<void> => {
  await stopMany(edge.client, { metadata: {} });
};

describe.skipIf(missing !== undefined)('an edge over a real node', { timeout: 120_000 }, () => {
  beforeAll(async () => {
    node = await NodeFixture.start();
  });
  afterAll(async () => {
    await node[Symbol.asyncDispose]();
  });
  beforeEach(async () => {
    edge = await node.startEdge();
  });
  afterEach(async () => {
    await stopAll();
    await edge[Symbol.asyncDispose]();
  });

  it('runs as its own user and can become no other', async () => {
    const status = await readFile(`/proc/${edge.process.pid}/status`, 'utf8');
    expect(/^Uid:\t64801\t64801\t64801\t64801$/m.test(status)).toBe(true);
    expect(/^CapEff:\t0+$/m.test(status)).toBe(true);
  });

  it('L16: answers a create when commands run and files can be written', async () => {
    const { items, result } = await createMany(edge.client, 60, { layers: [node.digest] });
    expect(result).toEqual({ created: 60, failed: 0 });
    const outputs = await Promise.all(
      items.map(async (item) => {
        if (!('sandbox' in item)) throw new Error(item.error.message);
        return (await sh(item.sandbox.sandboxId, 'echo "$FROM_IMAGE $PWD $(id -un)" > /tmp/f; cat /tmp/f')).stdout;
      }),
    );
    expect(new Set(outputs)).toEqual(new Set(['1 /home/user user\n']));
  });

  it('stops in bulk and leaves nothing', async () => {
    const { items } = await createMany(edge.client, 40, { layers: [node.digest] });
    await Promise.all(
      items.flatMap((item) => ('sandbox' in item ? [detach(item.sandbox.sandboxId, 'sleep 1000 & sleep 1000')] : [])),
    );
    const before = await node.sandboxes();
    expect(before).toHaveLength(40);
    expect((await stopMany(edge.client, { metadata: {} })).result).toEqual({ stopped: 40, failed: 0 });
    expect(await node.sandboxes()).toEqual([]);
    const alive = await Promise.all(
      before.map(({ pid }) =>
        readFile(`/proc/${pid}/stat`).then(
          () => true,
          () => false,
        ),
      ),
    );
    expect(alive.filter(Boolean)).toEqual([]);
    const { capacity } = (await edge.client.call('edge.info', {})) as { capacity: Record<string, { used: number }> };
    expect(Object.values(capacity).map(({ used }) => used)).toEqual([0, 0, 0, 0]);
  });

  it('L13, X21: shows a sandbox whose first process was killed from outside as failed within a second', async () => {
    const { sandboxId } = await made();
    const running = failureOf(sh(sandboxId, 'sleep 1000'));
    await waitFor(async () => (await inside(sandboxId).execList()).length === 1, 'the command');
    const pid = (await node.sandboxes()).find(({ id }) => id === sandboxId)?.pid;
    process.kill(pid ?? 0, 'SIGKILL');
    await waitFor(async () => (await get(edge.client, sandboxId)).state === 'failed', 'the failure', 1000);
    expect(await running).toMatchObject({
      code: 'sandbox_failed',
      details: { cause: 'runtime', infrastructure: true },
    });
    await waitFor(async () => (await node.sandboxes()).length === 0, 'the cleanup');
  });

  it('reports a layer that is not there, and leaves nothing', async () => {
    await expect(made({ layers: [`sha256:${'1'.repeat(64)}`] })).rejects.toMatchObject({ code: 'environment_broken' });
    const failed = (await list(edge.client, { states: ['failed'], limit: 1000 })).sandboxes.at(-1);
    expect(failed).toMatchObject({ state: 'failed', cause: { kind: 'image' } });
    await waitFor(async () => (await node.sandboxes()).length === 0, 'the cleanup');
  });

  it('L06: keeps a sandbox that works without anybody looking, and ends it when it is done', async () => {
    const { sandboxId } = await made({ request: { ttlRunningStopSeconds: 1 } });
    await detach(sandboxId, 'sleep 2.5');
    await waitFor(async () => (await get(edge.client, sandboxId)).state === 'stopped', 'the end', 10_000);
    const ended = await get(edge.client, sandboxId);
    expect(ended.cause?.kind).toBe('idle');
    expect((ended.endedAtMs ?? 0) - ended.createdAtMs).toBeGreaterThan(3300);
  });

  it('L09: lets a stop win whenever it comes', async () => {
    for (let round = 0; round < 20; round++) {
      const metadata = { round: String(round) };
      const creating = failureOf(made({ request: { metadata } }));
      await waitFor(async () => (await list(edge.client, { metadata })).sandboxes.length === 1, 'the create');
      const sandboxId = (await list(edge.client, { metadata })).sandboxes[0]?.sandboxId ?? '';
      expect(await stop(edge.client, sandboxId)).toMatchObject({ state: 'stopped', cause: { kind: 'stopped' } });
      await creating;
    }
    expect(await node.sandboxes()).toEqual([]);
  });

  it('keeps every sandbox and its commands when the launcher is killed, and makes more', async () => {
    const { sandboxId } = await made();
    const execId = await detach(sandboxId, 'for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.1; done');
    await node.replaceLauncher();
    // The edge may not have seen yet that the connection is gone: then the create is lost, and says so.
    let other: SandboxInfo | undefined;
    await waitFor(async () => {
      other = await made().catch(() => undefined);
      return other !== undefined;
    }, 'another create');
    if (other === undefined) throw new Error('unreachable');
    expect((await sh(other.sandboxId, 'echo hi')).stdout).toBe('hi\n');
    const exec = inside(sandboxId).execAttach({ execId });
    let stdout = '';
    for await (const item of exec) if (item.type === 'output') stdout += item.bytes.toString();
    expect(stdout).toBe('1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n');
    expect((await get(edge.client, sandboxId)).state).toBe('running');
    process.kill((await node.sandboxes()).find(({ id }) => id === sandboxId)?.pid ?? 0, 'SIGKILL');
    await waitFor(async () => (await get(edge.client, sandboxId)).state === 'failed', 'the failure', 1000);
  });

  it('is killed with 20 sandboxes at work: the next one adopts all, and each command gives the output that was missed', async () => {
    const { items } = await createMany(edge.client, 20, {
      layers: [node.digest],
      request: { ttlRunningStopSeconds: 2 },
    });
    const made = items.flatMap((item) => ('sandbox' in item ? [item.sandbox] : []));
    const running = await Promise.all(
      made.map(async ({ sandboxId }) => ({
        sandboxId,
        execId: await detach(sandboxId, 'for i in $(seq 30); do echo $i; sleep 0.1; done'),
      })),
    );
    await edge.kill();
    edge = await node.startEdge();
    const lines = Array.from({ length: 30 }, (_, index) => `${index + 1}\n`).join('');
    for (const before of made) {
      const after = await get(edge.client, before.sandboxId);
      expect({ ...after, idleEndsAtMs: 0 }).toEqual({ ...before, idleEndsAtMs: 0 });
    }
    // Nobody looks at the commands of the second half; they keep their sandboxes all the same.
    const outputs = await Promise.all(
      running.slice(0, 10).map(async ({ sandboxId, execId }) => {
        const exec = inside(sandboxId).execAttach({ execId });
        let stdout = '';
        for await (const item of exec) if (item.type === 'output') stdout += item.bytes.toString();
        return [stdout, (await exec.result).exitCode];
      }),
    );
    expect(new Set(outputs.map(String))).toEqual(new Set([String([lines, 0])]));
    await waitFor(
      async () => (await get(edge.client, running[19]?.sandboxId ?? '')).state === 'stopped',
      'the idle timeout',
      15_000,
    );
    expect((await get(edge.client, running[19]?.sandboxId ?? '')).cause?.kind).toBe('idle');
  });

  it('is killed again and again while it creates and stops: nothing acknowledged is lost, nothing else is left', async () => {
    const live = new Set<string>();
    const ended = new Set<string>();
    for (let round = 0; round < 5; round++) {
      const killed = Promise.withResolvers<void>();
      let acknowledged = 0;
      const worker = async (): Promise<void> => {
        const { client } = edge;
        for (;;) {
          const { sandboxId } = await create(client, { layers: [node.digest] });
          live.add(sandboxId);
          if (++acknowledged === 3 + round * 4) killed.resolve(edge.kill());
          if (acknowledged % 3 !== 0) continue;
          live.delete(sandboxId);
          // Until it is answered it may be either.
          await stop(client, sandboxId);
          ended.add(sandboxId);
        }
      };
      await Promise.all([killed.promise, ...Array.from({ length: 4 }, () => failureOf(worker()))]);
      edge = await node.startEdge();
      for (const sandboxId of live) expect((await get(edge.client, sandboxId)).state).toBe('running');
      for (const sandboxId of ended)
        expect(await get(edge.client, sandboxId)).toMatchObject({ state: 'stopped', cause: { kind: 'stopped' } });
    }
    const known = (await list(edge.client, { states: ['running'], limit: 1000 })).sandboxes.map(
      ({ sandboxId }) => sandboxId,
    );
    await waitFor(async () => (await node.sandboxes()).length <= known.length, 'the end of the strays');
    expect((await node.sandboxes()).map(({ id }) => id).toSorted()).toEqual(known.toSorted());
    for (const sandboxId of live) expect((await sh(sandboxId, 'echo ok')).stdout).toBe('ok\n');
  });

  it('is killed in a bulk create with a key: the same create, asked again, makes up the number and no more', async () => {
    const bulk = failureOf(createMany(edge.client, 30, { layers: [node.digest], key: 'bulk' }));
    await waitFor(async () => (await node.sandboxes()).length > 8, 'some sandboxes');
    await edge.kill();
    await bulk;
    edge = await node.startEdge();
    const again = await createMany(edge.client, 30, { layers: [node.digest], key: 'bulk' });
    expect(again.result).toEqual({ created: 30, failed: 0 });
    const made = again.items.flatMap((item) => ('sandbox' in item ? [item.sandbox.sandboxId] : []));
    expect((await node.sandboxes()).map(({ id }) => id).toSorted()).toEqual(made.toSorted());
  });

  it('ends when its stdin closes, and its sandboxes live on', async () => {
    const { sandboxId } = await made();
    await edge[Symbol.asyncDispose]();
    expect((await edge.process.exited).exitCode).toBe(0);
    expect((await node.sandboxes()).map(({ id }) => id)).toEqual([sandboxId]);
    edge = await node.startEdge();
    expect((await sh(sandboxId, 'echo ok')).stdout).toBe('ok\n');
  });
});
