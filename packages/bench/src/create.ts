import { Baselines } from './baselines.ts';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import type { Bar, Findings } from './report.ts';
import { quantiles, ratio, Sample } from './sample.ts';

export const createBars: readonly Bar[] = [
  { name: 'p50_over_floor', most: 4 },
  { name: 'docker_over_p50', least: 25 },
];

/** Creates of a round: the pool of `dsec up` serves them without being filled meanwhile. */
const ROUND = 25;
/** Creates before the first that counts: the SDK and the daemons are compiled by then. */
const WARM_UP = 300;

/**
 * From the call of the SDK until the result of the first command, the image warm; the floor is a bare sandbox in C. Each round finds the
 * pool of blanks full, as on a node that has rested a second; creates that follow each other without a pause are told apart.
 */
export async function benchCreate(context: BenchContext): Promise<Findings> {
  const { clock, floor, isQuick, say, server } = context;
  const [rounds, eachBaseline, unpaused] = isQuick ? [4, 2, 50] : [40, 2, 300];
  await using baselines = await Baselines.prepare(context.layer, clock, context.random);
  const ours = new Sample();
  const sustained = new Sample();
  const stop = new Sample();
  const bare = new Sample();
  const bare95 = new Sample();
  let failures = 0;
  const sandboxes = async (count: number, create: Sample): Promise<void> => {
    for (let i = 0; i < count; i += 1) {
      try {
        await oneSandbox(context, create, stop);
      } catch (error) {
        failures += 1;
        say(`a create failed: ${String(error)}`);
      }
    }
  };
  for (let i = 0; i < WARM_UP; i += 1) await oneSandbox(context, new Sample(), new Sample());
  for (let round = 1; round <= rounds; round += 1) {
    const { p50_ms, p95_ms } = await floor.measure('sandbox', ROUND);
    bare.add(p50_ms);
    bare95.add(p95_ms);
    await server.poolFull();
    await sandboxes(ROUND, ours);
    await baselines.measureCreates(eachBaseline);
    say(`round ${round} of ${rounds}: create p50 ${ours.p50?.toFixed(2)} ms, floor ${bare.p50?.toFixed(2)} ms`);
  }
  await sandboxes(unpaused, sustained);
  return {
    n: rounds * ROUND + unpaused,
    failures,
    values: {
      ...quantiles('create', ours),
      ...quantiles('sustained', sustained),
      ...quantiles('stop', stop),
      floor_p50_ms: bare.p50,
      floor_p95_ms: bare95.p50,
      p50_over_floor: ratio(ours.p50, bare.p50),
      ...baselines.values('create', ours),
    },
    absent: baselines.absent,
  };
}

async function oneSandbox({ clock, server }: BenchContext, create: Sample, stop: Sample): Promise<void> {
  const sandbox = await create.time(clock, async () => {
    const made = await server.client.runContainer({
      containerImage: ENVIRONMENT,
      memoryLimitMb: 256,
      diskLimitMb: 1024,
    });
    const { exitCode } = await made.exec(['true']);
    if (exitCode !== 0) throw new Error(`true ended with ${exitCode}`);
    return made;
  });
  await stop.time(clock, () => sandbox.stop());
}
