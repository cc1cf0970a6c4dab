import { createReadStream } from 'node:fs';
import { Readable } from 'node:stream';
import { PlatformError, type FileEntry } from '@dsec/contract';
import { ManualClock } from '@dsec/kit';
import type { WireServerStream } from '@dsec/native-link';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Fixture, newSandboxId, type Ask, type Params } from '../apiserver.fixture.ts';
import { MemoryBudget } from '../http/memory-budget.ts';
import { collectEntries } from './file-list.ts';

let fixture: Fixture;
let clock: ManualClock;
let path: string;
beforeEach(async () => {
  clock = new ManualClock();
  fixture = await Fixture.start({ clock });
  path = `/sandboxes/${fixture.sandboxId}/files`;
});
afterEach(() => fixture[Symbol.asyncDispose]());

const entryOf = (changes: Partial<FileEntry> = {}): FileEntry => ({
  name: 'a',
  path: '/a',
  kind: 'file',
  sizeBytes: 10,
  mode: 0o644,
  uid: 0,
  gid: 0,
  mtimeMs: 1.5,
  ...changes,
});

const content = Buffer.from('0123456789');

/** A file of these bytes. */
function serveFile(bytes: Buffer, entry: FileEntry = entryOf({ sizeBytes: bytes.length })): void {
  fixture.edge.on('file.stat', () => Promise.resolve(entry));
  fixture.edge.on('file.read', async ({ offset, length }, stream) => {
    await stream.message({ entry });
    const from = Number(offset ?? 0);
    const part = bytes.subarray(from, length === undefined ? undefined : from + Number(length));
    await stream.write(part);
    return { bytes: part.length };
  });
}

/** Takes what is written; returns where it will be. */
function takeWrites(method: string, result: unknown): Buffer[] {
  const chunks: Buffer[] = [];
  fixture.edge.on(method, async (_params, stream) => {
    for await (const item of stream) {
      if (item.type === 'data') chunks.push(Buffer.from(item.bytes));
      if (item.type === 'end') return result;
    }
    throw new PlatformError('internal', 'the body ended without an end');
  });
  return chunks;
}

const target = (name: string): string => `path=${encodeURIComponent(name)}`;

describe('GET files', () => {
  test('gives the bytes of a file', async () => {
    serveFile(content);
    const answer = await fixture.ask('GET', `${path}?${target('/tmp/a b&c=é+%')}&user=bin`);
    expect(answer.status).toBe(200);
    expect(answer.body).toEqual(content);
    expect(answer.headers['content-type']).toBe('application/octet-stream');
    expect(fixture.edge.last('file.read')).toEqual({
      sandboxId: fixture.sandboxId,
      path: '/tmp/a b&c=é+%',
      user: 'bin',
    });
  });

  test('gives a part', async () => {
    serveFile(content);
    expect((await fixture.ask('GET', `${path}?path=a&offset=2&length=3`)).text).toBe('234');
  });

  test.each([
    ['bytes=2-4', 206, '234', 'bytes 2-4/10'],
    ['bytes=7-', 206, '789', 'bytes 7-9/10'],
    ['bytes=-2', 206, '89', 'bytes 8-9/10'],
    ['bytes=8-100', 206, '89', 'bytes 8-9/10'],
    ['bytes=0-0', 206, '0', 'bytes 0-0/10'],
    ['lines=1-2', 200, '0123456789', undefined],
    ['bytes=0-1,4-5', 200, '0123456789', undefined],
  ])('takes the range %s', async (range, status, text, contentRange) => {
    serveFile(content);
    const answer = await fixture.ask('GET', `${path}?path=a`, { headers: { range } });
    expect([answer.status, answer.text, answer.headers['content-range']]).toEqual([status, text, contentRange]);
  });

  test.each(['bytes=10-', 'bytes=5-4', 'bytes=-0', 'bytes=9999999999999999999-', 'bytes=9007199254740993-'])(
    'refuses the range %s',
    async (range) => {
      serveFile(content);
      const answer = await fixture.ask('GET', `${path}?path=a`, { headers: { range } });
      expect(answer.error).toMatchObject({ code: 'invalid_argument', details: { field: 'Range' } });
    },
  );

  test('gives files of the kernel, which say that they are empty, whole', async () => {
    serveFile(content, entryOf({ sizeBytes: 0 }));
    expect((await fixture.ask('GET', `${path}?path=a`, { headers: { range: 'bytes=0-3' } })).text).toBe('0123456789');
  });

  test('has a status for what cannot be read, and breaks the answer off for what fails later', async () => {
    fixture.edge.on('file.read', () =>
      Promise.reject(new PlatformError('is_directory', 'it is', { details: { path: '/' } })),
    );
    expect((await fixture.ask('GET', `${path}?path=/`)).error).toMatchObject({
      code: 'is_directory',
      details: { path: '/' },
    });
    fixture.edge.on('file.read', async (_params, stream) => {
      await stream.message({ entry: entryOf() });
      throw new PlatformError('file_error', 'it can be opened only');
    });
    expect((await fixture.ask('GET', `${path}?path=/a`)).error).toMatchObject({ code: 'file_error' });
    fixture.edge.on('file.read', async (_params, stream) => {
      await stream.message({ entry: entryOf() });
      await stream.write(content);
      throw new PlatformError('file_error', 'the disk is broken');
    });
    await expect(fixture.ask('GET', `${path}?path=/a`)).rejects.toMatchObject({ code: 'ECONNRESET' });
  });

  test.each([
    '',
    'path=',
    'path=a%00b',
    'path=a&path=b',
    'path=a&offset=-1',
    'path=a&user=a%20b',
    `path=${'a'.repeat(5000)}`,
  ])('refuses the query %#', async (query) => {
    expect((await fixture.ask('GET', `${path}?${query}`)).error.code).toBe('invalid_argument');
  });
});

