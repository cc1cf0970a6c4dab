import { buildLayer, type BuildContext } from '@dsec/environment';
import { ByteString, newDirectory, type DirectoryNode } from '@dsec/erofs';
import { SystemRandom } from '@dsec/kit';
import type { EnvironmentImage } from '@dsec/libdsec';
import { join } from 'node:path';
import { clock } from './wait-for.ts';

const FILE = { mode: 0o755, uid: 0, gid: 0, mtime: { seconds: 0, nanoseconds: 0 }, xattrs: new Map() };

export interface LayerSpec {
  /** Contents by path, without a slash before it. */
  readonly files: Readonly<Record<string, string | Buffer>>;
  readonly env?: Readonly<Record<string, string>>;
  readonly workdir?: string;
}

/** Makes a layer of a few files where the server of the data directory finds it. */
export async function layerOfFiles(
  data: string,
  { files, env = {}, workdir = '' }: LayerSpec,
): Promise<EnvironmentImage> {
  const context: BuildContext = { layersDirectory: join(data, 'layers'), clock, random: new SystemRandom() };
  return buildLayer(context, async ({ writer }) => {
    const root = newDirectory();
    for (const [path, content] of Object.entries(files)) {
      const names = path.split('/');
      const directory = names.slice(0, -1).reduce(enter, root);
      const bytes = Buffer.from(content);
      const stored = await writer.store(bytes.length, once(bytes));
      directory.children.set(ByteString.fromText(names.at(-1) ?? ''), { kind: 'file', metadata: FILE, data: stored });
    }
    const config = { env, user: '', workdir, entrypoint: [], cmd: [], labels: {} };
    return { root, config, architecture: 'amd64', source: { kind: 'recipe', name: 'test' } };
  });
}

function enter(above: DirectoryNode, name: string): DirectoryNode {
  const key = ByteString.fromText(name);
  const known = above.children.get(key);
  if (known?.kind === 'directory') return known;
  const made = newDirectory();
  above.children.set(key, made);
  return made;
}

async function* once(bytes: Buffer): AsyncGenerator<Buffer> {
  yield await Promise.resolve(bytes);
}
