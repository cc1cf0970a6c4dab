/** Launchers and edges that go away and come back, with faults that a script decides. */
import { PlatformError } from '@dsec/contract';
import { describe, expect, it } from 'vitest';
import { create, EdgeFixture, failureOf, get, stop, waitFor } from './edge-fixture.ts';
import { held, useScriptedNode } from './scripted-node.ts';

const on = useScriptedNode();

describe('a launcher that goes away', () => {
  it('is waited for by those who come meanwhile, and everything that lives is kept', async () => {
    const { sandboxId } = await create(on.client);
    await on.launcher.stop();
    const creating = create(on.client);
    expect(await on.client.call('file.stat', { sandboxId, path: '/x' })).toEqual({ path: '/x' });
    await on.launcher.start();
    expect((await creating).state).toBe('running');
    expect((await get(on.client, sandboxId)).state).toBe('running');
  });

  it('fails the create that it took with it, which leaves nothing', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const creating = failureOf(create(on.client));
    await waitFor(() => on.launcher.created.length === 1, 'the create');
    await on.launcher.stop();
    expect(await creating).toMatchObject({ code: 'unavailable' });
    gate.resolve();
    await on.launcher.start();
    await waitFor(() => on.launcher.sandboxes.size === 0 && on.fixture.edge.lifecycle.endingCount === 0, 'the cleanup');
    expect(on.fixture.edge.lifecycle.parts.ledger.used.sandboxes).toBe(0);
  });

  it('and comes back without a sandbox has lost it', async () => {
    const { sandboxId } = await create(on.client);
    await on.launcher.stop();
    on.launcher.sandboxes.delete(sandboxId);
    await on.launcher.start();
    await waitFor(async () => (await get(on.client, sandboxId)).state === 'failed', 'the loss');
    expect((await get(on.client, sandboxId)).cause).toMatchObject({ kind: 'runtime', infrastructure: true });
  });

  it('tells of the exits that it saw while nobody listened', async () => {
    const { sandboxId } = await create(on.client);
    await on.launcher.stop();
    await on.launcher.kill(sandboxId, { signal: 9, oomKills: 1 });
    await on.launcher.start();
    await waitFor(async () => (await get(on.client, sandboxId)).state === 'failed', 'the failure');
    expect((await get(on.client, sandboxId)).state).toBe('failed');
  });
});

describe('the reconciler', () => {
  it('L11: never touches a create that is under way, however often it looks', async () => {
    await on.restart({ reconcileMs: 100 });
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const creating = create(on.client);
    await waitFor(() => on.launcher.created.length === 1, 'the create');
    const id = String(on.launcher.created[0]?.id);
    // It is made on the node, but the launcher has not answered yet.
    await on.launcher.addStray(id);
    for (let round = 0; round < 20; round++) await on.fixture.edge.reconciler.reconcile();
    expect(on.launcher.destroyed).toEqual([]);
    await on.launcher.sandboxes.get(id)?.aether.close();
    on.launcher.sandboxes.delete(id);
    gate.resolve();
    expect((await creating).state).toBe('running');
  });

  it('destroys what nobody knows', async () => {
    const { sandboxId } = await create(on.client);
    await on.launcher.addStray('sstray');
    await on.fixture.edge.reconciler.reconcile();
    expect(on.launcher.destroyed).toEqual(['sstray']);
    expect([...on.launcher.sandboxes.keys()]).toEqual([sandboxId]);
  });
});

describe('an edge that comes back', () => {
  it('L11: destroys what the create of another life made after all', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const creating = failureOf(create(on.client));
    await waitFor(() => on.launcher.created.length === 1, 'the create');
    await on.restart({ reconcileMs: 100 });
    await creating;
    delete on.launcher.script.create;
    const { sandboxId } = await create(on.client);
    gate.resolve();
    await waitFor(() => on.launcher.destroyed.includes(String(on.launcher.created[0]?.id)), 'the end of the stray');
    await waitFor(() => on.launcher.sandboxes.size === 1, 'the end of the stray');
    expect([...on.launcher.sandboxes.keys()]).toEqual([sandboxId]);
  });

  it('adopts what lives, goes on with what was ending, remembers what had ended, and destroys what it never knew', async () => {
    const live = await create(on.client, { request: { metadata: { a: 'b' }, ttlSeconds: 1000 } });
    const ending = await create(on.client);
    const over = await stop(on.client, (await create(on.client)).sandboxId);
    on.launcher.script.destroy = () => Promise.reject(new PlatformError('cleanup_incomplete', 'not yet'));
    const stopping = failureOf(stop(on.client, ending.sandboxId));
    await waitFor(async () => (await get(on.client, ending.sandboxId)).state === 'stopping', 'the stop');
    await on.fixture.edge.lifecycle.parts.journal.idle();
    await on.fixture[Symbol.asyncDispose]();
    expect(await stopping).toMatchObject({ code: 'connection_lost' });
    delete on.launcher.script.destroy;
    await on.launcher.addStray('sstray');
    on.fixture = await EdgeFixture.start(on.options());
    const adopted = await get(on.client, live.sandboxId);
    expect({ ...adopted, idleEndsAtMs: 0 }).toEqual({ ...live, idleEndsAtMs: 0 });
    expect(await on.client.call('file.stat', { sandboxId: live.sandboxId, path: '/x' })).toEqual({ path: '/x' });
    await waitFor(async () => (await get(on.client, ending.sandboxId)).state === 'stopped', 'the end');
    expect(await get(on.client, over.sandboxId)).toEqual(over);
    expect([...on.launcher.sandboxes.keys()]).toEqual([live.sandboxId]);
    expect(on.fixture.edge.lifecycle.parts.ledger.used.sandboxes).toBe(1);
  });

  it('starts without a launcher, and finds it later', async () => {
    const { sandboxId } = await create(on.client);
    await on.fixture[Symbol.asyncDispose]();
    await on.launcher.stop();
    const starting = EdgeFixture.start(on.options());
    await on.launcher.start();
    on.fixture = await starting;
    expect((await get(on.client, sandboxId)).state).toBe('running');
  });
});