describe('PUT files', () => {
  test('writes the bytes as they are', async () => {
    const chunks = takeWrites('file.write', entryOf());
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, index) => index));
    const answer = await fixture.ask('PUT', `${path}?path=/a&user=bin&mode=493&append=true`, {
      body: bytes,
      headers: { 'content-type': 'text/plain' },
    });
    expect([answer.status, answer.json()]).toEqual([200, entryOf()]);
    expect(Buffer.concat(chunks)).toEqual(bytes);
    expect(fixture.edge.last('file.write')).toEqual({
      sandboxId: fixture.sandboxId,
      path: '/a',
      user: 'bin',
      mode: 0o755,
      append: true,
    });
  });

  test.each<[string, Ask]>([
    ['with a length of 0', {}],
    ['of chunks', { body: Readable.from([]) }],
  ])('makes an empty file of an empty body %s', async (_name, ask) => {
    const chunks = takeWrites('file.write', entryOf({ sizeBytes: 0 }));
    expect((await fixture.ask('PUT', `${path}?path=/a`, ask)).status).toBe(200);
    expect(chunks).toEqual([]);
  });

  test('streams a large body without keeping it', async () => {
    let size = 0;
    fixture.edge.on('file.write', async (_params, stream) => {
      for await (const item of stream) {
        if (item.type === 'data') size += item.bytes.length;
        if (item.type === 'end') break;
      }
      return entryOf();
    });
    const before = process.memoryUsage().rss;
    const total = 300_000_000;
    await fixture.ask('PUT', `${path}?path=/a`, {
      body: createReadStream('/dev/zero', { end: total - 1, highWaterMark: 262_144 }),
    });
    expect(size).toBe(total);
    // Client, server and edge are all in this process.
    expect(process.memoryUsage().rss - before).toBeLessThan(150_000_000);
  });

  test('answers at once when the file cannot be written, whatever is still to come', async () => {
    fixture.edge.on('file.write', () =>
      Promise.reject(new PlatformError('file_permission', 'no', { details: { path: '/a' } })),
    );
    const answer = await fixture.ask('PUT', `${path}?path=/a`, { body: Buffer.alloc(20_000_000) });
    expect([answer.status, answer.error.code]).toEqual([403, 'file_permission']);
  });

  test('answers when the disk is full in the middle of a body', async () => {
    fixture.edge.on('file.write', async (_params, stream) => {
      let size = 0;
      for await (const item of stream) {
        if (item.type === 'data') size += item.bytes.length;
        if (size > 5_000_000) throw new PlatformError('disk_full', 'full');
      }
      return entryOf();
    });
    const answer = await fixture.ask('PUT', `${path}?path=/a`, {
      body: createReadStream('/dev/zero', { end: 40_000_000 }),
    });
    expect([answer.status, answer.error.code]).toEqual([507, 'disk_full']);
  });

  test('answers at once when the write fails while the client waits with the rest', async () => {
    fixture.edge.on('file.write', async (_params, stream) => {
      await stream.next();
      throw new PlatformError('disk_full', 'full');
    });
    const body = new Readable({ read: () => undefined });
    body.push(Buffer.alloc(1000));
    const answer = await fixture.ask('PUT', `${path}?path=/a`, { body });
    expect([answer.status, answer.error.code]).toEqual([507, 'disk_full']);
    body.destroy();
  });

  test('drops the write when the body breaks off', async () => {
    let isDropped = false;
    let isEnded = false;
    fixture.edge.on('file.write', async (_params, stream) => {
      stream.signal.addEventListener('abort', () => (isDropped = true));
      for await (const item of stream) if (item.type === 'end') isEnded = true;
      return entryOf();
    });
    const body = new Readable({ read: () => undefined });
    body.push(Buffer.alloc(1000));
    const controller = new AbortController();
    const asking = fixture.ask('PUT', `${path}?path=/a`, { body, signal: controller.signal }).catch(() => undefined);
    await expect.poll(() => fixture.edge.calls.length).toBe(1);
    controller.abort();
    await asking;
    await expect.poll(() => isDropped).toBe(true);
    expect(isEnded).toBe(false);
  });
});

