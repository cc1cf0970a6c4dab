/**
 * `npm run -s bench -- NAME [--quick]`: starts a server of its own, measures, and prints one JSON object as the last line of stdout.
 * Exits with 1 when a bar was missed.
 */
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { PlatformError } from '@dsec/contract';
import { SystemClock, SystemRandom, type Clock } from '@dsec/kit';
import { lacking, TestServer } from '@dsec/testkit';
import { abuseBars, benchAbuse } from './abuse.ts';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import { benchBurst, BURST_POOL, burstBars } from './burst.ts';
import { benchCreate, createBars } from './create.ts';
import { benchEgress, egressBars } from './egress.ts';
import { benchExec, execBars } from './exec.ts';
import { Floor } from './floor.ts';
import { benchLayers, layersBars } from './layers.ts';
import { NetworkWorld } from './network-world.ts';
import { benchOndemand, ondemandBars } from './ondemand.ts';
import { reportOf, type Bar, type Findings } from './report.ts';

interface Bench {
  readonly bars: readonly Bar[];
  /** Sandboxes that `dsec up` makes ahead. @default its own */
  readonly poolBlanks?: number;
  /** Its sandboxes may have a network, and there is something to reach; `where-possible`: a machine that cannot is no error. @default false */
  readonly isNetworked?: boolean | 'where-possible';
  readonly measure: (context: BenchContext) => Promise<Findings>;
}

const benches: Readonly<Record<string, Bench>> = {
  create: { bars: createBars, measure: benchCreate },
  exec: { bars: execBars, measure: benchExec },
  layers: { bars: layersBars, measure: benchLayers },
  ondemand: { bars: ondemandBars, measure: benchOndemand },
  egress: { bars: egressBars, isNetworked: true, measure: benchEgress },
  abuse: { bars: abuseBars, isNetworked: 'where-possible', measure: benchAbuse },
  burst: { bars: burstBars, poolBlanks: BURST_POOL, measure: benchBurst },
};

async function worldOf(bench: Bench, clock: Clock, say: (text: string) => void): Promise<NetworkWorld | undefined> {
  if (bench.isNetworked === undefined || bench.isNetworked === false) return undefined;
  if (bench.isNetworked === true) return NetworkWorld.start(clock);
  if (lacking('root', 'egress') !== undefined) return undefined;
  try {
    return await NetworkWorld.start(clock);
  } catch (error) {
    if (!PlatformError.is(error) || error.code !== 'host_unsuitable') throw error;
    say(`without a network: ${error.message} ${JSON.stringify(error.details)}`);
    return undefined;
  }
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({ options: { quick: { type: 'boolean' } }, allowPositionals: true });
  const [name = ''] = positionals;
  const bench = benches[name];
  if (bench === undefined) {
    throw new PlatformError('invalid_argument', `there is no benchmark "${name}": ${Object.keys(benches).join(', ')}`, {
      details: { field: 'name' },
    });
  }
  const clock = new SystemClock();
  const startedMs = clock.monotonicMs();
  const say = (text: string): void =>
    console.error(`[${((clock.monotonicMs() - startedMs) / 1000).toFixed(1)}s] ${text}`);
  say('starting a server');
  const floor = await Floor.build(clock);
  // It is there before the server, whose resolver asks it, and goes after it.
  await using world = await worldOf(bench, clock, say);
  await using server = await TestServer.start({
    volumeSize: '64G',
    environments: [ENVIRONMENT],
    isLocal: true,
    ...(bench.poolBlanks === undefined ? {} : { poolBlanks: bench.poolBlanks }),
    ...(world === undefined ? {} : { network: true, variables: { DSEC_RESOLVER_RESOLV_CONF: world.resolvConf } }),
  });
  const { image } = await server.client.environments.get(ENVIRONMENT);
  const [digest = ''] = image.layers;
  const findings = await bench.measure({
    clock,
    random: new SystemRandom(),
    server,
    floor,
    world,
    cores: availableParallelism(),
    isQuick: values.quick === true,
    layer: join(server.data, 'layers', digest.replace('sha256:', '')),
    say,
  });
  const report = reportOf(name, findings, bench.bars);
  await server[Symbol.asyncDispose]();
  console.log(JSON.stringify(report));
  if (Array.isArray(report.missed) && report.missed.length > 0) process.exitCode = 1;
}

try {
  await main();
} catch (error) {
  // What failed first is not shown otherwise.
  if (error instanceof SuppressedError) console.error(error.suppressed);
  if (!PlatformError.is(error)) throw error;
  console.error(`error: ${error.message} [${error.code}]`, error.details, error.cause ?? '');
  process.exitCode = 1;
}
