import { lstat, mkdir, mkdtemp, readdir, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { run, SystemClock, SystemRandom } from '@dsec/kit';
import { lacking } from '@dsec/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DirectoryStore } from './directory-store.ts';
import { readObject } from './object-store.ts';
import { objectStoreConformance } from './object-store-conformance.ts';
import { fileError } from './store-error.ts';

let base: string;
let count = 0;
beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'blob-'));
});
afterAll(() => rm(base, { recursive: true }));

const random = new SystemRandom();
async function newRoot(): Promise<string> {
  const root = join(base, String(count++));
  await mkdir(root);
  return root;
}

objectStoreConformance('directory', async () => ({
  store: new DirectoryStore({ root: await newRoot(), random }),
  [Symbol.asyncDispose]: () => Promise.resolve(),
}));

describe('DirectoryStore', () => {
  test('follows no symbolic link below its root, but the root may be one', async () => {
    const outside = await newRoot();
    const real = await newRoot();
    await writeFile(join(outside, 'secret'), 'secret');
    await symlink(outside, join(real, 'packs'));
    await symlink(join(outside, 'secret'), join(real, 'link'));
    const root = join(base, 'root-link');
    await symlink(real, root);
    const store = new DirectoryStore({ root, random });
    const refused = { code: 'blob_unavailable' };
    await expect(store.get('packs/secret')).rejects.toMatchObject(refused);
    await expect(store.head('packs/secret')).rejects.toMatchObject(refused);
    await expect(store.put('packs/new', Buffer.from('x'))).rejects.toMatchObject(refused);
    await expect(store.delete('packs/secret')).rejects.toMatchObject(refused);
    await expect(store.get('link')).rejects.toMatchObject(refused);
    expect(await store.head('link')).toBeUndefined();
    expect((await store.list('')).objects).toEqual([]);
    await store.put('link', Buffer.from('own'));
    expect(await readdir(outside)).toEqual(['secret']);
    expect((await lstat(join(real, 'link'))).isSymbolicLink()).toBe(false);
    expect(await readObject(store, 'link', { maxBytes: 10 })).toEqual(Buffer.from('own'));
  });

  test('is not held up by a pipe in the place of an object', async () => {
    const root = await newRoot();
    await run(['/usr/bin/mkfifo', join(root, 'pipe')], { clock: new SystemClock(), timeoutMs: 10_000 });
    const store = new DirectoryStore({ root, random });
    expect(await store.head('pipe')).toBeUndefined();
    await expect(readObject(store, 'pipe', { maxBytes: 10 })).rejects.toMatchObject({ code: 'blob_unavailable' });
  });

  test('removes directories with their last object, and puts beside such a removal all the same', async () => {
    const root = await newRoot();
    const store = new DirectoryStore({ root, random });
    await store.put('layers/a/one', Buffer.from('1'));
    await store.put('layers/a/two', Buffer.from('2'));
    await store.delete('layers/a/one');
    expect(await readdir(join(root, 'layers'))).toEqual(['a']);
    await store.delete('layers/a/two');
    expect(await readdir(join(root, 'layers'))).toEqual([]);
    const turns = async (key: string): Promise<void> => {
      for (let turn = 0; turn < 50; turn++) {
        await store.put(key, Buffer.from(key));
        expect(await readObject(store, key, { maxBytes: 100 })).toEqual(Buffer.from(key));
        await store.delete(key);
      }
    };
    await Promise.all(['one', 'two', 'three'].map((name) => turns(`layers/a/${name}`)));
    expect(await readdir(join(root, 'layers'))).toEqual([]);
  });

  test('says that it is unavailable when its root is gone', async () => {
    const store = new DirectoryStore({ root: join(base, 'none'), random, name: 'shared' });
    const error = { code: 'blob_unavailable', details: { store: 'shared', reason: 'ENOENT' } };
    await expect(store.get('a')).rejects.toMatchObject(error);
    await expect(store.put('a', Buffer.from('a'))).rejects.toMatchObject(error);
    await expect(store.list('')).rejects.toMatchObject(error);
  });

  test('leaves temporary files of killed puts out of listings and removes them once they are old', async () => {
    const root = await newRoot();
    const store = new DirectoryStore({ root, random });
    await store.put('a', Buffer.from('a'));
    const unfinished = join(root, '.unfinished');
    expect(await readdir(unfinished)).toEqual([]);
    for (const [name, seconds] of [
      ['old', 1000],
      ['new', 2000],
    ] as const) {
      await writeFile(join(unfinished, name), 'half');
      await utimes(join(unfinished, name), seconds, seconds);
    }
    expect((await store.list('')).objects.map(({ key }) => key)).toEqual(['a']);
    expect(await store.removeUnfinished(1_500_000)).toBe(1);
    expect(await readdir(unfinished)).toEqual(['new']);
  });

  test.for([
    ['ENOSPC', 'blob_full'],
    ['EDQUOT', 'blob_full'],
    ['EIO', 'blob_unavailable'],
    ['ESTALE', 'blob_unavailable'],
    ['EACCES', 'blob_unavailable'],
    ['ETIMEDOUT', 'blob_unavailable'],
  ])('takes %s for %s', ([errno, code]) => {
    const cause = Object.assign(new Error('of the kernel'), { code: errno });
    expect(fileError('shared', cause)).toMatchObject({ code, cause, details: { store: 'shared', reason: errno } });
  });

  const reason = lacking('root');
  test.skipIf(reason !== undefined)(
    `says that a disk is full, and goes on once there is room${reason ?? ''}`,
    async () => {
      const root = await newRoot();
      const clock = new SystemClock();
      await run(['/usr/bin/mount', '-t', 'tmpfs', '-o', 'size=1m', 'dsec-test', root], { clock, timeoutMs: 10_000 });
      try {
        const store = new DirectoryStore({ root, random });
        await store.put('small', Buffer.alloc(300_000, 1));
        await expect(store.put('large', Buffer.alloc(2_000_000, 1))).rejects.toMatchObject({
          code: 'blob_full',
          details: { store: 'directory', reason: 'ENOSPC' },
        });
        expect(await readdir(join(root, '.unfinished'))).toEqual([]);
        expect((await store.list('')).objects.map(({ key }) => key)).toEqual(['small']);
        await store.put('large', Buffer.alloc(600_000, 1));
      } finally {
        await run(['/usr/bin/umount', root], { clock, timeoutMs: 10_000 });
      }
    },
  );
});