describe('directories and names', () => {
  test.each<[string, string, string, object | undefined, string, object]>([
    [
      'GET',
      '/stat',
      'path=/a&user=bin&followLinks=false',
      undefined,
      'file.stat',
      { path: '/a', user: 'bin', followLinks: false },
    ],
    [
      'POST',
      '/mkdir',
      '',
      { path: '/d', parents: true, mode: 448 },
      'file.mkdir',
      { path: '/d', parents: true, mode: 0o700 },
    ],
    [
      'POST',
      '/move',
      '',
      { from: '/a', to: '/b', overwrite: true },
      'file.move',
      { from: '/a', to: '/b', overwrite: true },
    ],
    ['POST', '/symlink', '', { path: '/l', target: '../x' }, 'file.symlink', { path: '/l', target: '../x' }],
    ['POST', '/change', '', { path: '/a', mode: 420 }, 'file.chmod', { path: '/a', mode: 0o644 }],
    [
      'POST',
      '/change',
      '',
      { path: '/a', owner: '1:2', user: 'root' },
      'file.chown',
      { path: '/a', owner: '1:2', user: 'root' },
    ],
  ])('%s %s', async (method, route, query, json, called, params) => {
    fixture.edge.on(called, () => Promise.resolve(entryOf()));
    const answer = await fixture.ask(method, `${path}${route}?${query}`, json === undefined ? {} : { json });
    expect([answer.status, answer.json()]).toEqual([200, entryOf()]);
    expect(fixture.edge.last(called)).toEqual({ sandboxId: fixture.sandboxId, ...params });
  });

  test('change sets the owner before the mode, and needs one of them', async () => {
    fixture.edge.on('file.chown', () => Promise.resolve(entryOf()));
    fixture.edge.on('file.chmod', () => Promise.resolve(entryOf({ mode: 0o4755 })));
    const answer = await fixture.ask('POST', `${path}/change`, { json: { path: '/a', mode: 0o4755, owner: 'bin' } });
    expect(answer.json()).toMatchObject({ mode: 0o4755 });
    expect(fixture.edge.calls.map(({ method }) => method)).toEqual(['file.chown', 'file.chmod']);
    expect((await fixture.ask('POST', `${path}/change`, { json: { path: '/a' } })).error.code).toBe('invalid_argument');
  });

  test('list puts all batches together', async () => {
    fixture.edge.on('file.list', async (_params, stream) => {
      await stream.message({ entries: [entryOf({ name: 'x' }), entryOf({ name: '\ufffd', nameBase64: '/w==' })] });
      await stream.message({ entries: [entryOf({ name: 'y' })] });
      return { count: 3, truncated: true };
    });
    const answer = await fixture.ask('GET', `${path}/list?path=/&depth=2&limit=3`);
    expect(answer.json<{ entries: FileEntry[] }>().entries.map(({ name }) => name)).toEqual(['x', '\ufffd', 'y']);
    expect(answer.json()).toMatchObject({ truncated: true });
    expect(fixture.edge.last('file.list')).toEqual({ sandboxId: fixture.sandboxId, path: '/', depth: 2, limit: 3 });
    for (const query of ['depth=0', 'depth=65', 'limit=0', 'limit=100001']) {
      expect((await fixture.ask('GET', `${path}/list?path=/&${query}`)).error.code).toBe('invalid_argument');
    }
  });

  test('list ends where there is no memory for more, and gives it back when it is sent', async () => {
    const entry = entryOf({ path: `/${'d/'.repeat(2000)}a` });
    let isReleased = false;
    fixture.edge.on('file.list', async (_params, stream) => {
      stream.signal.addEventListener('abort', () => (isReleased = true));
      for (;;) await stream.message({ entries: Array.from({ length: 10 }, () => entry) });
    });
    const list = async (budget: MemoryBudget): Promise<number> => {
      const memory = budget.share();
      const stream = await fixture.services.edge.open('file.list', {});
      const { entries, truncated } = await collectEntries(stream, { maxEntries: 100_000, memory });
      expect(truncated).toBe(true);
      memory.giveBack();
      return entries.length;
    };
    const budget = new MemoryBudget(1_000_000);
    const [least, first, second] = [await list(new MemoryBudget(0)), await list(budget), await list(budget)];
    // Of some 8 KiB each.
    expect(least).toBe(30);
    expect([first, second]).toEqual([first, first]);
    expect(first).toBeGreaterThan(100);
    expect(first).toBeLessThan(160);
    await expect.poll(() => isReleased).toBe(true);
  });

  test('list does not believe what is no entry', async () => {
    fixture.edge.on('file.list', async (_params, stream) => {
      await stream.message({ entries: [{ name: 1 }] });
      return { count: 1, truncated: false };
    });
    expect((await fixture.ask('GET', `${path}/list?path=/`)).error.code).toBe('protocol_error');
  });

  test('DELETE removes', async () => {
    fixture.edge.on('file.remove', () => Promise.resolve({}));
    const answer = await fixture.ask('DELETE', `${path}?path=/d&recursive=true`);
    expect([answer.status, answer.text]).toEqual([204, '']);
    expect(fixture.edge.last('file.remove')).toEqual({ sandboxId: fixture.sandboxId, path: '/d', recursive: true });
    fixture.edge.on('file.remove', () =>
      Promise.reject(new PlatformError('directory_not_empty', 'full', { details: { path: '/d' } })),
    );
    expect((await fixture.ask('DELETE', `${path}?path=/d`)).status).toBe(409);
  });
});

