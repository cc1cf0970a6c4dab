/** How sandboxes end over a scripted launcher: stops, deaths, broken channels, time. */
import { PlatformError } from '@dsec/contract';
import { SystemClock } from '@dsec/kit';
import { describe, expect, it } from 'vitest';
import { create, createMany, failureOf, get, ids, stop, stopMany, waitFor } from './edge-fixture.ts';
import { useScriptedNode } from './scripted-node.ts';

const on = useScriptedNode();

describe('a stop', () => {
  it('L14: is tried again until nothing is left, and only then answered', async () => {
    const { sandboxId } = await create(on.client);
    let failures = 3;
    on.launcher.script.destroy = () =>
      failures-- > 0
        ? Promise.reject(new PlatformError('cleanup_incomplete', 'not yet', { details: { left: ['mount'] } }))
        : Promise.resolve();
    const first = stop(on.client, sandboxId);
    await waitFor(() => failures < 3, 'the first attempt');
    expect(await get(on.client, sandboxId)).toMatchObject({ state: 'stopping', cause: { kind: 'stopped' } });
    expect(await first).toMatchObject({ state: 'stopped', cause: { kind: 'stopped' } });
    expect(await stop(on.client, sandboxId)).toMatchObject({ state: 'stopped' });
    expect(on.launcher.destroyed).toEqual([sandboxId]);
  });

  it('is done in bulk, by ids or by metadata, with one line for each', async () => {
    const { items } = await createMany(on.client, 6, { request: { metadata: { job: 'x' } } });
    const made = items.flatMap((item) => ('sandbox' in item ? [item.sandbox.sandboxId] : []));
    const unknown = ids.create(0, Buffer.alloc(8, 1));
    const byIds = await stopMany(on.client, { sandboxIds: [...made.slice(0, 2), unknown, 'sx'] });
    expect(byIds.result).toEqual({ stopped: 2, failed: 2 });
    expect(byIds.items.find(({ index }) => index === 2)).toMatchObject({ error: { code: 'sandbox_not_found' } });
    expect(byIds.items.find(({ index }) => index === 3)).toMatchObject({ error: { code: 'invalid_id' } });
    expect((await stopMany(on.client, { metadata: { job: 'x' } })).result).toEqual({ stopped: 4, failed: 0 });
    expect((await stopMany(on.client, { metadata: { job: 'x' }, project: 'other' })).result).toEqual({
      stopped: 0,
      failed: 0,
    });
    await expect(stopMany(on.client, {})).rejects.toMatchObject({ code: 'invalid_argument' });
    expect(on.launcher.sandboxes.size).toBe(0);
  });

  it('ends what runs in the sandbox with the cause', async () => {
    const { sandboxId } = await create(on.client);
    const exec = on.client.open('exec.start', { sandboxId, execId: 'e1', argv: ['sleep'], stdin: 'none' });
    await exec.next();
    const [stopped] = await Promise.all([
      stop(on.client, sandboxId),
      expect(exec.result).rejects.toMatchObject({ code: 'sandbox_ended', details: { cause: 'stopped' } }),
    ]);
    expect(stopped.state).toBe('stopped');
    await expect(on.client.call('exec.list', { sandboxId })).rejects.toMatchObject({ code: 'sandbox_ended' });
  });
});

describe('a sandbox whose first process dies', () => {
  it('L13, X21: has failed within a second, and so have its commands', async () => {
    const { sandboxId } = await create(on.client);
    const exec = on.client.open('exec.start', { sandboxId, execId: 'e1', argv: ['sleep'], stdin: 'none' });
    await exec.next();
    const failed = failureOf(exec.result);
    await on.launcher.kill(sandboxId, { signal: 9, oomKills: 0 });
    await waitFor(async () => (await get(on.client, sandboxId)).state === 'failed', 'the failure', 1000);
    expect(await failed).toMatchObject({ code: 'sandbox_failed', details: { cause: 'runtime', infrastructure: true } });
    expect((await get(on.client, sandboxId)).cause?.kind).toBe('runtime');
    await waitFor(
      () => on.launcher.sandboxes.size === 0 && on.fixture.edge.lifecycle.parts.ledger.used.sandboxes === 0,
      'the cleanup',
    );
  });

  it('says which limit it met', async () => {
    const causes: unknown[] = [];
    for (const [exit, usage] of [
      [{ signal: 9, oomKills: 2 }, {}],
      [{ oomKills: 1 }, {}],
      [{ exitCode: 1, oomKills: 0 }, { diskBytes: 64 * 2 ** 20 }],
      [{ exitCode: 1, oomKills: 0 }, { pids: 64 }],
      [{ exitCode: 0, oomKills: 0 }, {}],
    ] as const) {
      on.launcher.script.usage = usage;
      const { sandboxId } = await create(on.client);
      await on.launcher.kill(sandboxId, exit);
      await waitFor(async () => (await get(on.client, sandboxId)).cause !== null, 'the end');
      const { cause, state } = await get(on.client, sandboxId);
      causes.push([cause?.kind, state === 'failed']);
    }
    expect(causes).toEqual([
      ['oom', true],
      ['oom', true],
      ['disk', true],
      ['pids', true],
      ['completed', false],
    ]);
  });

  it('is not called out of memory for a kill that was seen before', async () => {
    on.launcher.script.usage = { oomKills: 3 };
    const { sandboxId } = await create(on.client);
    expect(await on.client.call('sandbox.usage', { sandboxId })).toMatchObject({ oomKills: 3 });
    await on.launcher.kill(sandboxId, { signal: 9, oomKills: 3 });
    await waitFor(async () => (await get(on.client, sandboxId)).cause !== null, 'the end');
    expect((await get(on.client, sandboxId)).cause?.kind).toBe('runtime');
  });
});

