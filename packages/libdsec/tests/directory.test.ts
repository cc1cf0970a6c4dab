import { chmod, lstat, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pack, type Header } from 'tar-stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { packDirectory } from '../src/platform/pack-directory.ts';
import { unpackDirectory } from '../src/platform/unpack-directory.ts';

let root = '';
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'dsec-tree-'));
});
afterEach(async () => {
  await rm(root, { recursive: true, force: true });
});

/** Everything below a directory: kind, mode and content. */
async function treeOf(path: string, below = ''): Promise<readonly string[]> {
  const seen: string[] = [];
  for (const name of (await readdir(join(path, below))).toSorted()) {
    const relative = join(below, name);
    const info = await lstat(join(path, relative));
    const mode = (info.mode & 0o777).toString(8);
    if (info.isSymbolicLink()) seen.push(`${relative} -> ${await readlink(join(path, relative))}`);
    else if (info.isDirectory()) seen.push(`${relative}/ ${mode}`, ...(await treeOf(path, relative)));
    else seen.push(`${relative} ${mode} ${await readFile(join(path, relative), 'base64')}`);
  }
  return seen;
}

async function* archiveOf(
  ...entries: readonly (Partial<Header> & { readonly name: string; readonly content?: string })[]
): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  const archive = pack();
  for (const { content, ...header } of entries) {
    if (content === undefined) archive.entry(header);
    else archive.entry(header, content);
  }
  archive.finalize();
  for await (const chunk of archive as AsyncIterable<Uint8Array<ArrayBuffer>>) yield chunk;
}

test('a tree comes back as it was: links, x bits, empty directories, dot files, odd names, closed directories', async () => {
  const from = join(root, 'from');
  await mkdir(join(from, 'sub/empty'), { recursive: true });
  await writeFile(join(from, '.hidden'), 'dot');
  await writeFile(join(from, 'run.sh'), '#!/bin/sh\n', { mode: 0o755 });
  await writeFile(join(from, 'nothing'), '');
  await writeFile(join(from, 'big'), Buffer.alloc(3_000_000, 'b'));
  for (const name of ['🤣.txt', 'a b.txt', 'a\nb', '-rf', `q'"$x`, 'n'.repeat(255), 'e\u0301']) {
    await writeFile(join(from, 'sub', name), name);
  }
  await symlink('../run.sh', join(from, 'sub/up'));
  await symlink('/no/where', join(from, 'dangling'));
  await writeFile(join(from, 'sub/secret'), 's');
  await chmod(join(from, 'sub/secret'), 0);
  await chmod(join(from, 'sub'), 0o555);
  const to = join(root, 'to');
  await unpackDirectory((await packDirectory(from)) as AsyncIterable<Uint8Array<ArrayBuffer>>, to);
  expect(await treeOf(to)).toEqual(await treeOf(from));
});

test('a directory that is none is refused before anything is sent', async () => {
  await writeFile(join(root, 'file'), '');
  await expect(packDirectory(join(root, 'file'))).rejects.toMatchObject({ code: 'not_directory' });
  await expect(packDirectory(join(root, 'none'))).rejects.toMatchObject({ code: 'file_not_found' });
});

test('a hostile tar changes nothing outside its directory', async () => {
  await mkdir(join(root, 'outside'));
  await writeFile(join(root, 'outside/file'), 'untouched');
  const outside = join(root, 'outside');
  const attacks = [
    archiveOf({ name: '../outside/file', content: 'x' }),
    archiveOf({ name: '/tmp/absolute', content: 'x' }),
    archiveOf({ name: 'a/../../outside/new', content: 'x' }),
    archiveOf({ name: 'd', type: 'symlink', linkname: outside }, { name: 'd/file', content: 'x' }),
    archiveOf({ name: 'd', type: 'symlink', linkname: outside }, { name: 'd/', type: 'directory' }),
    archiveOf({ name: 'd', type: 'symlink', linkname: outside }, { name: 'h', type: 'link', linkname: 'd/file' }),
    archiveOf({ name: 'h', type: 'link', linkname: '../outside/file' }),
    archiveOf(
      { name: 'l', type: 'symlink', linkname: join(outside, 'file') },
      { name: 'h', type: 'link', linkname: 'l' },
    ),
    archiveOf({ name: 'null', type: 'character-device', devmajor: 1, devminor: 3 }),
    archiveOf({ name: 'pipe', type: 'fifo' }),
  ];
  for (const [index, attack] of attacks.entries()) {
    await expect(unpackDirectory(attack, join(root, `t${index}`))).rejects.toMatchObject({ code: 'archive_unsafe' });
  }
  expect(await treeOf(outside)).toEqual([`file 644 ${Buffer.from('untouched').toString('base64')}`]);
});

test('a file over a symlink replaces the link and leaves alone what it leads to', async () => {
  await writeFile(join(root, 'victim'), 'untouched');
  const tar = archiveOf(
    { name: 'l', type: 'symlink', linkname: join(root, 'victim') },
    { name: 'l', content: 'new', mode: 0o6755 },
  );
  await unpackDirectory(tar, join(root, 'to'));
  expect(await readFile(join(root, 'victim'), 'utf8')).toBe('untouched');
  expect((await lstat(join(root, 'to/l'))).mode & 0o7777).toBe(0o755);
});

test('of two names that differ only in bytes that are no UTF-8 none is lost in silence', async () => {
  const odd = (): AsyncIterable<Uint8Array<ArrayBuffer>> => archiveOf({ name: 'f\ufffd', content: 'one' });
  await unpackDirectory(odd(), join(root, 'one'));
  expect(await readFile(join(root, 'one/f\ufffd'), 'utf8')).toBe('one');
  const two = archiveOf({ name: 'f\ufffd', content: 'one' }, { name: 'f\ufffd', content: 'two' });
  await expect(unpackDirectory(two, join(root, 'two'))).rejects.toMatchObject({ code: 'file_error' });
});

test('what the local file system refuses is told as such, with the file', async () => {
  await mkdir(join(root, 'd/f'), { recursive: true });
  await expect(unpackDirectory(archiveOf({ name: 'f', content: 'x' }), join(root, 'd'))).rejects.toMatchObject({
    code: 'file_error',
    details: { path: join(root, 'd/f') },
  });
  await mkdir(join(root, 'from'));
  await writeFile(Buffer.concat([Buffer.from(join(root, 'from/')), Buffer.of(0xff)]), 'x');
  const packing = async (): Promise<void> => {
    for await (const chunk of await packDirectory(join(root, 'from'))) void chunk;
  };
  await expect(packing()).rejects.toMatchObject({ code: 'file_error', details: { errno: 'ENOENT' } });
});

test('a damaged tar, one that breaks off and one that is too large are told apart', async () => {
  const damaged = (async function* () {
    yield Uint8Array.from(Buffer.alloc(1024, 'x'));
  })();
  await expect(unpackDirectory(damaged, join(root, 'a'))).rejects.toMatchObject({ code: 'archive_invalid' });
  const broken = (async function* () {
    for await (const chunk of archiveOf({ name: 'f', content: 'x'.repeat(9000) })) {
      yield chunk;
      throw new Error('the connection broke');
    }
  })();
  await expect(unpackDirectory(broken, join(root, 'b'))).rejects.toThrow('the connection broke');
  const large = archiveOf({ name: 'f', content: 'x'.repeat(9000) });
  await expect(unpackDirectory(large, join(root, 'c'), 4096)).rejects.toMatchObject({ code: 'request_too_large' });
});
