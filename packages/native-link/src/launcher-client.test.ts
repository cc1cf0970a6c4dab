import { PlatformError } from '@dsec/contract';
import { expect, test } from 'vitest';

import { link } from '../tests/link.ts';
import { LauncherClient } from './launcher-client.ts';

const create = {
  id: 's1',
  layers: [`sha256:${'0'.repeat(64)}`],
  hostname: 'h',
  memoryBytes: 1,
  cpuMillis: 1,
  pids: 1,
  diskBytes: 1,
};

const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (PlatformError.is(error) ? error.code : error),
  );

test('a sandbox is created, listed and destroyed by the methods of the protocol', async () => {
  const asked: unknown[] = [];
  await using pair = await link(async (method, params) => {
    asked.push([method, params]);
    if (method === 'sandbox.create') return { id: 's1', pid: 7, socket: '/run/s1.sock' };
    if (method === 'sandbox.list')
      return { sandboxes: [{ id: 's1', pid: 7, state: 'exited', createdAtMs: 1, exit: { exitCode: 3 } }] };
    return {};
  });
  const client = new LauncherClient(pair.client);
  await expect(client.sandboxCreate(create)).resolves.toEqual({ id: 's1', pid: 7, socket: '/run/s1.sock' });
  await expect(client.sandboxList()).resolves.toHaveLength(1);
  await client.sandboxDestroy('s1');
  await client.layerForget(create.layers[0] ?? '');
  expect(asked).toEqual([
    ['sandbox.create', create],
    ['sandbox.list', {}],
    ['sandbox.destroy', { id: 's1' }],
    ['layer.forget', { digest: create.layers[0] }],
  ]);
});

test('what does not match is a protocol error; errors of the launcher are its own', async () => {
  await using pair = await link(async (method) => {
    if (method === 'sandbox.create') return { id: 's2', pid: 7, socket: '/run/s2.sock' };
    if (method === 'sandbox.usage') return { memoryBytes: -1 };
    throw new PlatformError('cleanup_incomplete', 'Something is left.', { details: { left: ['cgroup'] } });
  });
  const client = new LauncherClient(pair.client);
  expect(await codeOf(client.sandboxCreate(create))).toBe('protocol_error');
  expect(await codeOf(client.sandboxUsage('s1'))).toBe('protocol_error');
  expect(await codeOf(client.sandboxDestroy('s1'))).toBe('cleanup_incomplete');
});

test('events come as they happen, until they are reset', async () => {
  const sending = Promise.withResolvers<void>();
  await using pair = await link(async (_method, _params, stream) => {
    await stream.message({ exited: { id: 's1', signal: 9, oomKills: 1 } });
    await stream.message({ exited: { id: 's2', exitCode: 0, oomKills: 0 } });
    stream.signal.addEventListener('abort', () => sending.resolve());
    await sending.promise;
  });
  const events = new LauncherClient(pair.client).events();
  expect((await events.next()).value).toEqual({ id: 's1', signal: 9, oomKills: 1 });
  expect((await events.next()).value).toEqual({ id: 's2', exitCode: 0, oomKills: 0 });
  events.reset();
  await sending.promise;
  expect(await codeOf(events.next())).toBe('cancelled');
});
