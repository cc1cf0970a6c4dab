import { PlatformError } from '@dsec/contract';
import { expect, test } from 'vitest';

import { link } from '../tests/link.ts';
import { until } from '../tests/raw-peer.ts';
import { AetherClient } from './aether-client.ts';
import type { ExecItem } from './aether-streams.ts';
import type { WireHandler } from './wire/server.ts';

const status = {
  execId: 'e1',
  state: 'exited',
  pid: 7,
  pty: false,
  startedAtMs: 1,
  durationMs: 2,
  exitCode: 0,
  timedOut: false,
  oomKilled: false,
  stdoutBytes: 3,
  stderrBytes: 0,
  stdoutDropped: 0,
  stderrDropped: 0,
};

const entry = { name: 'x', path: '/x', kind: 'file', sizeBytes: 5, mode: 0o644, uid: 0, gid: 0, mtimeMs: 1.5 };

const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (PlatformError.is(error) ? error.code : error),
  );

const collect = async <T>(items: AsyncIterable<T>): Promise<T[]> => {
  const all: T[] = [];
  for await (const item of items) all.push(item);
  return all;
};

/** Answers one method in one way. */
const answering =
  (result: unknown): WireHandler =>
  async () =>
    result;

test('a command gives its start, output, gaps and status; stdin goes the other way', async () => {
  const seen: unknown[] = [];
  await using pair = await link(async (method, params, stream) => {
    seen.push(method, params);
    await stream.message({ started: { execId: 'e1', pid: 7, clientId: 'c1' } });
    for await (const item of stream) {
      if (item.type === 'end') break;
      if (item.type === 'data') await stream.write(item.bytes, 1);
    }
    await stream.write(Buffer.from('err'), 2);
    await stream.message({ gap: { channel: 1, from: 3, to: 9 } });
    return status;
  });
  const exec = new AetherClient(pair.client, { sandboxId: 's1' }).execStart({
    execId: 'e1',
    argv: ['cat'],
    env: {},
    stdin: 'open',
  });
  await exec.write(Buffer.from('in'));
  exec.end();
  expect(await collect<ExecItem>(exec)).toEqual([
    { type: 'started', execId: 'e1', pid: 7, clientId: 'c1' },
    { type: 'output', channel: 1, bytes: Buffer.from('in') },
    { type: 'output', channel: 2, bytes: Buffer.from('err') },
    { type: 'gap', channel: 1, from: 3, to: 9 },
  ]);
  await expect(exec.result).resolves.toEqual(status);
  expect(seen).toEqual(['exec.start', { execId: 'e1', argv: ['cat'], env: {}, stdin: 'open', sandboxId: 's1' }]);
});

test.each<[string, (client: AetherClient) => Promise<unknown>, unknown]>([
  ['a status with an unknown member', (client) => client.execGet('e1'), { ...status, extra: 1 }],
  ['a status without a state', (client) => client.execGet('e1'), { ...status, state: undefined }],
  ['a status of another exec', (client) => client.execAttach({ execId: 'e1' }).result, { ...status, execId: 'e2' }],
  ['a number that is text', (client) => client.execGet('e1'), { ...status, pid: '7' }],
  ['null', (client) => client.fileStat({ path: '/x' }), null],
  ['an entry of an unknown kind', (client) => client.fileStat({ path: '/x' }), { ...entry, kind: 'door' }],
  [
    'more processes than there may be',
    (client) => client.processes(),
    { processes: Array.from({ length: 5_000 }, () => ({})) },
  ],
  ['a list that is none', (client) => client.execList(), { execs: {} }],
  ['a result where none belongs', (client) => client.fileRemove({ path: '/x' }), { removed: true }],
])('%s is a protocol error', async (_name, ask, result) => {
  await using pair = await link(answering(result));
  expect(await codeOf(ask(new AetherClient(pair.client)))).toBe('protocol_error');
  expect(pair.client.isClosed).toBe(false);
});

