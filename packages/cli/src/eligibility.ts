/**
 * Which environments can run where only a part of all layers is: counted by what sandboxes ran from lately, in the fewest bytes. Tasks are sandboxes
 * weighed by their age (`recentSandboxes` of compositions), so that what is eligible follows what is used now.
 */
import { coveringLayers, openLayer, type ObjectStore } from '@dsec/blob';
import { limits, PlatformError } from '@dsec/contract';
import type { Composition, DSecClient, Environment } from '@dsec/libdsec';
import type { Context } from './context.ts';
import { digestOf } from './layers.ts';
import { usageIfThere } from './usage.ts';

/** What the bytes of a layer are: all of its data, which is what `sync` brings, or what was ever read of them here. */
export const weights = ['data', 'touched'] as const;
export type Weight = (typeof weights)[number];

export interface EligibilityQuery {
  /** Of the sandboxes that were begun here, weighed by their age: 0 to 1. */
  readonly share: number;
  readonly weight: Weight;
  /** Where to look for sizes of layers that are not on the node. */
  readonly store?: ObjectStore | undefined;
}

interface EligibleLayer {
  readonly layer: string;
  readonly dataBytes: number;
  /** Null: nobody counts. */
  readonly touchedBytes: number | null;
}

export interface Eligibility {
  readonly share: number;
  /** False: layers whose size is unknown would be needed. */
  readonly isReached: boolean;
  readonly coveredTasks: number;
  readonly totalTasks: number;
  /** Begun on names that are gone; no part of the total. */
  readonly goneTasks: number;
  readonly layers: readonly EligibleLayer[];
  /** Of the data of the layers. */
  readonly bytes: number;
  /** Every environment whose layers are all among them. */
  readonly environments: readonly EligibleEnvironment[];
}

interface EligibleEnvironment {
  readonly environment: Environment;
  /** Sandboxes that were begun on it, alone or with others, weighed by their age. */
  readonly tasks: number;
}

/** Tasks are added up as whole thousandths, which is as exactly as they are told: sums of fractions depend on their order. */
const THOUSANDTHS = 1000;

/**
 * @throws PlatformError `invalid_argument` for a share that is none, `blob_unavailable`
 */
export async function eligibility(
  context: Context,
  client: DSecClient,
  { share, weight, store }: EligibilityQuery,
): Promise<Eligibility> {
  const signal = context.interrupted;
  const listing = { pageSize: limits.pageSize.maximum, signal };
  const environments = new Map<string, Environment>();
  for await (const environment of client.environments.list(listing)) {
    environments.set(environment.name, environment);
  }
  const compositions: Composition[] = [];
  for await (const composition of client.environments.compositions(listing)) {
    compositions.push(composition);
  }
  const known = compositions.filter((composition) => namesIn(composition).every((name) => environments.has(name)));
  const goneTasks = tasksIn(compositions) - tasksIn(known);
  const tasksOf = new Map<string, number>();
  for (const composition of known) {
    for (const name of new Set(namesIn(composition))) {
      tasksOf.set(name, (tasksOf.get(name) ?? 0) + weightOf(composition));
    }
  }
  const sizes = await sizesOf(context, client, {
    environments: [...tasksOf.keys()].map((name) => environments.get(name)).filter((found) => found !== undefined),
    store,
  });
  const bytesOf = new Map(
    [...sizes].map(([layer, { dataBytes, touchedBytes }]) => [
      layer,
      weight === 'touched' ? (touchedBytes ?? dataBytes) : dataBytes,
    ]),
  );
  const counted = known.map((composition) => ({
    key: JSON.stringify(namesIn(composition)),
    tasks: weightOf(composition),
    layers: namesIn(composition).flatMap((name) => environments.get(name)?.image.layers ?? []),
  }));
  const { layers, isReached, coveredTasks, totalTasks } = coveringLayers(counted, bytesOf, share);
  const inside = new Set(layers);
  const eligible = layers.map((layer) => sizes.get(layer)).filter((found) => found !== undefined);
  return {
    share,
    isReached,
    coveredTasks: coveredTasks / THOUSANDTHS,
    totalTasks: totalTasks / THOUSANDTHS,
    goneTasks: goneTasks / THOUSANDTHS,
    layers: eligible,
    bytes: eligible.reduce((sum, { dataBytes }) => sum + dataBytes, 0),
    environments: [...environments.values()]
      .filter(({ image }) => image.layers.every((layer) => inside.has(layer)))
      .map((environment) => ({ environment, tasks: (tasksOf.get(environment.name) ?? 0) / THOUSANDTHS })),
  };
}

/** Asks no more than is needed: environments share most of their layers. */
async function sizesOf(
  context: Context,
  client: DSecClient,
  from: { readonly environments: readonly Environment[]; readonly store: ObjectStore | undefined },
): Promise<ReadonlyMap<string, EligibleLayer>> {
  const signal = context.interrupted;
  const sizes = new Map<string, EligibleLayer>();
  const elsewhere = new Set<string>();
  for (const { name, image } of from.environments) {
    if (image.layers.every((layer) => sizes.has(layer) || elsewhere.has(layer))) continue;
    const usage = await usageIfThere(client, name, signal);
    for (const { layer, dataBytes, touchedBytes } of usage?.layers ?? []) {
      if (dataBytes === null) elsewhere.add(layer);
      else sizes.set(layer, { layer, dataBytes, touchedBytes });
    }
  }
  if (from.store === undefined) return sizes;
  for (const layer of elsewhere) {
    const stored = await openLayer(from.store, digestOf(layer), { signal }).catch((error: unknown) => {
      if (PlatformError.is(error) && error.code === 'layer_not_found') return undefined;
      throw error;
    });
    if (stored !== undefined) sizes.set(layer, { layer, dataBytes: stored.map.dataBytes, touchedBytes: null });
  }
  return sizes;
}

const namesIn = ({ environment, workspace, toolkits }: Composition): readonly string[] => [
  environment,
  ...(workspace === null ? [] : [workspace]),
  ...toolkits,
];

const weightOf = ({ recentSandboxes }: Composition): number => Math.round(recentSandboxes * THOUSANDTHS);

const tasksIn = (compositions: readonly Composition[]): number =>
  compositions.reduce((sum, composition) => sum + weightOf(composition), 0);