describe('a channel', () => {
  it('that breaks while the sandbox lives is replaced, its commands are followed again, and what waited for it goes on', async () => {
    const { sandboxId } = await create(on.client);
    const aether = on.launcher.aether(sandboxId);
    const exec = on.client.open('exec.start', { sandboxId, execId: 'e1', argv: ['sleep'], stdin: 'none' });
    await exec.next();
    aether.breakConnections();
    await expect(exec.result).rejects.toMatchObject({ code: 'connection_lost' });
    expect(await on.client.call('file.stat', { sandboxId, path: '/x' })).toEqual({ path: '/x' });
    expect((await get(on.client, sandboxId)).state).toBe('running');
    await waitFor(
      async () => (await get(on.client, sandboxId)).idleEndsAtMs === null,
      'the running command to be found again',
    );
    aether.finish('e1');
    await waitFor(
      async () => (await get(on.client, sandboxId)).idleEndsAtMs !== null,
      'the end of the command to be seen',
    );
  });

  it('that breaks again at once has failed for good', async () => {
    const { sandboxId } = await create(on.client);
    on.launcher.aether(sandboxId).breakConnections();
    await waitFor(
      () =>
        on.fixture.logger.records.some(
          ({ event, fields }) => event === 'sandbox.channel' && fields.outcome === 'replaced',
        ),
      'the replacement',
    );
    on.launcher.aether(sandboxId).breakConnections();
    await waitFor(async () => (await get(on.client, sandboxId)).state === 'failed', 'the failure');
    expect((await get(on.client, sandboxId)).cause?.kind).toBe('runtime');
  });

  it('over which something else than the protocol comes fails the sandbox at once', async () => {
    const { sandboxId } = await create(on.client);
    const exec = on.client.open('exec.start', { sandboxId, execId: 'e1', argv: ['sleep'], stdin: 'none' });
    await exec.next();
    on.launcher.aether(sandboxId).babble();
    await expect(exec.result).rejects.toMatchObject({ code: 'sandbox_failed', details: { cause: 'runtime' } });
    await waitFor(
      () => on.launcher.sandboxes.size === 0 && on.fixture.edge.lifecycle.parts.ledger.used.sandboxes === 0,
      'the cleanup',
    );
  });
});

describe('time to live and idle timeout', () => {
  it('end a sandbox with their own cause, and a patch moves them', async () => {
    const ttl = await create(on.client, { request: { ttlSeconds: 1, ttlRunningStopSeconds: 1000 } });
    const idle = await create(on.client, { request: { ttlRunningStopSeconds: 1 } });
    const patched = await create(on.client, { request: { ttlRunningStopSeconds: 1000, ttlSeconds: 1000 } });
    const patch = async (change: object) =>
      (await on.client.call('sandbox.patch', { sandboxId: patched.sandboxId, patch: change })) as typeof patched;
    const shorter = await patch({ ttlSeconds: 1, extendOnly: true, ttlRunningStopSeconds: 1 });
    expect([shorter.ttlEndsAtMs, shorter.ttlRunningStopSeconds]).toEqual([patched.ttlEndsAtMs, 1000]);
    expect((await patch({ ttlRunningStopSeconds: 2000, extendOnly: true })).ttlRunningStopSeconds).toBe(2000);
    expect((await patch({ ttlSeconds: 1 })).ttlEndsAtMs).toBeLessThan(patched.ttlEndsAtMs);
    for (const [{ sandboxId }, kind] of [
      [ttl, 'ttl'],
      [idle, 'idle'],
      [patched, 'ttl'],
    ] as const) {
      await waitFor(async () => (await get(on.client, sandboxId)).state === 'stopped', `the end by ${kind}`);
      expect((await get(on.client, sandboxId)).cause).toMatchObject({ kind, infrastructure: false });
    }
    await expect(patch({ ttlSeconds: 5 })).rejects.toMatchObject({ code: 'sandbox_ended', details: { cause: 'ttl' } });
  });

  it('L06: a running command keeps a sandbox alive, followed or not; looking at it does not', async () => {
    const clock = new SystemClock();
    const { sandboxId } = await create(on.client, { request: { ttlRunningStopSeconds: 1 } });
    const exec = on.client.open('exec.start', { sandboxId, execId: 'e1', argv: ['sleep'], stdin: 'none' });
    await exec.next();
    expect((await get(on.client, sandboxId)).idleEndsAtMs).toBeNull();
    exec.reset();
    const looked = clock.monotonicMs();
    await waitFor(
      async () => (await get(on.client, sandboxId)).state !== 'running' || clock.monotonicMs() - looked > 1500,
      'a while',
    );
    expect(await get(on.client, sandboxId)).toMatchObject({ state: 'running', idleEndsAtMs: null });
    on.launcher.aether(sandboxId).finish('e1');
    const endedMs = clock.monotonicMs();
    await waitFor(async () => {
      if ((await get(on.client, sandboxId)).state !== 'running') return true;
      await on.client.call('exec.list', { sandboxId }).catch(() => undefined);
      return false;
    }, 'the idle timeout');
    expect(clock.monotonicMs() - endedMs).toBeGreaterThan(900);
    expect((await get(on.client, sandboxId)).cause?.kind).toBe('idle');
  });
});