test.each<[string, WireHandler]>([
  ['output on an unknown channel', (_method, _params, stream) => stream.write(Buffer.from('x'), 3)],
  ['the start of another exec', (_method, _params, stream) => stream.message({ started: { execId: 'e2', pid: 7 } })],
  ['a message of another method', (_method, _params, stream) => stream.message({ ready: true })],
  ['a gap of text', (_method, _params, stream) => stream.message({ gap: { channel: 1, from: '0', to: 1 } })],
])('%s ends the stream of a command', async (_name, send) => {
  await using pair = await link((method, params, stream) => {
    void send(method, params, stream);
  });
  const exec = new AetherClient(pair.client).execAttach({ execId: 'e1' });
  expect(await codeOf(exec.next())).toBe('protocol_error');
  await until(() => pair.server.liveStreams === 0, 'the stream is reset');
  expect(await codeOf(exec.result)).toBe('protocol_error');
});

test('a file is read with its entry, and a missing byte is noticed', async () => {
  let claimed = 5;
  await using pair = await link(async (_method, _params, stream) => {
    await stream.message({ entry });
    await stream.write(Buffer.from('he'));
    await stream.write(Buffer.from('llo'));
    return { bytes: claimed };
  });
  const client = new AetherClient(pair.client);
  const good = await client.fileRead({ path: '/x' });
  expect(good.entry).toEqual(entry);
  expect(Buffer.concat(await collect(good)).toString()).toBe('hello');
  claimed = 6;
  const short = await client.fileRead({ path: '/x' });
  expect(await codeOf(collect(short))).toBe('protocol_error');
});

test('an error of a read comes from the read, and data before the entry is refused', async () => {
  await using pair = await link(async (_method, params, stream) => {
    if (params.path === '/none')
      throw new PlatformError('file_not_found', 'There is no /none.', { details: { path: '/none' } });
    await stream.write(Buffer.from('x'));
    return { bytes: 1 };
  });
  const client = new AetherClient(pair.client);
  expect(await codeOf(client.fileRead({ path: '/none' }))).toBe('file_not_found');
  expect(await codeOf(client.fileRead({ path: '/x' }))).toBe('protocol_error');
});

test('uploads, listings, watches and trees go as written', async () => {
  await using pair = await link(async (method, _params, stream) => {
    let bytes = 0;
    switch (method) {
      case 'file.write':
      case 'tree.write':
        for await (const item of stream) {
          if (item.type === 'end') break;
          if (item.type === 'data') bytes += item.bytes.length;
        }
        return method === 'file.write' ? { ...entry, sizeBytes: bytes } : { entries: bytes };
      case 'file.list':
        await stream.message({ entries: [entry] });
        await stream.message({ entries: [entry, entry] });
        return { count: 3, truncated: false };
      case 'tree.read':
        await stream.write(Buffer.from('tar'));
        return { entries: 1 };
      default:
        await stream.message({ ready: true });
        await stream.message({ events: [{ kind: 'move', path: '/a', to: '/b' }] });
        await stream.message({ overflow: true });
        return {};
    }
  });
  const client = new AetherClient(pair.client);
  const write = client.fileWrite({ path: '/x', mode: 0o600 });
  await write.write(Buffer.from('hello'));
  write.end();
  await expect(write.result).resolves.toMatchObject({ sizeBytes: 5 });
  const tree = client.treeWrite({ path: '/' });
  await tree.write(Buffer.from('tar'));
  tree.end();
  await expect(tree.result).resolves.toEqual({ entries: 3 });
  const list = client.fileList({ path: '/' });
  expect((await collect(list)).map((batch) => batch.length)).toEqual([1, 2]);
  await expect(list.result).resolves.toEqual({ count: 3, truncated: false });
  const read = client.treeRead({ path: '/' });
  expect(Buffer.concat(await collect(read)).toString()).toBe('tar');
  await expect(read.result).resolves.toEqual({ entries: 1 });
  expect(await collect(client.fileWatch({ path: '/' }))).toEqual([
    { ready: true },
    { events: [{ kind: 'move', path: '/a', to: '/b' }] },
    { overflow: true },
  ]);
});
