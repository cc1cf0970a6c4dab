import { mkdir, mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeDurably } from './durable.ts';

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'kit-durable-'));
});
afterAll(() => rm(directory, { recursive: true }));

test('replaces a file with the mode and owner that were asked for and leaves nothing beside it', async () => {
  const path = join(directory, 'a');
  await writeDurably(path, 'old');
  await writeDurably(path, 'new', { mode: 0o644, owner: { uid: 64_899, gid: 64_898 } });
  expect(await readFile(path, 'utf8')).toBe('new');
  const { mode, uid, gid } = await stat(path);
  expect([mode & 0o7777, uid, gid]).toEqual([0o644, 64_899, 64_898]);
  expect(await readdir(directory)).toEqual(['a']);
});

test('writers of one file at once each write the whole of it, and the last to ask wins', async () => {
  const own = join(directory, 'contended');
  await mkdir(own);
  const path = join(own, 'a');
  const contents = Array.from({ length: 20 }, (_, index) => String.fromCharCode(97 + index).repeat(100_000 - index));
  const writing = contents.map((content, index) =>
    // One that fails is in nobody's way.
    writeDurably(path, content, index === 7 ? { owner: { uid: -5, gid: 0 } } : {}),
  );
  const outcomes = await Promise.allSettled(writing);
  expect(outcomes.flatMap(({ status }, index) => (status === 'rejected' ? [index] : []))).toEqual([7]);
  expect(await readFile(path, 'utf8')).toBe(contents.at(-1));
  expect(await readdir(own)).toEqual(['a']);
});

test('keeps the old file and leaves nothing when it fails', async () => {
  const path = join(directory, 'b');
  await writeDurably(join(directory, 'a'), 'kept');
  await expect(writeDurably(join(path, 'nowhere'), 'x')).rejects.toMatchObject({ code: 'ENOENT' });
  await expect(writeDurably(directory, 'x')).rejects.toMatchObject({ code: 'EISDIR' });
  expect((await readdir(directory)).filter((name) => name.includes('tmp'))).toEqual([]);
  expect(await readFile(join(directory, 'a'), 'utf8')).toBe('kept');
});
