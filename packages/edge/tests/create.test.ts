/** Creates over a scripted launcher: what the real one does too seldom to wait for it. */
import { PlatformError } from '@dsec/contract';
import { describe, expect, it } from 'vitest';
import type { CountedPage } from '../src/composition-counts.ts';
import type { JournalSink } from '../src/journal.ts';
import type { JournalContents } from '../src/journal-store.ts';
import { create, createMany, EdgeFixture, get, ids, list, stop, waitFor } from './edge-fixture.ts';
import { held, useScriptedNode } from './scripted-node.ts';

const on = useScriptedNode();

/** A journal on a disk that is full now and then. */
class FailingSink implements JournalSink {
  isFull = false;
  refused = 0;

  open(): Promise<JournalContents> {
    return Promise.resolve({ bootId: undefined, bodies: [] });
  }

  commit(): Promise<void> {
    if (!this.isFull) return Promise.resolve();
    this.refused++;
    return Promise.reject(new PlatformError('disk_full', 'the disk is full'));
  }

  compositions(): Promise<CountedPage> {
    return Promise.resolve({ compositions: [], cursor: undefined });
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

describe('a create', () => {
  it('is answered with a running sandbox whose limits are those of the request and the defaults', async () => {
    const info = await create(on.client, { request: { metadata: { a: 'b' }, env: { X: '1' } } });
    expect(ids.parse(info.sandboxId).edge).toBe(0);
    expect(info).toMatchObject({
      state: 'running',
      cause: null,
      endedAtMs: null,
      user: 'user',
      workdir: '/home/user',
      hostname: info.sandboxId,
      metadata: { a: 'b' },
      cpuMillis: 1000,
    });
    expect(info).not.toHaveProperty('env');
    expect(info.idleEndsAtMs).toBeGreaterThan(info.createdAtMs);
    expect(on.launcher.created[0]).toEqual({
      id: info.sandboxId,
      layers: [`sha256:${'0'.repeat(64)}`],
      hostname: info.sandboxId,
      memoryBytes: 64 * 2 ** 20,
      cpuMillis: 1000,
      pids: 64,
      diskBytes: 64 * 2 ** 20,
    });
    expect(await get(on.client, info.sandboxId)).toEqual(info);
  });

  it('that the node refuses leaves nothing: the error says why, the capacity is given back, the record has the cause', async () => {
    for (const [code, kind, seen] of [
      ['environment_broken', 'image', 'environment_broken'],
      ['disk_full', 'runtime', 'disk_full'],
      ['internal', 'runtime', 'create_failed'],
    ] as const) {
      on.launcher.script.create = () => Promise.reject(new PlatformError(code, 'no'));
      await expect(create(on.client)).rejects.toMatchObject({ code: seen });
      await waitFor(() => on.fixture.edge.lifecycle.parts.ledger.used.sandboxes === 0, 'the release');
      const failed = (await list(on.client)).sandboxes.at(-1);
      expect(failed).toMatchObject({ state: 'failed', cause: { kind, infrastructure: true } });
    }
    expect(on.launcher.destroyed).toHaveLength(3);
    expect(on.fixture.edge.lifecycle.parts.ledger.used).toEqual({ memoryMib: 0, pids: 0, diskMib: 0, sandboxes: 0 });
  });

  it('whose caller goes away ends as cancelled and leaves nothing', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const controller = new AbortController();
    const creating = create(on.client, { signal: controller.signal });
    await waitFor(() => on.launcher.created.length === 1, 'the create');
    controller.abort();
    await expect(creating).rejects.toMatchObject({ code: 'cancelled' });
    gate.resolve();
    const id = String(on.launcher.created[0]?.id);
    await waitFor(async () => (await get(on.client, id)).state === 'stopped', 'the end');
    expect((await get(on.client, id)).cause).toMatchObject({ kind: 'cancelled', infrastructure: false });
    expect(on.launcher.sandboxes.size).toBe(0);
  });

  it('L09: loses to a stop that comes while it is made', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const creating = create(on.client);
    await waitFor(() => on.launcher.created.length === 1, 'the create');
    const id = String(on.launcher.created[0]?.id);
    const stopping = stop(on.client, id);
    await waitFor(async () => (await get(on.client, id)).state === 'stopping', 'the stop');
    gate.resolve();
    await expect(creating).rejects.toMatchObject({ code: 'sandbox_ended', details: { cause: 'stopped' } });
    expect(await stopping).toMatchObject({ state: 'stopped', cause: { kind: 'stopped' } });
    expect(on.launcher.sandboxes.size).toBe(0);
  });

  it('says what is short', async () => {
    await on.restart({ sandboxes: 1 });
    await create(on.client);
    await expect(create(on.client)).rejects.toMatchObject({
      code: 'no_capacity',
      details: { resource: 'sandboxes', limit: 1, current: 1, requested: 1 },
    });
  });

  it('looks at what the node really has left', async () => {
    on.launcher.script.diskFreeBytes = 2 ** 20;
    await on.restart();
    await expect(create(on.client)).rejects.toMatchObject({
      code: 'no_capacity',
      details: { resource: 'diskFreeMib' },
    });
  });

  it('refuses backends and services that the node does not offer', async () => {
    await expect(create(on.client, { request: { backend: 'microvm' } })).rejects.toMatchObject({
      code: 'backend_unsupported',
      details: { supported: ['container'] },
    });
    await expect(create(on.client, { request: { networkRules: { npm: false, pypi: true } } })).rejects.toMatchObject({
      code: 'network_unavailable',
      details: { reason: 'it is the node of a test' },
    });
    expect((await create(on.client, { request: { networkRules: { npm: false } } })).networkRules).toEqual({
      npm: false,
    });
  });
});

