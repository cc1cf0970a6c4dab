import type { Sandbox } from '@dsec/libdsec';
import { Baselines } from './baselines.ts';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import type { Bar, Findings } from './report.ts';
import { quantiles, ratio, Sample } from './sample.ts';

export const execBars: readonly Bar[] = [
  { name: 'p50_over_floor', most: 2.5 },
  { name: 'docker_over_p50', least: 40 },
];

/** Calls before the first that counts: the SDK and the daemons are compiled by then. */
const WARM_UP = 6000;
const PARALLEL = 64;
const STDOUT_BYTES = 512 * 1024 * 1024;
const QUICK_STDOUT_BYTES = 128 * 1024 * 1024;

/** `true` in a live sandbox; the floor is fork, exec and wait of a static program. Then calls a second, and bytes a second of stdout. */
export async function benchExec(context: BenchContext): Promise<Findings> {
  const { clock, floor, isQuick, server, say } = context;
  const [rounds, each, eachBaseline] = isQuick ? [4, 200, 3] : [10, 500, 10];
  await using baselines = await Baselines.prepare(context.layer, clock, context.random);
  await using sandbox = await server.client.runContainer({
    containerImage: ENVIRONMENT,
    memoryLimitMb: 512,
    pidsLimit: 1024,
    diskLimitMb: 1024,
  });
  const ours = new Sample();
  const bare = new Sample();
  const bare95 = new Sample();
  let failures = 0;
  const call = async (sample: Sample): Promise<void> => {
    try {
      const { exitCode } = await sample.time(clock, async () => sandbox.exec(['true']));
      if (exitCode !== 0) throw new Error(`true ended with ${exitCode}`);
    } catch (error) {
      failures += 1;
      say(`an exec failed: ${String(error)}`);
    }
  };
  for (let i = 0; i < WARM_UP; i += 1) await call(new Sample());
  for (let round = 1; round <= rounds; round += 1) {
    const { p50_ms, p95_ms } = await floor.measure('spawn', each);
    bare.add(p50_ms);
    bare95.add(p95_ms);
    for (let i = 0; i < each; i += 1) await call(ours);
    await baselines.measureExecs(eachBaseline);
    say(`round ${round} of ${rounds}: exec p50 ${ours.p50?.toFixed(3)} ms, floor ${bare.p50?.toFixed(3)} ms`);
  }
  const parallelCalls = isQuick ? 2000 : 10_000;
  const callsPerSecond = await parallel(context, parallelCalls, () => call(new Sample()));
  say(`${callsPerSecond.toFixed(0)} calls a second with ${PARALLEL} in parallel`);
  const bytesPerSecond = await stdoutRate(context, sandbox, isQuick ? QUICK_STDOUT_BYTES : STDOUT_BYTES);
  say(`${(bytesPerSecond / 1e6).toFixed(0)} MB a second through stdout`);
  return {
    n: rounds * each + parallelCalls,
    failures,
    values: {
      ...quantiles('exec', ours),
      floor_p50_ms: bare.p50,
      floor_p95_ms: bare95.p50,
      p50_over_floor: ratio(ours.p50, bare.p50),
      calls_per_second: callsPerSecond,
      stdout_bytes_per_second: bytesPerSecond,
      ...baselines.values('exec', ours),
    },
    absent: baselines.absent,
  };
}

async function parallel({ clock }: BenchContext, count: number, call: () => Promise<void>): Promise<number> {
  let left = count;
  const startedMs = clock.monotonicMs();
  const worker = async (): Promise<void> => {
    while (left > 0) {
      left -= 1;
      await call();
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, worker));
  return count / ((clock.monotonicMs() - startedMs) / 1000);
}

async function stdoutRate({ clock }: BenchContext, sandbox: Sandbox, bytes: number): Promise<number> {
  const startedMs = clock.monotonicMs();
  const exec = sandbox.exec(['head', '-c', String(bytes), '/dev/zero'], { maxOutputBytes: 4096 });
  let received = 0;
  for await (const event of exec) {
    if (event.kind === 'gap') throw new Error('output was dropped although it was read');
    received += event.data.length;
  }
  if (received !== bytes) throw new Error(`${received} of ${bytes} bytes came`);
  return bytes / ((clock.monotonicMs() - startedMs) / 1000);
}
