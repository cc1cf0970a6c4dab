import { mkdir, open, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ByteString, ImageWriter } from '@dsec/erofs';
import { expect, it } from 'vitest';
import { testPlace } from '../build.fixture.ts';
import { fileOutput } from '../file-output.ts';
import { unknownLower } from '../lower-tree.ts';
import { tarOf } from '../tar/tar.fixture.ts';
import { choose, copyTree, CopyCount, digestOf } from './copy-step.ts';
import { DiskTree } from './disk-tree.ts';
import { Dockerignore } from './dockerignore.ts';

const name = ByteString.fromText('file');

it.each([
  ['a file', false, Buffer.from('before'), Buffer.from('behind')],
  ['an archive', true, tarOf({ name: 'in', content: 'before' }), tarOf({ name: 'in', content: 'behind' })],
])('%s that is not what the step is named for is not copied', async (_what, unpacks, before, after) => {
  await using place = await testPlace();
  const source = join(place.path, 'file');
  await writeFile(source, before);
  const node = await new DiskTree(place.path).lookup([name]);
  if (node?.kind !== 'file') throw new Error('a file was expected');
  const sources = [{ name, node }];
  const { digests } = await digestOf(sources);
  await using metadata = await open(join(place.path, 'metadata'), 'wx+');
  await using data = await open(join(place.path, 'data'), 'wx+');
  const writer = new ImageWriter(fileOutput(metadata), { data: fileOutput(data) });
  const plan = { sources, digests, destination: '/', owner: undefined, mode: undefined, unpacks };
  const copied = async () => [...(await copyTree(unknownLower, plan, writer)).children.keys()];
  expect(await copied()).toEqual([ByteString.fromText(unpacks ? 'in' : 'file')]);
  await writeFile(source, after);
  await expect(copied()).rejects.toMatchObject({ code: 'build_failed', details: { reason: 'context_changed' } });
});

it('counts a directory as often as links lead to it', async () => {
  await using place = await testPlace();
  await mkdir(join(place.path, 'in'));
  await writeFile(join(place.path, 'in/file'), 'x');
  for (const link of ['link-1', 'link-2']) await symlink('in', join(place.path, link));
  const tree = new DiskTree(place.path);
  const chosen = async (count: CopyCount): Promise<number> => {
    const found = await tree.find(['link-*']);
    for (const each of found) await choose(tree, each, Dockerignore.none, count);
    return found.length;
  };
  expect(await chosen(new CopyCount(4))).toBe(2);
  await expect(chosen(new CopyCount(3))).rejects.toMatchObject({ reason: 'too_many_entries' });
});
