import { createHash } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { type TarItem, tarOf } from '../tar/tar.fixture.ts';

export const sha256 = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;

export type Packing = 'plain' | 'gzip' | 'zstd';

const packings: Record<Packing, { readonly type: string; readonly pack: (bytes: Buffer) => Buffer }> = {
  plain: { type: 'application/vnd.oci.image.layer.v1.tar', pack: (bytes) => bytes },
  gzip: { type: 'application/vnd.oci.image.layer.v1.tar+gzip', pack: (bytes) => gzipSync(bytes) },
  zstd: { type: 'application/vnd.oci.image.layer.v1.tar+zstd', pack: (bytes) => zstdCompressSync(bytes) },
};

export interface ImageSpec {
  /** Uncompressed archives, lowest first. */
  readonly layers: readonly Buffer[];
  readonly packing?: Packing;
  readonly architecture?: string;
  readonly config?: Readonly<Record<string, unknown>>;
  readonly name?: string;
}

/** The files of a layout, by name. */
export type LayoutFiles = Map<string, Buffer>;

const blobPath = (digest: string): string => `blobs/sha256/${digest.slice(7)}`;
const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));

/** This machine's architecture in OCI's words. */
export const architecture = process.arch === 'x64' ? 'amd64' : process.arch;

export const ociLayout = (...images: readonly ImageSpec[]): LayoutFiles => {
  const files: LayoutFiles = new Map([['oci-layout', json({ imageLayoutVersion: '1.0.0' })]]);
  const add = (bytes: Buffer, mediaType: string) => {
    const digest = sha256(bytes);
    files.set(blobPath(digest), bytes);
    return { mediaType, digest, size: bytes.length };
  };
  const manifests = images.map((image) => {
    const { type, pack } = packings[image.packing ?? 'gzip'];
    const config = add(json(configOf(image)), 'application/vnd.oci.image.config.v1+json');
    const layers = image.layers.map((tar) => add(pack(tar), type));
    const manifest = add(
      json({ schemaVersion: 2, mediaType: 'application/vnd.oci.image.manifest.v1+json', config, layers }),
      'application/vnd.oci.image.manifest.v1+json',
    );
    return {
      ...manifest,
      platform: { os: 'linux', architecture: image.architecture ?? architecture },
      ...(image.name === undefined ? {} : { annotations: { 'org.opencontainers.image.ref.name': image.name } }),
    };
  });
  files.set('index.json', json({ schemaVersion: 2, manifests }));
  return files;
};

/** The older form of `docker save`: plain layers in directories, equal ones as links. */
export const dockerArchive = (image: ImageSpec & { readonly tag: string }): Buffer => {
  const config = json(configOf(image));
  const configName = `${sha256(config).slice(7)}.json`;
  const items: TarItem[] = [{ name: configName, content: config }];
  const first = new Map<string, string>();
  const names = image.layers.map((tar, index) => {
    const name = `layer-${index}/layer.tar`;
    const digest = sha256(tar);
    const known = first.get(digest);
    if (known === undefined) {
      first.set(digest, name);
      items.push({ name, content: tar });
    } else {
      items.push({ name, type: '2', link: `../${known}` });
    }
    return name;
  });
  items.push({ name: 'manifest.json', content: json([{ Config: configName, RepoTags: [image.tag], Layers: names }]) });
  return tarOf(...items);
};

const configOf = (image: ImageSpec): unknown => ({
  architecture: image.architecture ?? architecture,
  os: 'linux',
  config: image.config ?? {},
  rootfs: { type: 'layers', diff_ids: image.layers.map(sha256) },
});

export const layoutArchive = (files: LayoutFiles): Buffer =>
  tarOf(...[...files].map(([name, content]) => ({ name, content })));

export const saveLayout = async (files: LayoutFiles, directory: string): Promise<string> => {
  for (const [name, content] of files) {
    const path = join(directory, name);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, content);
  }
  return directory;
};