describe('a journal that cannot be written', () => {
  it('fails the create, which leaves nothing, and holds the answer of a stop back until its end is durable', async () => {
    await on.fixture[Symbol.asyncDispose]();
    const sink = new FailingSink();
    on.fixture = await EdgeFixture.start({ ...on.options(), journal: sink });
    const { sandboxId } = await create(on.client);
    sink.isFull = true;
    await expect(create(on.client)).rejects.toMatchObject({ code: 'disk_full' });
    await waitFor(() => on.launcher.sandboxes.size === 1, 'the cleanup');
    let isStopped = false;
    const stopping = stop(on.client, sandboxId).then((info) => {
      isStopped = true;
      return info;
    });
    await waitFor(() => on.launcher.sandboxes.size === 0 && sink.refused > 3, 'the destruction');
    expect(isStopped).toBe(false);
    sink.isFull = false;
    expect(await stopping).toMatchObject({ state: 'stopped', cause: { kind: 'stopped' } });
  });
});

describe('idempotency keys', () => {
  it('give the same sandbox to those who come while it is made and after, and a conflict to another request', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const creates = [create(on.client, { key: 'a' }), create(on.client, { key: 'a' })];
    await expect(create(on.client, { key: 'a', fingerprint: 'other' })).rejects.toMatchObject({
      code: 'idempotency_conflict',
    });
    gate.resolve();
    const [first, second] = await Promise.all(creates);
    const third = await create(on.client, { key: 'a' });
    expect([second?.sandboxId, third.sandboxId]).toEqual([first?.sandboxId, first?.sandboxId]);
    expect((await create(on.client, { key: 'a', project: 'other' })).sandboxId).not.toBe(first?.sandboxId);
    await on.restart();
    expect((await create(on.client, { key: 'a' })).sandboxId).toBe(first?.sandboxId);
    expect(on.launcher.created).toHaveLength(2);
  });

  it('keep a create alive while one of those who wait for it is left', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const controller = new AbortController();
    const first = create(on.client, { key: 'a', signal: controller.signal });
    const second = create(on.client, { key: 'a' });
    await waitFor(() => on.launcher.created.length === 1, 'the create');
    controller.abort();
    await expect(first).rejects.toMatchObject({ code: 'cancelled' });
    gate.resolve();
    expect((await second).state).toBe('running');
  });

  it('let a create that failed be tried again', async () => {
    on.launcher.script.create = () => Promise.reject(new PlatformError('internal', 'no'));
    await expect(create(on.client, { key: 'a' })).rejects.toMatchObject({ code: 'create_failed' });
    delete on.launcher.script.create;
    expect((await create(on.client, { key: 'a' })).state).toBe('running');
  });

  it('complete a bulk create of which some failed, each in its place', async () => {
    let count = 0;
    on.launcher.script.create = () =>
      ++count % 3 === 0 ? Promise.reject(new PlatformError('internal', 'no')) : Promise.resolve();
    const first = await createMany(on.client, 9, { key: 'b' });
    expect(first.result).toEqual({ created: 6, failed: 3 });
    delete on.launcher.script.create;
    const second = await createMany(on.client, 9, { key: 'b' });
    expect(second.result).toEqual({ created: 9, failed: 0 });
    const idsOf = (items: (typeof first)['items']) =>
      new Map(items.flatMap((item) => ('sandbox' in item ? [[item.index, item.sandbox.sandboxId]] : [])));
    const made = idsOf(second.items);
    for (const [index, sandboxId] of idsOf(first.items)) expect(made.get(index)).toBe(sandboxId);
    expect(new Set(made.values()).size).toBe(9);
    await expect(createMany(on.client, 8, { key: 'b' })).resolves.toMatchObject({
      result: { created: 0, failed: 8 },
    });
  });
});

describe('a bulk create', () => {
  it('does not begin what is left when its caller goes away, and keeps what has begun', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const controller = new AbortController();
    const bulk = createMany(on.client, 200, { signal: controller.signal });
    await waitFor(() => on.launcher.created.length === 8, 'the first creates');
    controller.abort();
    await expect(bulk).rejects.toMatchObject({ code: 'cancelled' });
    gate.resolve();
    const running = async () =>
      (await list(on.client, { limit: 1000 })).sandboxes.filter(({ state }) => state === 'running').length;
    await waitFor(
      async () => (await running()) === on.fixture.edge.lifecycle.parts.registry.size,
      'the end of those that had begun',
    );
    expect(await running()).toBe(32);
  });

  it('leaves metadata out of a line that would not fit a message', async () => {
    const metadata = Object.fromEntries(Array.from({ length: 64 }, (_, index) => [`key ${index}`, '☕'.repeat(1024)]));
    const { items } = await createMany(on.client, 1, { request: { metadata } });
    const item = items[0];
    expect(item !== undefined && 'sandbox' in item ? item.sandbox.metadata : undefined).toEqual({});
    expect((await list(on.client)).sandboxes[0]?.metadata).toEqual(metadata);
  });
});