test('watch tells events line by line, a keepalive in silence, and lets go when its client does', async () => {
  const more = Promise.withResolvers<undefined>();
  let isReleased = false;
  fixture.edge.on('file.watch', async (_params, stream: WireServerStream) => {
    stream.signal.addEventListener('abort', () => (isReleased = true));
    await stream.message({ ready: true });
    await more.promise;
    await stream.message({ events: [{ kind: 'move', path: '/a', to: '/b' }] });
    await stream.message({ overflow: true });
    throw new PlatformError('sandbox_ended', 'stopped');
  });
  const asking = fixture.ask('GET', `${path}/watch?path=/&recursive=true`);
  await expect.poll(() => fixture.edge.calls.length).toBe(1);
  for (let second = 0; second < 40; second++) await clock.advance(1000);
  more.resolve(undefined);
  const lines = (await asking).text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as unknown);
  const keepalive = { keepalive: true };
  expect(lines).toContainEqual(keepalive);
  expect(lines.filter((line) => JSON.stringify(line) !== JSON.stringify(keepalive))).toEqual([
    { ready: true },
    { events: [{ kind: 'move', path: '/a', to: '/b' }] },
    { overflow: true },
    { error: { code: 'sandbox_ended', message: 'stopped', details: {} } },
  ]);
  fixture.edge.on('file.watch', async (_params, stream: WireServerStream) => {
    isReleased = false;
    stream.signal.addEventListener('abort', () => (isReleased = true));
    await stream.message({ ready: true });
    await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
  });
  const controller = new AbortController();
  const second = fixture.ask('GET', `${path}/watch?path=/`, { signal: controller.signal }).catch(() => undefined);
  await expect.poll(() => fixture.edge.calls.length).toBe(2);
  controller.abort();
  await second;
  await expect.poll(() => isReleased).toBe(true);
});

