/** The judges of what the writer writes: fsck.erofs and the kernel's own mount. */
import { lstat, mkdir, readdir, readFile, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { mountedFiles } from '@dsec/testkit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ByteString, defaultMetadata, type Metadata, newDirectory } from './index.ts';
import { chunkedImageOf, imageOf, mounted, saved, temporaryDirectory, tool } from './image.fixture.ts';
import { buildTree, expectedLinks, flatten, type Model, rootModel } from './tree-model.fixture.ts';

const S_IFMT: Record<Model['kind'], number> = {
  file: 0o100000,
  directory: 0o040000,
  symlink: 0o120000,
  'char-device': 0o020000,
  'block-device': 0o060000,
  fifo: 0o010000,
  socket: 0o140000,
};

/** Node's paths may be bytes; names need not be UTF-8. */
const at = (directory: string, path: string): Buffer =>
  Buffer.concat([Buffer.from(directory), Buffer.from('/'), Buffer.from(path, 'latin1')]);

const deviceNumber = (major: number, minor: number): bigint =>
  // glibc's makedev
  (BigInt(major & 0xfff) << 8n) | BigInt(minor & 0xff) | (BigInt(minor & 0xfff00) << 12n);

const compare = async (directory: string, root: Extract<Model, { kind: 'directory' }>): Promise<void> => {
  const links = expectedLinks(root);
  for (const [path, model] of flatten(root)) {
    const place = at(directory, path);
    const info = await lstat(place, { bigint: true });
    const { metadata } = model;
    expect(Number(info.mode)).toBe(S_IFMT[model.kind] | metadata.mode);
    expect([Number(info.uid), Number(info.gid)]).toEqual([metadata.uid, metadata.gid]);
    expect(info.mtimeNs).toBe(BigInt(metadata.mtime.seconds) * 1_000_000_000n + BigInt(metadata.mtime.nanoseconds));
    expect(Number(info.nlink)).toBe(links.get(model));
    switch (model.kind) {
      case 'directory': {
        const names = await readdir(place, { encoding: 'buffer' });
        expect(new Set(names.map((name) => name.toString('latin1')))).toEqual(new Set(model.children.keys()));
        break;
      }
      case 'file':
        expect((await readFile(place)).equals(model.content)).toBe(true);
        break;
      case 'symlink':
        expect((await readlink(place, { encoding: 'buffer' })).toString('latin1')).toBe(model.target);
        break;
      case 'char-device':
      case 'block-device':
        expect(info.rdev).toBe(deviceNumber(model.major, model.minor));
        break;
      default:
        break;
    }
  }
};

describe('an image that was written here', () => {
  it('is the same tree for fsck.erofs and the kernel, whatever the tree', { timeout: 120_000 }, async () => {
    await using place = await temporaryDirectory();
    const mountPoint = join(place.path, 'mnt');
    await mkdir(mountPoint);
    let runs = 0;
    await fc.assert(
      fc.asyncProperty(rootModel, async (root) => {
        // A file of its own for each run: a loop device that is still being detached would go on showing what the file held before.
        runs += 1;
        const image = join(place.path, `${runs}.erofs`);
        await saved(await imageOf((store) => buildTree(root, store)), image);
        expect((await tool('fsck.erofs', image)).exitCode).toBe(0);
        await using _ = await mounted(image, mountPoint);
        await compare(mountPoint, root);
      }),
      { numRuns: 25 },
    );
  });

  it('is the same tree for both, whatever the tree, with its data in a file of their own', {
    timeout: 120_000,
  }, async () => {
    await using place = await temporaryDirectory();
    const mountPoint = join(place.path, 'mnt');
    await mkdir(mountPoint);
    let runs = 0;
    await fc.assert(
      fc.asyncProperty(rootModel, async (root) => {
        runs += 1;
        const image = join(place.path, `${runs}.erofs`);
        const chunked = await chunkedImageOf((store) => buildTree(root, store));
        await saved(chunked.image, image);
        const data = chunked.data.length === 0 ? undefined : `${image}.data`;
        if (data !== undefined) await saved(chunked.data, data);
        expect((await tool('fsck.erofs', ...(data === undefined ? [] : [`--device=${data}`]), image)).exitCode).toBe(0);
        await using _ = await mountedFiles(image, data, mountPoint);
        await compare(mountPoint, root);
      }),
      { numRuns: 25 },
    );
  });

  it('is sound wherever in a block its last inode ends', { timeout: 60_000 }, async () => {
    await using place = await temporaryDirectory();
    const image = join(place.path, 'image.erofs');
    for (let count = 1; count <= 64; count++) {
      for (const length of [20, 52]) {
        const root = newDirectory();
        for (let index = 0; index < count; index++) {
          const name = `${index}`.padEnd(index === 0 ? length : 4, 'n');
          root.children.set(ByteString.fromText(name), {
            kind: 'fifo',
            metadata: defaultMetadata(0o600),
            major: 0,
            minor: 0,
          });
        }
        await saved(await imageOf(() => Promise.resolve(root)), image);
        expect((await tool('fsck.erofs', image)).exitCode, `${count} inodes`).toBe(0);
      }
    }
  });

  it('lets the kernel find every name of a directory of many blocks', async () => {
    await using place = await temporaryDirectory();
    const image = join(place.path, 'image.erofs');
    const mountPoint = join(place.path, 'mnt');
    await mkdir(mountPoint);
    const names = Array.from({ length: 5000 }, (_, index) => `${(index * 7919) % 5000}-${'n'.repeat(index % 90)}`);
    await saved(
      await imageOf(async (store) => {
        const root = newDirectory();
        for (const name of names) {
          const data = await store(Buffer.from(name));
          root.children.set(ByteString.fromText(name), { kind: 'file', metadata: defaultMetadata(0o644), data });
        }
        return root;
      }),
      image,
    );
    await tool('fsck.erofs', image);
    await using _ = await mounted(image, mountPoint);
    for (const name of names) expect(await readFile(join(mountPoint, name), 'utf8')).toBe(name);
    await expect(lstat(join(mountPoint, '2500'))).rejects.toMatchObject({ code: 'ENOENT' });
    expect(await readdir(mountPoint)).toHaveLength(names.length);
  });

  it('carries extended attributes, file capabilities among them, to the kernel', async () => {
    await using place = await temporaryDirectory();
    const image = join(place.path, 'image.erofs');
    const mountPoint = join(place.path, 'mnt');
    await mkdir(mountPoint);
    // VFS_CAP_REVISION_2 with the effective bit: cap_net_raw=ep
    const capability = Buffer.from('0100000200200000000000000000000000000000', 'hex');
    const metadata: Metadata = {
      ...defaultMetadata(0o755),
      xattrs: new Map([
        [ByteString.fromText('security.capability'), capability],
        [ByteString.fromText('trusted.mark'), Buffer.from('of the host')],
        [ByteString.fromText('user.large'), Buffer.alloc(6000, 0x2e)],
      ]),
    };
    await saved(
      await imageOf(async (store) => {
        const root = newDirectory();
        const data = await store(Buffer.from('#!'));
        root.children.set(ByteString.fromText('ping'), { kind: 'file', metadata, data });
        return root;
      }),
      image,
    );
    await tool('fsck.erofs', image);
    await using _ = await mounted(image, mountPoint);
    const { stdout } = await tool('tar', '--xattrs', '--xattrs-include=*', '--format=pax', '-cC', mountPoint, 'ping');
    for (const [name, value] of metadata.xattrs) {
      const record = Buffer.concat([Buffer.from(` SCHILY.xattr.${name}=`), value, Buffer.from('\n')]);
      expect(stdout.includes(record), name).toBe(true);
    }
  });
});
