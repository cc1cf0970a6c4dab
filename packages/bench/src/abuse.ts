import type { PolicyRequest } from '@dsec/contract';
import { Process } from '@dsec/kit';
import type { Sandbox } from '@dsec/libdsec';
import { waitFor } from '@dsec/testkit';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import { compiled } from './c-program.ts';
import { ALLOWED, ALLOWED_NETWORK, type NetworkWorld } from './network-world.ts';
import type { Bar, Findings } from './report.ts';
import { ratio, Sample } from './sample.ts';

export const abuseBars: readonly Bar[] = [{ name: 'neighbour_p99_ratio', most: 2 }];

const PROGRAM = '/abuse';
const MEMORY_MIB = 256;
/** Calls before the first that counts: the SDK and the daemons are compiled by then. */
const WARM_UP = 6000;
/** An abuser is at full speed by then: the slowest fills a file of twice its memory. */
const READY_MS = 60_000;
/** After an abuser has gone, what it left is cleared away, and the neighbour is as quick as before, or nearly. */
const CALM_CALLS = 40;
const CALM_FACTOR = 1.25;
const CALM_MS = 30_000;
const CLI = join(import.meta.dirname, '../../cli/src/main.ts');

interface Abuse {
  readonly name: string;
  /** Resolves when it is at full speed; what it gives is disposed of when the sandbox has stopped. */
  readonly begin: (abuser: Sandbox) => Promise<AsyncDisposable>;
}

/**
 * `neighbour_p99_ratio`: p99 of `true` in one sandbox while another takes all that it can get of one kind, to the same alone; the worst of all kinds. The abuser
 * may use all cores, 256 MiB, 512 processes and 512 MiB of disk, the neighbour one core. Each turn measures alone and abused one behind the other, so that both sides
 * of a ratio are of the same minutes.
 */
export async function benchAbuse(context: BenchContext): Promise<Findings> {
  const { clock, cores, isQuick, say, server, world } = context;
  const [rounds, each] = isQuick ? [1, 300] : [5, 400];
  const program = Uint8Array.from(await readFile(await compiled('abuse/abuse.c', clock)));
  const policy: PolicyRequest | undefined =
    world === undefined ? undefined : { network: { rules: [allow(ALLOWED_NETWORK), allow('*.good.test')] } };
  await using neighbour = await server.client.runContainer({
    containerImage: ENVIRONMENT,
    memoryLimitMb: 256,
    diskLimitMb: 512,
  });
  let failures = 0;
  const call = async (sample: Sample): Promise<void> => {
    try {
      const { exitCode } = await sample.time(clock, async () => neighbour.exec(['true']));
      if (exitCode !== 0) throw new Error(`true ended with ${exitCode}`);
    } catch (error) {
      failures += 1;
      say(`an exec of the neighbour failed: ${String(error)}`);
    }
  };
  const calls = async (sample: Sample, count: number): Promise<void> => {
    for (let i = 0; i < count; i += 1) await call(sample);
  };
  const usual = new Sample();
  await calls(new Sample(), WARM_UP);
  await calls(usual, each);
  const isCalm = async (): Promise<boolean> => {
    const now = new Sample();
    await calls(now, CALM_CALLS);
    return (now.p50 ?? Infinity) < (usual.p50 ?? 0) * CALM_FACTOR;
  };
  const values: Record<string, number | undefined> = {};
  const kinds = abusesOf(context, world);
  for (const { name, begin } of kinds) {
    const [alone, abused] = [new Sample(), new Sample()];
    for (let round = 0; round < rounds; round += 1) {
      await calls(alone, each);
      const abuser = await server.client.runContainer({
        containerImage: ENVIRONMENT,
        memoryLimitMb: MEMORY_MIB,
        diskLimitMb: 512,
        pidsLimit: 512,
        cpuCoresLimit: cores,
        ...(policy === undefined ? {} : { policy }),
      });
      await abuser.files.write(PROGRAM, program, { mode: 0o755 });
      {
        await using _abuse = await begin(abuser);
        await calls(abused, each);
        await abuser.stop();
      }
      await waitFor(clock, 'the neighbour to be as quick as before', isCalm, CALM_MS);
    }
    values[`${name}_ratio`] = ratio(abused.p99, alone.p99);
    values[`${name}_alone_p99_ms`] = alone.p99;
    values[`${name}_p50_ms`] = abused.p50;
    values[`${name}_p99_ms`] = abused.p99;
    say(`${name}: p99 ${abused.p99?.toFixed(2)} ms, alone ${alone.p99?.toFixed(2)} ms: ${values[`${name}_ratio`]}`);
  }
  const ratios = kinds.map(({ name }) => values[`${name}_ratio`] ?? Infinity);
  const worst = kinds[ratios.indexOf(Math.max(...ratios))];
  say(`the worst is ${worst?.name}`);
  return {
    n: kinds.length * rounds * each * 2,
    failures,
    values: { neighbour_p99_ratio: Math.max(...ratios), ...values },
    absent: world === undefined ? { connects: 'no network', names: 'no network' } : {},
  };
}

