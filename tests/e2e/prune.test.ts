/** Layers that nobody needs go, with their sets and notes; what somebody needs stays, whatever happens at the same moment. */
import { LayerHolds } from '@dsec/environment';
import { Process, SystemRandom } from '@dsec/kit';
import type { EnvironmentKind, Sandbox } from '@dsec/libdsec';
import { lacking, TestServer } from '@dsec/testkit';
import { access, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { imageArchive } from './image-archive.ts';
import { layerOfFiles } from './layer-of-files.ts';
import { useServer } from './started-server.ts';
import { contentOf, putWorkspace, SMALL_NODE, storeDirectory, storeEnvironment, sumOf } from './stored-workspace.ts';
import { clock, waitFor } from './wait-for.ts';

const TEST_MS = 180_000;
const server = useServer();

interface Pruned {
  readonly dryRun: boolean;
  readonly layers: readonly { readonly layer: string; readonly bytes: number }[];
  readonly sets: readonly { readonly set: string; readonly bytes: number }[];
  readonly notes: number;
  readonly bytes: number;
}

const prune = async (...args: readonly string[]): Promise<Pruned> => {
  const { stdout, stderrTail } = await server().cli(['env', 'prune', '--json', ...args]);
  expect(stdout.toString(), stderrTail).not.toBe('');
  return JSON.parse(stdout.toString()) as Pruned;
};

const put = async (name: string, content: string, kind: EnvironmentKind = 'toolkit'): Promise<string> => {
  const image = await layerOfFiles(server().data, { files: { [`opt/${name}`]: content } });
  await server().client.environments.put(name, image, { kind });
  return image.layers[0] ?? '';
};

const isThere = async (layer: string): Promise<boolean> =>
  access(join(server().data, 'layers', layer.slice('sha256:'.length), 'layer.json')).then(
    () => true,
    () => false,
  );
const namesIn = async (directory: string): Promise<readonly string[]> => await readdir(join(server().data, directory));
const read = async (sandbox: Sandbox, path: string): Promise<string> => (await sandbox.runShell(`cat ${path}`)).stdout;

let place = '';
beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'dsec-t-prune-'));
});
afterEach(() => rm(place, { recursive: true }));

/** An image of two layers of which the first is always the same. */
async function build(name: string): Promise<readonly string[]> {
  const file = join(place, `${name}.tar`);
  // With its working directory, which the topmost layer would get otherwise, and be noted as nobody else's.
  const shared = [
    { name: 'srv', type: '5', mode: 0o755 },
    { name: 'etc/shared', content: 'shared' },
  ];
  await writeFile(file, imageArchive(shared, { above: [[{ name: `etc/${name}`, content: name }]] }));
  const built = await server().cli(['env', 'build', file, '-t', name, '--merge-up-to', '0', '--json']);
  return (JSON.parse(built.stdout.toString()) as { readonly image: { readonly layers: readonly string[] } }).image
    .layers;
}

describe('an environment that is removed', () => {
  test(
    'takes along the layers that only it has, and the notes that they were made',
    async () => {
      const [first, second] = [await build('first'), await build('second')];
      expect(first[1]).toBe(second[1]);
      const notes = (await namesIn('notes')).length;
      const removed = await server().cli(['env', 'rm', 'first']);
      expect(removed.stderrTail).toMatch(/^1 layer, 0 sets and 1 note are gone: /m);
      expect(await Promise.all([...first, ...second].map(isThere))).toEqual([false, true, true, true]);
      expect(await namesIn('notes')).toHaveLength(notes - 1);
      await server().cli(['env', 'rm', 'second', '--keep-layers']);
      expect(await Promise.all(second.map(isThere))).toEqual([true, true]);
      expect((await prune()).layers.map(({ layer }) => layer).toSorted()).toEqual([...second].toSorted());
      // The same again is made again.
      expect(await build('first')).toEqual(first);
      await server().cli(['env', 'rm', 'first']);
    },
    TEST_MS,
  );

  test(
    'leaves to a live sandbox what it stands on, until that is gone',
    async () => {
      const layer = await put('stood-on', 'here');
      const sandbox = await server().sandbox({ toolkits: ['stood-on'] });
      expect((await server().cli(['env', 'rm', 'stood-on'])).stderrTail).not.toContain('gone');
      expect((await prune()).layers).toEqual([]);
      for (const daemon of ['launcher', 'edge'] as const) {
        await server().kill(daemon);
        expect((await prune()).layers).toEqual([]);
      }
      expect(await read(sandbox, '/opt/stood-on')).toBe('here');
      await sandbox.stop();
      const sets = await namesIn('sets');
      const foreseen = await prune('--dry-run');
      expect(foreseen).toMatchObject({ dryRun: true, layers: [{ layer }], sets: [{}] });
      expect(foreseen.bytes).toBeGreaterThan(foreseen.layers[0]?.bytes ?? 0);
      expect([await isThere(layer), await namesIn('sets')]).toEqual([true, sets]);
      expect(await prune()).toEqual({ ...foreseen, dryRun: false });
      expect([await isThere(layer), (await namesIn('sets')).length]).toEqual([false, sets.length - 1]);
      const nothing = await server().cli(['env', 'prune']);
      expect([nothing.stdout.toString(), nothing.stderrTail]).toEqual([
        '',
        expect.stringContaining('0 layers, 0 sets and 0 notes are gone: 0 B'),
      ]);
    },
    TEST_MS,
  );
});

