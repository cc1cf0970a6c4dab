import { lacking } from '@dsec/testkit';
import { chown, lchown, lstat, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { dropSets, takeLayers } from './owned-by-root.ts';

const OTHER = 64_803;
const missing = lacking('root');
if (missing !== undefined) process.stderr.write(`skipped: layers that are not root's: ${missing}\n`);

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-owned-'));
});
afterEach(() => rm(directory, { recursive: true }));

/** A directory with one layer of another user, and a file outside that a link in it leads to. */
async function layer(): Promise<{ readonly files: readonly string[]; readonly outside: string }> {
  const path = join(directory, 'layers', 'a'.repeat(64));
  const outside = join(directory, 'outside');
  await mkdir(path, { recursive: true });
  await writeFile(join(path, 'data'), 'bytes');
  await writeFile(outside, '');
  await symlink(outside, join(path, 'link'));
  for (const each of [path, join(path, 'data'), outside]) await chown(each, OTHER, OTHER);
  await lchown(join(path, 'link'), OTHER, OTHER);
  return { files: [path, join(path, 'data'), join(path, 'link')], outside };
}

const ownersOf = (paths: readonly string[]): Promise<number[]> =>
  Promise.all(paths.map(async (path) => (await lstat(path)).uid));

describe.skipIf(missing !== undefined)('what others could still change', () => {
  it("is root's afterwards when it is a layer, and nothing that it leads to", async () => {
    const { files, outside } = await layer();
    await chown(join(directory, 'layers'), 0, OTHER);
    await takeLayers(join(directory, 'layers'));
    expect(await ownersOf(files)).toEqual([0, 0, 0]);
    expect(await ownersOf([outside])).toEqual([OTHER]);
  });

  it('is gone when it is a set', async () => {
    const { outside } = await layer();
    await chown(join(directory, 'layers'), OTHER, OTHER);
    await dropSets(join(directory, 'layers'));
    expect(await readdir(join(directory, 'layers'))).toEqual([]);
    expect(await ownersOf([outside])).toEqual([OTHER]);
  });

  it('is not looked for where only root writes', async () => {
    const { files } = await layer();
    await takeLayers(join(directory, 'layers'));
    await dropSets(join(directory, 'layers'));
    expect(await ownersOf(files)).toEqual([OTHER, OTHER, OTHER]);
  });
});
