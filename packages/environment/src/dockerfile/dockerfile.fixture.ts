import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type EnvironmentImage, PlatformError } from '@dsec/contract';
import { ByteString, newDirectory } from '@dsec/erofs';
import { testPlace, type TestPlace } from '../build.fixture.ts';
import { buildLayer } from '../build-layer.ts';
import { hostArchitecture } from '../host-architecture.ts';
import { importImage } from '../image-import.ts';
import { NO_CONFIG } from '../layer-stack.ts';
import type { LowerNode } from '../lower-tree.ts';
import { ociLayout, saveLayout } from '../oci/oci.fixture.ts';
import { openLayers } from '../open-layers.ts';
import { tarOf, type TarItem } from '../tar/tar.fixture.ts';
import {
  buildDockerfile,
  type BuiltDockerfile,
  type DockerfileBuild,
  type DockerfilePlatform,
  type RunStep,
  type StepEvent,
} from './dockerfile-build.ts';

/** What builds stand on: accounts, and a /bin that is a link, as systems have it today. */
const baseItems: readonly TarItem[] = [
  { name: 'etc', type: '5', mode: 0o755 },
  { name: 'etc/passwd', content: 'root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n' },
  { name: 'etc/group', content: 'root:x:0:\nstaff:x:50:\n' },
  { name: 'usr', type: '5', mode: 0o755 },
  { name: 'usr/bin', type: '5', mode: 0o711 },
  { name: 'bin', type: '2', link: 'usr/bin' },
  { name: 'srv', type: '5', mode: 0o755 },
  { name: 'srv/there', content: 'of the base' },
  { name: 'srv/up', type: '2', link: '../../../etc' },
  { name: 'loop', type: '2', link: 'loop' },
];

/** A place with a base, a context, and a platform whose commands write down that they ran. */
export interface DockerfilePlace extends AsyncDisposable {
  readonly place: TestPlace;
  readonly context: string;
  /** What ran, in its order. */
  readonly ran: RunStep[];
  write(files: Readonly<Record<string, string | Buffer>>): Promise<void>;
  build(
    text: string,
    options?: Partial<DockerfileBuild>,
  ): Promise<BuiltDockerfile & { readonly events: readonly StepEvent[] }>;
  /** What an environment has at a path, as text: of a file its bytes, of a link `-> target`, of a directory its names. */
  text(image: EnvironmentImage, path: string): Promise<string | undefined>;
  node(image: EnvironmentImage, path: string): Promise<LowerNode | undefined>;
}

export const dockerfilePlace = async (): Promise<DockerfilePlace> => {
  const place = await testPlace();
  const directory = join(place.path, 'context');
  await mkdir(directory);
  const context = { ...place.context, notesDirectory: join(place.path, 'notes') };
  const path = await saveLayout(
    ociLayout({ layers: [tarOf(...baseItems)], config: { Env: ['PATH=/usr/bin', 'of=base'], Cmd: ['base-cmd'] } }),
    join(place.path, 'base'),
  );
  const base = await importImage(context, { path });
  const ran: RunStep[] = [];
  const platform: DockerfilePlatform = {
    image: (reference) => {
      if (reference === 'base') return Promise.resolve(base);
      throw new PlatformError('environment_not_found', `there is no environment ${reference}`);
    },
    run: async (step) => {
      ran.push(step);
      const command = step.argv.at(-1) ?? '';
      if (command === 'fail') {
        throw new PlatformError('build_failed', 'it failed', { details: { line: step.line, exitCode: 3 } });
      }
      if (command === 'nothing') return undefined;
      return await recorded(context, command);
    },
  };
  const open = async (image: EnvironmentImage) => openLayers(context.layersDirectory, image.layers);
  const names = (at: string) => ByteString.split(ByteString.fromText(at), '/').filter((name) => name !== '');
  return {
    place,
    context: directory,
    ran,
    write: async (files) => {
      for (const [name, content] of Object.entries(files)) {
        await mkdir(dirname(join(directory, name)), { recursive: true });
        await writeFile(join(directory, name), content);
      }
    },
    build: async (text, options = {}) => {
      const events: StepEvent[] = [];
      const onStep = (event: StepEvent) => void events.push(event);
      const built = await buildDockerfile(context, platform, { text, name: 'test', directory, onStep, ...options });
      return { ...built, events };
    },
    node: async (image, at) => {
      await using opened = await open(image);
      return await opened.tree.lookup(names(at));
    },
    text: async (image, at) => {
      await using opened = await open(image);
      const node = await opened.tree.lookup(names(at));
      if (node?.kind === 'symlink') return `-> ${node.target}`;
      if (node?.kind === 'directory') {
        const found: string[] = [];
        for await (const { name } of opened.tree.entries(names(at))) found.push(name);
        return found.sort().join(' ');
      }
      if (node?.kind !== 'file') return node?.kind;
      const parts: Uint8Array[] = [];
      for await (const part of node.bytes()) parts.push(part);
      return Buffer.concat(parts).toString();
    },
    [Symbol.asyncDispose]: () => place[Symbol.asyncDispose](),
  };
};

/** A layer that says which command made it. */
const recorded = async (context: TestPlace['context'], command: string): Promise<string | undefined> => {
  const bytes = Buffer.from(command);
  const { layers } = await buildLayer(context, async ({ writer }) => {
    const root = newDirectory();
    const out = newDirectory();
    root.children.set(ByteString.fromText('ran'), out);
    const data = await writer.store(bytes.length, once(bytes));
    const metadata = { ...out.metadata, mode: 0o600, uid: 1000, gid: 1000 };
    out.children.set(ByteString.fromText(command.replace(/\W+/g, '-')), { kind: 'file', metadata, data });
    return { root, config: NO_CONFIG, architecture: hostArchitecture(), source: { kind: 'recipe', name: 'test' } };
  });
  return layers[0];
};

async function* once(bytes: Buffer): AsyncGenerator<Uint8Array> {
  yield await Promise.resolve(bytes);
}