describe('a removal', () => {
  test(
    'and creates at the same moment: each create gets the whole layer or an error that says what is missing',
    async () => {
      const codes: string[] = [];
      for (let round = 0; round < 4; round++) {
        const name = `racing-${round}`;
        await put(name, name);
        await (await server().sandbox({ toolkits: [name] })).stop();
        const create = async (): Promise<string> => {
          let sandbox: Sandbox;
          try {
            sandbox = await server().sandbox({ toolkits: [name], memoryLimitMb: 64 });
          } catch (error) {
            return String((error as { readonly code?: string }).code);
          }
          expect(await read(sandbox, `/opt/${name}`)).toBe(name);
          await sandbox.stop();
          return 'made';
        };
        let isRemoved = false;
        const removing = server().cli(['env', 'rm', name]);
        void removing.then(() => (isRemoved = true));
        const creating = async (): Promise<void> => {
          while (!isRemoved) codes.push(await create());
          codes.push(await create());
        };
        await Promise.all([removing, creating(), creating(), creating()]);
      }
      expect(codes.filter((code) => !['made', 'environment_not_found', 'environment_broken'].includes(code))).toEqual(
        [],
      );
      expect(codes).toContain('made');
      expect(codes.slice(-1)).toEqual(['environment_not_found']);
      await prune();
      expect((await namesIn('layers')).filter((name) => name.startsWith('.'))).toEqual([]);
    },
    TEST_MS,
  );

  test(
    'leaves what a build relies on that has no name yet, also in another process',
    async () => {
      const { layers } = await layerOfFiles(server().data, { files: { 'opt/unnamed': 'x' } });
      const [layer = ''] = layers;
      {
        const options = { directory: join(server().data, 'holds'), random: new SystemRandom(), clock };
        await using holds = await LayerHolds.open(options);
        await holds.hold(layer);
        expect((await prune()).layers).toEqual([]);
      }
      await writeFile(
        join(place, 'Dockerfile'),
        'FROM e2e\nRUN echo one > /one\nRUN echo two > /two; sleep 5\nRUN echo three > /three\n',
      );
      const building = server().cli(['env', 'build', place, '-t', 'slow']);
      // What the first step made stands under the name that the second one runs from, and under no other.
      const steps = server().client.environments.list({ prefix: 'dsec-build/' });
      await waitFor(
        'the second step runs',
        async () => (await steps.toArray()).some(({ image }) => image.layers.length > 1),
        TEST_MS / 2,
      );
      // The build itself holds what it has made, for when that name is gone.
      const [name = ''] = await namesIn('holds');
      const [step] = await steps.toArray();
      expect(await namesIn(`holds/${name}`)).toContain(step?.image.layers[0]?.slice('sha256:'.length));
      expect((await prune()).layers.map((gone) => gone.layer)).toEqual([layer]);
      const built = await building;
      expect(built.exitCode, built.stderrTail).toBe(0);
      await using sandbox = await server().client.runContainer({ containerImage: 'slow', memoryLimitMb: 64 });
      expect(await read(sandbox, '/one /two /three')).toBe('one\ntwo\nthree\n');
    },
    TEST_MS,
  );

  test(
    'leaves what a pack is made on and what it makes, however often it comes in between',
    async () => {
      await put('under', 'under');
      const unnamed = await layerOfFiles(server().data, { files: { 'opt/unneeded': 'x' } });
      const sandbox = await server().sandbox({ toolkits: ['under'] });
      await sandbox.runShell(
        'mkdir /made; head -c 60000000 /dev/urandom > /made/noise; sha256sum /made/noise > /made/sum',
      );
      let isPacked = false;
      let removing: Promise<void> | undefined;
      const onProgress = (): void => void (removing ??= server().client.environments.remove('under'));
      const packing = sandbox
        .packDiff({ name: 'packed', kind: 'environment', onProgress })
        .finally(() => (isPacked = true));
      const gone: string[] = [];
      while (!isPacked) gone.push(...(await prune()).layers.map(({ layer }) => layer));
      expect(gone).toEqual(unnamed.layers);
      const { environment } = await packing;
      expect(removing).toBeDefined();
      await removing;
      await sandbox.stop();
      expect((await prune()).layers).toEqual([]);
      await using next = await server().client.runContainer({ containerImage: 'packed', memoryLimitMb: 256 });
      expect(await read(next, '/opt/under')).toBe('under');
      expect((await next.runShell('sha256sum --check /made/sum')).exitCode).toBe(0);
      expect(environment?.image.layers.length).toBeGreaterThan(2);
    },
    TEST_MS,
  );

  test(
    'that is killed leaves every environment whole, and the next one goes on',
    async () => {
      await put('kept', 'kept');
      const unnamed: string[] = [];
      for (let number = 0; number < 40; number++) {
        const image = await layerOfFiles(server().data, { files: { [`opt/${number}`]: `${number}` } });
        unnamed.push(...image.layers);
      }
      for (let round = 0; round < 5; round++) {
        const argv = ['env', 'prune', '--data', server().data];
        const main = join(import.meta.dirname, '../../packages/cli/src/main.ts');
        const child = await Process.start([process.execPath, '--disable-warning=ExperimentalWarning', main, ...argv], {
          clock,
          stdout: 'ignore',
          stderr: 'ignore',
        });
        // Another moment each time, from its first questions to the last files.
        await clock.sleep(500 + round * 120);
        child.signal('SIGKILL');
        await child.exited;
        await using sandbox = await server().sandbox({ toolkits: ['kept'], memoryLimitMb: 64 });
        expect(await read(sandbox, '/opt/kept')).toBe('kept');
      }
      await prune();
      expect((await Promise.all(unnamed.map(isThere))).includes(true)).toBe(false);
      expect((await namesIn('layers')).filter((name) => name.startsWith('.'))).toEqual([]);
      expect(await namesIn('holds')).toEqual([]);
      await using sandbox = await server().sandbox({ toolkits: ['kept'] });
      expect(await read(sandbox, '/opt/kept')).toBe('kept');
    },
    TEST_MS,
  );

  test('is of the server of its data directory, and says when there is none', async () => {
    const { stderrTail, exitCode } = await server().cli(['env', 'prune', '--data', place]);
    expect([exitCode === 0, stderrTail]).toEqual([false, expect.stringContaining('[server_unreachable]')]);
  });
});