describe('trees', () => {
  test('come and go as archives', async () => {
    fixture.edge.on('tree.read', async (_params, stream) => {
      await stream.write(content);
      await stream.write(content);
      return { entries: 1 };
    });
    const got = await fixture.ask('GET', `${path}/tree?path=/d&user=bin`);
    expect([got.status, got.text, got.headers['content-type']]).toEqual([
      200,
      '01234567890123456789',
      'application/x-tar',
    ]);
    const chunks = takeWrites('tree.write', { entries: 1 });
    const put = await fixture.ask('PUT', `${path}/tree?path=/d`, {
      body: content,
      headers: { 'content-type': 'application/x-tar' },
    });
    expect(put.status).toBe(204);
    expect(Buffer.concat(chunks)).toEqual(content);
  });

  test('of nothing are empty archives, and errors have a status', async () => {
    fixture.edge.on('tree.read', () => Promise.resolve({ entries: 0 }));
    expect((await fixture.ask('GET', `${path}/tree?path=/d`)).status).toBe(200);
    fixture.edge.on('tree.read', () => Promise.reject(new PlatformError('not_directory', 'no')));
    expect((await fixture.ask('GET', `${path}/tree?path=/d`)).error.code).toBe('not_directory');
    fixture.edge.on('tree.write', () =>
      Promise.reject(new PlatformError('archive_unsafe', 'no', { details: { entry: '../x' } })),
    );
    const put = await fixture.ask('PUT', `${path}/tree?path=/d`, { body: content });
    expect([put.status, put.error.code, put.error.details]).toEqual([422, 'archive_unsafe', { entry: '../x' }]);
  });
});

describe('signed links', () => {
  const sign = async (json: Params): Promise<string> => {
    const answer = await fixture.ask('POST', `${path}/sign`, { json });
    const { url, expiresAtMs } = answer.json<{ url: string; expiresAtMs: number }>();
    expect(expiresAtMs).toBe(clock.now() + Number(json.expiresInSeconds) * 1000);
    const { origin, pathname, search } = new URL(url);
    expect(origin).toBe(`http://127.0.0.1:${fixture.port}`);
    return pathname + search;
  };

  test('open one file for one operation without a key, until they expire', async () => {
    serveFile(content);
    const chunks = takeWrites('file.write', entryOf());
    const read = await sign({ operation: 'read', path: '/a b&c', user: 'bin', expiresInSeconds: 60 });
    expect((await fixture.ask('GET', read, { key: null })).text).toBe('0123456789');
    expect(fixture.edge.last('file.read')).toEqual({ sandboxId: fixture.sandboxId, path: '/a b&c', user: 'bin' });
    expect((await fixture.ask('GET', read, { key: null, headers: { range: 'bytes=1-2' } })).text).toBe('12');
    const write = await sign({ operation: 'write', path: '/w', expiresInSeconds: 1 });
    expect((await fixture.ask('PUT', write, { key: null, body: content })).status).toBe(200);
    expect(Buffer.concat(chunks)).toEqual(content);
    await clock.advance(1000);
    const late = await fixture.ask('PUT', write, { key: null, body: content });
    expect([late.status, late.error.code]).toEqual([403, 'link_expired']);
    expect((await fixture.ask('GET', read, { key: null })).status).toBe(200);
  });

  test('are good for nothing else', async () => {
    serveFile(content);
    takeWrites('file.write', entryOf());
    const read = await sign({ operation: 'read', path: '/a', expiresInSeconds: 60 });
    const altered = [
      ['PUT', read],
      ['GET', read.replace('path=%2Fa', 'path=%2Fb')],
      ['GET', `${read}&user=root`],
      ['GET', read.replace(/expires=\d+/, 'expires=99999999999999')],
      ['GET', read.replace(fixture.sandboxId, newSandboxId())],
      ['GET', `${read}&offset=1`],
      ['GET', read.replace(/sig=.{4}/, 'sig=AAAA')],
      ['GET', read.replace(/sig=.*/, 'sig=')],
    ] as const;
    for (const [method, url] of altered) {
      const answer = await fixture.ask(method, url, { key: null });
      expect([method, url, answer.status, answer.error.code]).toEqual([method, url, 403, 'link_invalid']);
    }
    expect((await fixture.ask('GET', read.replace('/files?', '/files/stat?'), { key: null })).error.code).toBe(
      'unauthenticated',
    );
    expect((await fixture.ask('GET', read.replace(/&sig=.*/, ''), { key: null })).error.code).toBe('unauthenticated');
  });

  test('are asked for with care', async () => {
    for (const json of [
      { operation: 'delete', path: '/a', expiresInSeconds: 1 },
      { operation: 'read', path: '/a', expiresInSeconds: 604_801 },
      { operation: 'read', path: '/a' },
    ]) {
      expect((await fixture.ask('POST', `${path}/sign`, { json })).error.code).toBe('invalid_argument');
    }
  });
});
