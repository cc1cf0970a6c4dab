import { buildRecipe, MergeThread, parseRecipe, type BuildContext } from '@dsec/environment';
import type { ContainerRunArgs } from '@dsec/libdsec';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import { quantiles, ratio, Sample } from './sample.ts';

/** With the base: so many layers. */
const LAYERS = 20;
const PAIRS = 10;
const one: ContainerRunArgs = { containerImage: ENVIRONMENT, memoryLimitMb: 256, diskLimitMb: 1024 };

/**
 * Creates that stand on one layer and creates that stand on twenty, in turns: from a pool of blanks that has rested, and one behind the other
 * until it is used up. And how long it takes to merge the twenty, which the first create of them waits for.
 */
export async function measureStackedLayers(
  context: BenchContext,
): Promise<Readonly<Record<string, number | undefined>>> {
  const { server, isQuick, say } = context;
  const { many, layers } = await prepare(context);
  const warm = new Pair(context, many);
  const sustained = new Pair(context, many);
  // The first merges; the rest teaches the pool what is asked for.
  await new Pair(context, many).run(40);
  for (let round = 0; round < (isQuick ? 3 : 20); round += 1) {
    await server.poolFull();
    await warm.run(PAIRS);
  }
  await sustained.run(isQuick ? 60 : 300);
  const merge = await timeMerge(context, layers);
  say(`1 layer: p50 ${warm.single.p50?.toFixed(2)} ms, ${LAYERS}: ${warm.stacked.p50?.toFixed(2)} ms`);
  say(`merging ${LAYERS} took ${merge.wall.p50?.toFixed(0)} ms`);
  return {
    ...quantiles('one_layer', warm.single),
    ...quantiles('twenty_layers', warm.stacked),
    ...quantiles('one_layer_sustained', sustained.single),
    ...quantiles('twenty_layers_sustained', sustained.stacked),
    ...quantiles('merge', merge.wall),
    ...quantiles('merge_processor', merge.processor),
    twenty_over_one: ratio(warm.stacked.p50, warm.single.p50),
    twenty_over_one_sustained: ratio(sustained.stacked.p50, sustained.single.p50),
  };
}

/** Both kinds of create. */
class Pair {
  readonly single = new Sample();
  readonly stacked = new Sample();
  readonly #context: BenchContext;
  readonly #many: ContainerRunArgs;

  constructor(context: BenchContext, many: ContainerRunArgs) {
    this.#context = context;
    this.#many = many;
  }

  /** Each kind goes first as often as the other: what a stop leaves to do falls on the create behind it. */
  async run(count: number): Promise<void> {
    const kinds = [
      [one, this.single],
      [this.#many, this.stacked],
    ] as const;
    for (let i = 0; i < count; i += 1) {
      for (const [args, sample] of i % 2 === 0 ? kinds : kinds.toReversed()) await this.#create(args, sample);
    }
  }

  async #create(args: ContainerRunArgs, sample: Sample): Promise<void> {
    const { clock, server } = this.#context;
    const sandbox = await sample.time(clock, async () => {
      const made = await server.client.runContainer(args);
      const { exitCode } = await made.exec(['true']);
      if (exitCode !== 0) throw new Error(`true ended with ${exitCode}`);
      return made;
    });
    await sandbox.stop();
  }
}

/** Makes the toolkits. */
async function prepare({ server, clock, random, say }: BenchContext): Promise<{
  readonly many: ContainerRunArgs;
  /** Topmost first. */
  readonly layers: readonly string[];
}> {
  const build: BuildContext = { layersDirectory: join(server.data, 'layers'), clock, random };
  const { image: base } = await server.client.environments.get(ENVIRONMENT);
  const layers = [...base.layers];
  const toolkits: string[] = [];
  for (let i = 0; toolkits.length + 1 < LAYERS; i += 1) {
    const name = `bench-kit-${i}`;
    const files = [`{path: /opt/${name}/file, content: "${name}"}`, `{path: /opt/every, content: "${name}"}`];
    const recipe = parseRecipe(`name: ${name}\nkind: toolkit\nfiles: [${files.join(', ')}]\n`);
    const image = await buildRecipe(build, { recipe, directory: build.layersDirectory });
    await server.client.environments.put(name, image, { kind: 'toolkit' });
    layers.unshift(...image.layers);
    toolkits.push(name);
  }
  say(`${LAYERS} layers are there`);
  return { many: { ...one, toolkits }, layers };
}

async function timeMerge(
  { server, clock, isQuick }: BenchContext,
  layers: readonly string[],
): Promise<{ readonly wall: Sample; readonly processor: Sample }> {
  const setsDirectory = await mkdtemp(join(tmpdir(), 'dsec-bench-sets-'));
  const [wall, processor] = [new Sample(), new Sample()];
  try {
    const layersDirectory = join(server.data, 'layers');
    for (let i = 0; i < (isQuick ? 3 : 10); i += 1) {
      // A thread of its own each time: on a node, too, a merge is seldom one of many.
      await using thread = await MergeThread.start({ setsDirectory, draftsDirectory: setsDirectory, layersDirectory });
      const before = process.cpuUsage();
      await wall.time(clock, () => thread.ensure(layers, { isForced: true }));
      const { user, system } = process.cpuUsage(before);
      processor.add((user + system) / 1000);
    }
  } finally {
    await rm(setsDirectory, { recursive: true });
  }
  return { wall, processor };
}
