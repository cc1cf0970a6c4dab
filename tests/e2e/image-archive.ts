import { createHash } from 'node:crypto';
import { tarOf, type TarEntry } from './tar-archive.ts';

/** An image as `docker save` writes it: of one layer, and those `above` it. `damage` alters the first after it was described. */
export function imageArchive(
  entries: readonly TarEntry[],
  options: {
    readonly damage?: (layer: Buffer) => Buffer;
    readonly architecture?: string;
    /** How its processes run, over what the image says otherwise. */
    readonly config?: Readonly<Record<string, unknown>>;
    readonly above?: readonly (readonly TarEntry[])[];
  } = {},
): Buffer {
  const layers = [entries, ...(options.above ?? [])].map(tarOf);
  const names = layers.map((_, index) => (index === 0 ? 'layer.tar' : `layer-${index}.tar`));
  const config = JSON.stringify({
    architecture: options.architecture ?? 'amd64',
    os: 'linux',
    config: { Env: ['PATH=/bin', 'FROM_IMAGE=yes'], User: '1234', WorkingDir: '/srv', ...options.config },
    rootfs: {
      type: 'layers',
      diff_ids: layers.map((layer) => `sha256:${createHash('sha256').update(layer).digest('hex')}`),
    },
  });
  const manifest = JSON.stringify([{ Config: 'config.json', RepoTags: ['tiny:latest'], Layers: names }]);
  return tarOf([
    { name: 'config.json', content: config },
    ...layers.map((layer, index) => ({
      name: names[index] ?? '',
      content: index === 0 ? (options.damage?.(layer) ?? layer) : layer,
    })),
    { name: 'manifest.json', content: manifest },
  ]);
}