describe('layers that are loaded on demand', () => {
  test(
    'go and come again with the right bytes, and stay while a sandbox reads them',
    async () => {
      const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup');
      expect(lack).toBeUndefined();
      const store = await storeDirectory();
      try {
        const options = { ...SMALL_NODE, blob: store };
        await using builder = await TestServer.start(options);
        await using node = await TestServer.start(options);
        await storeEnvironment(builder);
        const { layers } = await putWorkspace(builder, 'w', ['0', '1']);
        await builder.cli(['env', 'upload', 'w'], { timeoutMs: TEST_MS });
        const path = join(node.data, 'layers', layers[0]?.slice('sha256:'.length) ?? '');
        const isHere = (): Promise<boolean> =>
          readdir(path).then(
            () => true,
            () => false,
          );
        const check = async (sandbox: Sandbox, file: string): Promise<void> =>
          expect((await sandbox.runShell(`sha256sum < /w/${file}`)).stdout).toContain(sumOf('w', file));
        for (let round = 0; round < 3; round++) {
          for (const name of ['e2e', 'w']) await node.cli(['env', 'fetch', name]);
          const sandbox = await node.client.runContainer({ containerImage: 'e2e', workspace: 'w', memoryLimitMb: 64 });
          await check(sandbox, '0');
          await node.cli(['env', 'rm', 'w']);
          await node.cli(['env', 'prune']);
          expect(await isHere()).toBe(true);
          // Not read before: it comes from the store now.
          await check(sandbox, '1');
          await sandbox.stop();
          const { stdout } = await node.cli(['env', 'prune', '--json']);
          const pruned = JSON.parse(stdout.toString()) as Pruned;
          expect(pruned.layers.map(({ layer }) => layer)).toEqual(layers);
          expect(pruned.layers[0]?.bytes).toBeGreaterThan(contentOf('w', '0').length);
          expect(await isHere()).toBe(false);
        }
      } finally {
        await rm(store, { recursive: true, force: true });
      }
    },
    2 * TEST_MS,
  );
});
