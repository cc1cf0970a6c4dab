import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { EnvironmentImage } from '@dsec/contract';
import { type ByteSource, ByteString, fileSource, ImageReader } from '@dsec/erofs';
import { run, SeededRandom, SystemClock } from '@dsec/kit';
import { mountedFiles } from '@dsec/testkit';
import { type BuildContext, layerDataPath, layerImagePath } from './index.ts';

export const clock = new SystemClock();
export const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

export const tool = (program: string, ...args: string[]) =>
  run([program, ...args], { clock, env: { PATH, LC_ALL: 'C.UTF-8' }, timeoutMs: 60_000 });

export interface TestPlace extends AsyncDisposable {
  readonly path: string;
  readonly context: BuildContext;
  /** What is in the directory of layers. */
  layers(): Promise<string[]>;
}

export const testPlace = async (): Promise<TestPlace> => {
  const path = await mkdtemp(join(tmpdir(), 'dsec-environment-'));
  const layersDirectory = join(path, 'layers');
  await mkdir(layersDirectory);
  return {
    path,
    context: { layersDirectory, clock, random: new SeededRandom(1) },
    layers: () => readdir(layersDirectory),
    [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }),
  };
};

/** A script that stands where mmdebstrap is called. */
export const script = async (directory: string, body: string): Promise<string> => {
  const path = join(directory, 'program');
  await writeFile(path, `#!/bin/sh\n${body}\n`, { mode: 0o755 });
  return path;
};

export interface Opened extends AsyncDisposable {
  readonly image: ImageReader;
  text(path: string): Promise<string | undefined>;
  paths(): Promise<string[]>;
}

/** Opens the layer of a built environment. */
export const opened = async ({ layersDirectory }: BuildContext, built: EnvironmentImage): Promise<Opened> => {
  const digest = built.layers[0] ?? '';
  await using files = new AsyncDisposableStack();
  const sourceOf = async (path: string): Promise<ByteSource> => fileSource(files.use(await open(path, 'r')));
  const data = await sourceOf(layerDataPath(layersDirectory, digest)).catch(() => undefined);
  const metadata = await sourceOf(layerImagePath(layersDirectory, digest));
  const image = await ImageReader.open(metadata, data === undefined ? {} : { data });
  const held = files.move();
  return {
    image,
    text: async (path) => {
      const inode = await image.lookup(ByteString.fromText(path), { followLast: false });
      if (inode === undefined) return undefined;
      if (inode.kind !== 'file') return inode.kind;
      const parts: Buffer[] = [];
      for await (const part of image.read(inode)) parts.push(part);
      return Buffer.concat(parts).toString('latin1');
    },
    paths: async () => {
      const paths: string[] = [];
      for await (const entry of image.walk()) paths.push(entry.path);
      return paths;
    },
    [Symbol.asyncDispose]: () => held.disposeAsync(),
  };
};

/** Has the kernel mount a layer. */
export const mounted = (
  { layersDirectory }: BuildContext,
  built: EnvironmentImage,
  at: string,
): Promise<AsyncDisposable> => {
  const digest = built.layers[0] ?? '';
  const data = layerDataPath(layersDirectory, digest);
  return mountedFiles(layerImagePath(layersDirectory, digest), existsSync(data) ? data : undefined, at);
};

/** Has the kernel mount all layers of an environment, one above the other. */
export const overlaid = async (
  context: BuildContext,
  built: EnvironmentImage,
  at: string,
): Promise<AsyncDisposable & { readonly path: string }> => {
  await using mounts = new AsyncDisposableStack();
  const lowers: string[] = [];
  for (const [index, digest] of built.layers.entries()) {
    const lower = `${at}-${index}`;
    mounts.use(await mounted(context, { ...built, layers: [digest] }, lower));
    lowers.push(lower);
  }
  const [only] = lowers;
  if (only !== undefined && lowers.length === 1) {
    const held = mounts.move();
    return { path: only, [Symbol.asyncDispose]: () => held.disposeAsync() };
  }
  await mkdir(at);
  await tool('mount', '-t', 'overlay', 'overlay', '-o', `ro,lowerdir=${lowers.join(':')}`, at);
  mounts.defer(async () => {
    await tool('umount', at);
  });
  const held = mounts.move();
  return { path: at, [Symbol.asyncDispose]: () => held.disposeAsync() };
};

/** Has fsck.erofs judge a layer. */
export const checkLayer = async ({ layersDirectory }: BuildContext, built: EnvironmentImage): Promise<void> => {
  const digest = built.layers[0] ?? '';
  const data = layerDataPath(layersDirectory, digest);
  const device = existsSync(data) ? [`--device=${data}`] : [];
  await tool('fsck.erofs', ...device, layerImagePath(layersDirectory, digest));
};