const allow = (to: string) => ({ action: 'allow', to }) as const;

function abusesOf(context: BenchContext, world: NetworkWorld | undefined): readonly Abuse[] {
  const own = (name: string, ...args: readonly string[]): Abuse => ({
    name,
    begin: (abuser) => beginProgram(context, abuser, [PROGRAM, name, ...args]),
  });
  const kinds: readonly Abuse[] = [
    own('spin'),
    own('forks'),
    own('programs'),
    own('memory', String(MEMORY_MIB * 1024 * 1024)),
    { name: 'output', begin: (abuser) => beginOutput(abuser) },
    { name: 'output_read', begin: (abuser) => beginReadOutput(context, abuser) },
    own('file'),
    own('tiny'),
    own('syncs'),
    own('pipes'),
    own('namespaces'),
    own('denied'),
  ];
  if (world === undefined) return kinds;
  const names: Abuse = {
    name: 'names',
    begin: async (abuser) => {
      const resolver = /^nameserver (\S+)/m.exec(await abuser.files.readText('/etc/resolv.conf'))?.[1] ?? '';
      return beginProgram(context, abuser, [PROGRAM, 'names', resolver]);
    },
  };
  return [...kinds, own('connects', ALLOWED), names];
}

/** It goes on until its sandbox is stopped. */
async function beginProgram(
  { clock }: BenchContext,
  abuser: Sandbox,
  argv: readonly [string, ...string[]],
): Promise<AsyncDisposable> {
  const heard = { isReady: false, isOver: false };
  const listen = async (): Promise<void> => {
    for await (const event of abuser.exec(argv)) if (event.kind !== 'gap') heard.isReady = true;
  };
  const end = (): void => {
    heard.isOver = true;
  };
  // The end of its sandbox is an error of its exec.
  const isOver = listen().then(end, end);
  await waitFor(clock, `${argv.join(' ')} to be at full speed`, () => heard.isReady || heard.isOver, READY_MS);
  if (heard.isOver) throw new Error(`${argv.join(' ')} ended by itself`);
  return { [Symbol.asyncDispose]: () => isOver };
}

/** Output that nobody reads. */
async function beginOutput(abuser: Sandbox): Promise<AsyncDisposable> {
  await abuser.execDetached(['yes']);
  return nothingLeft;
}

/** Output that a client of its own reads as fast as it comes. */
async function beginReadOutput({ clock, server }: BenchContext, abuser: Sandbox): Promise<AsyncDisposable> {
  const argv = [process.execPath, CLI, 'exec', abuser.sandboxId, '--', 'yes'] as const;
  const reader = await Process.start(argv, {
    clock,
    env: { DSEC_DATA: server.data },
    stdin: 'ignore',
    stdout: 'ignore',
  });
  await waitFor(clock, 'output to flow', async () => {
    const [exec] = await abuser.execs();
    return exec !== undefined && exec.stdoutBytes > 1_000_000;
  });
  return { [Symbol.asyncDispose]: async () => void (await reader.stop()) };
}

const nothingLeft: AsyncDisposable = { [Symbol.asyncDispose]: () => Promise.resolve() };
