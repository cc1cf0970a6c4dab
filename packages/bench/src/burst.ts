import { PlatformError } from '@dsec/contract';
import type { Sandbox } from '@dsec/libdsec';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import type { Bar, Findings } from './report.ts';
import { quantiles, ratio, Sample } from './sample.ts';

export const burstBars: readonly Bar[] = [{ name: 'rate_over_floor', least: 0.5 }];

const BURST = 500;
/** The node holds so many blank sandboxes ready, three of four of them with a root filesystem: enough for one burst. */
export const BURST_POOL = 672;
/** Creates before the first that counts: the SDK and the daemons are compiled by then. */
const WARM_UP = 500;
const args = {
  containerImage: ENVIRONMENT,
  memoryLimitMb: 64,
  cpuCoresLimit: 0.1,
  diskLimitMb: 256,
  metadata: { bench: 'burst' },
} as const;

/**
 * 500 creates at once, each a request of its own; all must be ready. The floor is bare sandboxes in C on all cores at once. The node has
 * rested before: its pool of blanks is full, as after a pause of some seconds. 500 more come right behind, when the pool is used up, and
 * are told apart.
 */
export async function benchBurst(context: BenchContext): Promise<Findings> {
  const { clock, floor, cores, isQuick, server, say } = context;
  const rounds = isQuick ? 1 : 3;
  const rates = new Sample();
  const nextRates = new Sample();
  const floors = new Sample();
  const bulkRates = new Sample();
  const stopRates = new Sample();
  const each = new Sample();
  let failures = 0;
  const fail = (error: unknown): undefined => {
    failures += 1;
    say(`a create failed: ${PlatformError.is(error) ? `${error.message} [${error.code}]` : String(error)}`);
    return undefined;
  };
  const burst = async (rate: Sample): Promise<void> => {
    const startedMs = clock.monotonicMs();
    const made = await Promise.all(
      Array.from({ length: BURST }, () => each.time(clock, () => server.client.runContainer(args)).catch(fail)),
    );
    rate.add(perSecond(BURST, clock.monotonicMs() - startedMs));
    all.push(...made);
  };
  const all: (Sandbox | undefined)[] = [];
  await Promise.all(Array.from({ length: WARM_UP }, () => server.client.runContainer(args).catch(fail)));
  await stopAll(context, fail);
  for (let round = 1; round <= rounds; round += 1) {
    say(`waiting for ${BURST_POOL} blank sandboxes`);
    await server.poolFull();
    floors.add(await floor.rateOfMachine(cores, Math.ceil(BURST / cores)));
    await burst(rates);
    await burst(nextRates);
    failures += await countUnready(all.splice(0));
    const stopMs = clock.monotonicMs();
    await stopAll(context, fail);
    stopRates.add(perSecond(2 * BURST, clock.monotonicMs() - stopMs));
    await server.poolFull();
    const bulkMs = clock.monotonicMs();
    for await (const outcome of server.client.runContainers(args, { count: BURST }))
      if ('error' in outcome) fail(outcome.error);
    bulkRates.add(perSecond(BURST, clock.monotonicMs() - bulkMs));
    await stopAll(context, fail);
    say(`round ${round} of ${rounds}: ${rates.p50?.toFixed(0)} creates a second, floor ${floors.p50?.toFixed(0)}`);
  }
  return {
    n: 2 * rounds * BURST,
    failures,
    values: {
      ...quantiles('create', each),
      pool_blanks: BURST_POOL,
      creates_per_second: rates.p50,
      next_creates_per_second: nextRates.p50,
      bulk_creates_per_second: bulkRates.p50,
      stops_per_second: stopRates.p50,
      floor_per_second: floors.p50,
      rate_over_floor: ratio(rates.p50, floors.p50),
      next_rate_over_floor: ratio(nextRates.p50, floors.p50),
    },
    absent: {},
  };
}

const perSecond = (count: number, ms: number): number => count / (ms / 1000);

/** A sandbox is ready when a command runs in it. */
async function countUnready(sandboxes: readonly (Sandbox | undefined)[]): Promise<number> {
  let unready = 0;
  for (const sandbox of sandboxes) {
    if (sandbox !== undefined && (await sandbox.exec(['true'])).exitCode !== 0) unready += 1;
  }
  return unready;
}

async function stopAll({ server }: BenchContext, fail: (error: unknown) => void): Promise<void> {
  const outcomes = await server.client.stopSandboxes({ metadata: args.metadata }, { timeoutMs: 300_000 });
  for (const outcome of outcomes) if ('error' in outcome) fail(outcome.error);
}
