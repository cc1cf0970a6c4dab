import { mkdir, rename, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ByteString } from '@dsec/erofs';
import { describe, expect, it } from 'vitest';
import { testPlace } from '../build.fixture.ts';
import { DiskTree } from './disk-tree.ts';

const path = (...names: string[]) => names.map(ByteString.fromText);

describe('a directory of the machine', () => {
  it('gives no bytes of a file that a link took the way to', async () => {
    await using place = await testPlace();
    const context = join(place.path, 'context');
    for (const name of ['context', 'secret']) {
      await mkdir(join(place.path, name, 'deep'), { recursive: true });
      await writeFile(join(place.path, name, 'deep/file'), name);
    }
    const node = await new DiskTree(context).lookup(path('deep', 'file'));
    if (node?.kind !== 'file') throw new Error('a file was expected');
    const read = async (): Promise<string> => Buffer.concat(await Array.fromAsync(node.bytes())).toString();
    expect(await read()).toBe('context');
    await rename(join(context, 'deep'), join(context, 'was-deep'));
    await symlink('../secret/deep', join(context, 'deep'));
    await expect(read()).rejects.toMatchObject({ code: 'build_failed', details: { reason: 'context_changed' } });
  });

  it('has what is there, with names that are no text, and none of its sockets and devices', async () => {
    await using place = await testPlace();
    const raw = Buffer.from([0x61, 0xff]);
    await writeFile(Buffer.concat([Buffer.from(`${place.path}/`), raw]), 'x');
    const tree = new DiskTree(place.path);
    const names: string[] = [];
    for await (const { name } of tree.entries([])) names.push(name);
    expect(names.sort()).toEqual([raw.toString('latin1'), 'layers']);
    expect(await tree.lookup([ByteString.fromBytes(raw)])).toMatchObject({ kind: 'file', sizeBytes: 1 });
    expect(await tree.lookup(path('none', 'x'))).toBeUndefined();
    expect(await new DiskTree('/dev').lookup(path('null'))).toBeUndefined();
  });
});
