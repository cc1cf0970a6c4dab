import { buildRecipe, parseRecipe, type BuildContext } from '@dsec/environment';
import { run } from '@dsec/kit';
import type { ContainerRunArgs, Sandbox } from '@dsec/libdsec';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import type { Bar, Findings } from './report.ts';
import { quantiles, ratio, Sample } from './sample.ts';
import { measureStackedLayers } from './stacked-layers.ts';

export const layersBars: readonly Bar[] = [
  { name: 'speedup', least: 1.76 },
  { name: 'write_ratio', least: 5.5 },
  { name: 'twenty_over_one', most: 1.1 },
];

const MODULES = join(import.meta.dirname, '../../../node_modules');
/** A workspace of real files: thousands of small ones and some large, as a JavaScript project has them. */
const PACKAGES = ['fastify', 'knip', 'typebox', 'vite', 'vitest', 'zod'] as const;
const WORKSPACE = 'bench-workspace';
const PARALLEL = 4;
const args: ContainerRunArgs = { containerImage: ENVIRONMENT, memoryLimitMb: 512, diskLimitMb: 2048 };
/** What a task does with its workspace: it looks over all of it, reads a part and writes a little. */
const TASK =
  'cd /project && find . -type f | wc -l > files && find . -name package.json -exec cat {} + > all.json && grep -rl defineConfig vite/dist > found; test -s found';
const env = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' } as const;
const PACK_MS = 120_000;

/**
 * The same task in sandboxes that have its files as a layer, and in sandboxes into which they are unpacked from a tar.gz, as many at once. From
 * the call of the SDK until the task is done; and the bytes that the node has written for it, the layer counted once. Then what a create costs on one
 * layer and on twenty.
 */
export async function benchLayers(context: BenchContext): Promise<Findings> {
  const { isQuick, say, server, clock } = context;
  const count = isQuick ? 16 : 64;
  const scratch = await mkdtemp(join(tmpdir(), 'dsec-bench-layers-'));
  try {
    const { layerBytes, archive } = await prepare(context, scratch);
    const mounted = new Side();
    const unpacked = new Side();
    const inLayer = (sandboxes: number): Promise<void> =>
      mounted.run(context, sandboxes, { ...args, workspace: WORKSPACE }, () => Promise.resolve());
    const inTar = (sandboxes: number): Promise<void> =>
      unpacked.run(context, sandboxes, args, async (sandbox) => {
        await sandbox.files.write('/project.tar.gz', archive);
        const { exitCode, stderr } = await sandbox.runShell(
          'mkdir /project && tar -C /project -xzf /project.tar.gz && rm /project.tar.gz',
        );
        if (exitCode !== 0) throw new Error(`tar ended with ${exitCode}: ${stderr}`);
      });
    await inLayer(PARALLEL);
    await inTar(PARALLEL);
    mounted.reset();
    unpacked.reset();
    await server.poolFull();
    say(`${count} sandboxes with the workspace as a layer`);
    const startedMs = clock.monotonicMs();
    await inLayer(count);
    const layerMs = clock.monotonicMs() - startedMs;
    await server.poolFull();
    say(`${count} sandboxes with the workspace unpacked from a tar.gz`);
    const againMs = clock.monotonicMs();
    await inTar(count);
    const tarMs = clock.monotonicMs() - againMs;
    const written = mounted.writtenBytes + layerBytes;
    say('creates on one layer and on twenty');
    const stacked = await measureStackedLayers(context);
    return {
      n: 2 * count,
      failures: mounted.failures + unpacked.failures,
      values: {
        ...quantiles('layer', mounted.times),
        ...quantiles('tar', unpacked.times),
        layer_bytes: layerBytes,
        tar_gz_bytes: archive.length,
        written_with_layer_bytes: written,
        written_with_tar_bytes: unpacked.writtenBytes,
        speedup: ratio(tarMs, layerMs),
        write_ratio: ratio(unpacked.writtenBytes, written),
        ...stacked,
      },
      absent: {},
    };
  } finally {
    await rm(scratch, { recursive: true });
  }
}

/** Makes the layer and the archive of the same files. */
async function prepare(
  { server, clock, random, say }: BenchContext,
  scratch: string,
): Promise<{ readonly layerBytes: number; readonly archive: Uint8Array<ArrayBuffer> }> {
  const names = PACKAGES.filter((name) => existsSync(join(MODULES, name)));
  const trees = names.map((name) => `{path: /project/${name}, source: ${name}}`);
  const recipe = parseRecipe(`name: ${WORKSPACE}\nkind: workspace\nworkdir: /project\ntrees: [${trees.join(', ')}]\n`);
  const build: BuildContext = { layersDirectory: join(server.data, 'layers'), clock, random };
  const startedMs = clock.monotonicMs();
  const image = await buildRecipe(build, { recipe, directory: MODULES });
  say(`the layer is made in ${((clock.monotonicMs() - startedMs) / 1000).toFixed(1)} s`);
  await server.client.environments.put(WORKSPACE, image, { kind: 'workspace' });
  const tar = join(scratch, 'work.tar.gz');
  await run(['tar', '-C', MODULES, '-czf', tar, ...names], { clock, env, timeoutMs: PACK_MS });
  return { layerBytes: image.sizeBytes, archive: new Uint8Array(await readFile(tar)) };
}

/** One of the two ways. */
class Side {
  times = new Sample();
  writtenBytes = 0;
  failures = 0;

  reset(): void {
    this.times = new Sample();
    this.writtenBytes = 0;
  }

  /** `count` sandboxes, `PARALLEL` at a time. */
  async run(
    { server, clock, say }: BenchContext,
    count: number,
    create: ContainerRunArgs,
    fill: (sandbox: Sandbox) => Promise<void>,
  ): Promise<void> {
    let left = count;
    const one = async (): Promise<void> => {
      const sandbox = await this.times.time(clock, async () => {
        const made = await server.client.runContainer(create);
        await fill(made);
        const { exitCode, stderr } = await made.runShell(TASK);
        if (exitCode !== 0) throw new Error(`the task ended with ${exitCode}: ${stderr}`);
        return made;
      });
      // What is not on the disk yet is not counted.
      await sandbox.exec(['sync']);
      this.writtenBytes += (await sandbox.usage()).diskBytes;
      await sandbox.stop();
    };
    const worker = async (): Promise<void> => {
      while (left > 0) {
        left -= 1;
        try {
          await one();
        } catch (error) {
          this.failures += 1;
          say(`a sandbox failed: ${String(error)}`);
        }
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, worker));
  }
}
