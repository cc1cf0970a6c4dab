import type { NetworkPolicyRequest, NetworkRule, PolicyRequest } from '@dsec/contract';
import { SystemNetwork, type Clock } from '@dsec/kit';
import type { Sandbox } from '@dsec/libdsec';
import { EgressClient, WireClient, type EgressInfo } from '@dsec/native-link';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import { bringFlow, connects, questions, stream, watch } from './egress-flows.ts';
import { ALLOWED, ALLOWED_NETWORK, NAMED, PLAIN, type NetworkWorld } from './network-world.ts';
import type { Bar, Findings } from './report.ts';
import { quantiles, ratio, Sample } from './sample.ts';

export const egressBars: readonly Bar[] = [
  { name: 'throughput_ratio', least: 0.97 },
  { name: 'switch_ms', most: 50 },
  { name: 'switch_8192_ms', most: 50 },
  { name: 'create_overhead', most: 1.1 },
];

const FEW = 64;
/** The most that a policy may have. */
const MANY = 8192;
/** Of creates, that the pool serves without being filled meanwhile. */
const PAIRS = 12;
const WARM_UP = 300;
const QUICK_WARM_UP = 60;
/** The daemons have seen such a change by then. */
const WARM_UP_SWITCHES = 3;
const NAME = 'good.test';

const allow = (to: string): NetworkRule => ({ action: 'allow', to });
/** Networks that nobody here asks for. */
const others = (count: number): readonly NetworkRule[] =>
  Array.from({ length: count }, (_, i) => allow(`10.${i >> 8}.${i & 255}.0/24`));
const open = (rules: number): NetworkPolicyRequest => ({ rules: [allow(ALLOWED_NETWORK), ...others(rules - 1)] });
const closed = (rules: number): NetworkPolicyRequest => ({ rules: others(rules) });
const named: NetworkPolicyRequest = {
  rules: [...(open(FEW).rules ?? []), allow(NAME), allow(`*.${NAME}`)],
};
/** What a sandbox of an agent is created with: names and networks for setting up, less of them later. */
const WHOLE: PolicyRequest = { network: {}, phases: { setup: named, solve: {}, verify: closed(1) }, phase: 'setup' };

/**
 * `throughput_ratio`: bytes a second of one TCP stream out of a sandbox that a policy of 64 networks lets through, to those of the same program in the same sandbox by a
 * second veth that only lacks the filter. The two in turns; the ratio is the median of those of each turn. `switch_ms`: from the call of the SDK until the last answer on an
 * open flow, and until a new connection was refused, whichever is later; p95 of the worse of a phase and a whole policy, `switch_8192_ms` that of a phase where both
 * policies have as many rules as may be. `create_overhead`: medians of a create until the first command's result, with a whole policy to without, in turns.
 */
export async function benchEgress(context: BenchContext): Promise<Findings> {
  const { world, cores, server } = context;
  if (world === undefined) throw new Error('there is nothing to reach');
  const creates = await measureCreates(context);
  await using sandbox = await server.client.runContainer({
    containerImage: ENVIRONMENT,
    memoryLimitMb: 512,
    diskLimitMb: 1024,
    // It is not the processor that holds it up.
    cpuCoresLimit: cores,
    policy: { network: named },
  });
  await bringFlow(sandbox, world.program);
  const flows = await measureFlows(context, world, sandbox);
  const switches = await measureSwitches(context, sandbox);
  return {
    n: creates.n + flows.n + switches.n,
    failures: creates.failures,
    values: { ...flows.values, ...switches.values, ...creates.values },
    absent: {},
  };
}

type Part = Pick<Findings, 'n' | 'values'>;

async function measureFlows(
  { clock, isQuick, say, server }: BenchContext,
  world: NetworkWorld,
  sandbox: Sandbox,
): Promise<Part> {
  const [turns, turnMs, each] = isQuick ? [24, 150, 100] : [90, 500, 400];
  const { pid } = await recordOf(server.data, sandbox.sandboxId);
  const { mtu } = await askEgressd(server.data, clock);
  await using _plain = await world.plainUplink(pid, mtu);
  const { stdout: config } = await sandbox.exec(['cat', '/etc/resolv.conf']);
  const resolver = /^nameserver (\S+)/m.exec(config)?.[1] ?? '';

  const [filtered, plain, gate] = [new Sample(), new Sample(), new Sample()];
  const [toPlain, gateToPlain] = [new Sample(), new Sample()];
  for (let turn = 0; turn < turns; turn += 1) {
    // Its address has to be known again from time to time.
    await questions(sandbox, resolver, 'a', 1);
    const rates = new Map<string, number>();
    const hosts = [ALLOWED, PLAIN, NAMED];
    for (const host of turn % 2 === 0 ? hosts : hosts.toReversed()) {
      const { bytes, ms } = await stream(sandbox, host, `a0.${NAME}`, turnMs);
      rates.set(host, bytes / (ms / 1000));
    }
    const [ours = 0, without = 0, byName = 0] = hosts.map((host) => rates.get(host));
    filtered.add(ours);
    plain.add(without);
    gate.add(byName);
    toPlain.add(ours / without);
    gateToPlain.add(byName / without);
  }
  say(`one stream: ${mb(filtered)} MB a second, without the filter ${mb(plain)}, by name ${mb(gate)}`);

  const [asked, cached] = [new Sample(), new Sample()];
  for (const ms of await questions(sandbox, resolver, 'b', each)) asked.add(ms);
  for (const ms of await questions(sandbox, resolver, 'b', each)) cached.add(ms);
  const [byGate, byFilter, byPlain] = [new Sample(), new Sample(), new Sample()];
  for (const [host, sample] of [
    [NAMED, byGate],
    [ALLOWED, byFilter],
    [PLAIN, byPlain],
  ] as const) {
    for (const ms of await connects(sandbox, host, `a0.${NAME}`, each)) sample.add(ms);
  }
  return {
    n: 3 * turns + 5 * each,
    values: {
      throughput_ratio: toPlain.p50,
      throughput_bytes_per_second: filtered.p50,
      plain_throughput_bytes_per_second: plain.p50,
      gate_throughput_bytes_per_second: gate.p50,
      gate_throughput_ratio: gateToPlain.p50,
      gate_connect_ms: byGate.p50,
      connect_ms: byFilter.p50,
      plain_connect_ms: byPlain.p50,
      dns_ms: asked.p50,
      dns_cached_ms: cached.p50,
    },
  };
}

async function measureSwitches(context: BenchContext, sandbox: Sandbox): Promise<Part> {
  const each = context.isQuick ? 8 : 50;
  const byPhase = async (rules: number): Promise<Switch> => {
    await sandbox.policy.set({ phases: { setup: open(rules), solve: closed(rules) }, phase: 'setup' });
    return { open: () => sandbox.policy.phase('setup'), close: () => sandbox.policy.phase('solve') };
  };
  const bySet = (rules: number): Switch => {
    const [opening, closing] = [
      { network: open(rules), phase: null },
      { network: closed(rules), phase: null },
    ];
    return { open: () => sandbox.policy.set(opening), close: () => sandbox.policy.set(closing) };
  };
  const phase = await measureSwitch(context, sandbox, 'phase', await byPhase(FEW), each);
  const set = await measureSwitch(context, sandbox, 'set', bySet(FEW), each);
  const phaseOfMany = await measureSwitch(context, sandbox, 'phase_8192', await byPhase(MANY), each);
  const setOfMany = await measureSwitch(context, sandbox, 'set_8192', bySet(MANY), each);
  return {
    n: 4 * each,
    values: {
      switch_ms: Math.max(phase.worstMs, set.worstMs),
      switch_8192_ms: phaseOfMany.worstMs,
      ...phase.values,
      ...set.values,
      ...phaseOfMany.values,
      ...setOfMany.values,
    },
  };
}

interface Switch {
  readonly open: () => Promise<unknown>;
  readonly close: () => Promise<unknown>;
}

async function measureSwitch(
  { clock, say }: BenchContext,
  sandbox: Sandbox,
  kind: string,
  { open: opening, close: closing }: Switch,
  each: number,
): Promise<{ readonly worstMs: number; readonly values: Readonly<Record<string, number>> }> {
  const [flow, refused, answered] = [new Sample(), new Sample(), new Sample()];
  for (let i = -WARM_UP_SWITCHES; i < each; i += 1) {
    await opening();
    const { cut } = await watch(sandbox, ALLOWED);
    const calledMs = clock.now();
    await (i < 0 ? new Sample() : answered).time(clock, closing);
    const { lastMs, refusedMs } = await cut;
    if (i < 0) continue;
    flow.add(lastMs - calledMs);
    refused.add(refusedMs - calledMs);
  }
  const worstMs = Math.max(flow.p95 ?? Infinity, refused.p95 ?? Infinity);
  say(`${kind}: in effect within ${worstMs.toFixed(1)} ms`);
  const values = {
    ...quantiles(`${kind}_flow`, flow),
    ...quantiles(`${kind}_refused`, refused),
    ...quantiles(`${kind}_answered`, answered),
  };
  return { worstMs, values };
}

async function measureCreates(context: BenchContext): Promise<Part & Pick<Findings, 'failures'>> {
  const { isQuick, say, server } = context;
  const rounds = isQuick ? 4 : 40;
  const [bare, whole] = [new Sample(), new Sample()];
  const [stopBare, stopWhole] = [new Sample(), new Sample()];
  const madeWhole = new Set<string>();
  let failures = 0;
  const one = async (isWhole: boolean): Promise<void> => {
    const [create, stop] = isWhole ? [whole, stopWhole] : [bare, stopBare];
    try {
      const sandboxId = await oneCreate(context, isWhole ? WHOLE : undefined, create, stop);
      if (isWhole) madeWhole.add(sandboxId);
    } catch (error) {
      failures += 1;
      say(`a create failed: ${String(error)}`);
    }
  };
  for (let i = 0; i < (isQuick ? QUICK_WARM_UP : WARM_UP); i += 1)
    await oneCreate(context, i % 2 === 0 ? WHOLE : undefined, new Sample(), new Sample());
  for (let round = 0; round < rounds; round += 1) {
    await server.poolFull();
    for (let pair = 0; pair < PAIRS; pair += 1) {
      const isWholeFirst = pair % 2 === 0;
      await one(isWholeFirst);
      await one(!isWholeFirst);
    }
  }
  say(`create p50 ${whole.p50?.toFixed(2)} ms with a whole policy, ${bare.p50?.toFixed(2)} ms without`);
  return {
    n: rounds * PAIRS * 2,
    failures,
    values: {
      create_overhead: ratio(whole.p50, bare.p50),
      ...quantiles('create_whole', whole),
      ...quantiles('create_bare', bare),
      ...quantiles('stop_whole', stopWhole),
      ...quantiles('stop_bare', stopBare),
      ...(await partsOf(server.data, madeWhole)),
    },
  };
}

async function oneCreate(
  { clock, server }: BenchContext,
  policy: PolicyRequest | undefined,
  create: Sample,
  stop: Sample,
): Promise<string> {
  const sandbox = await create.time(clock, async () => {
    const made = await server.client.runContainer({
      containerImage: ENVIRONMENT,
      memoryLimitMb: 256,
      diskLimitMb: 1024,
      ...(policy === undefined ? {} : { policy }),
    });
    const { exitCode } = await made.exec(['true']);
    if (exitCode !== 0) throw new Error(`true ended with ${exitCode}`);
    return made;
  });
  await stop.time(clock, () => sandbox.stop());
  return sandbox.sandboxId;
}

/** Where the edge says that the time of creates with a policy went; medians. */
async function partsOf(
  data: string,
  sandboxIds: ReadonlySet<string>,
): Promise<Readonly<Record<string, number | undefined>>> {
  const parts = { backendMs: new Sample(), networkMs: new Sample(), journalMs: new Sample() };
  for (const line of (await readFile(join(data, 'log/edge.log'), 'utf8')).split('\n')) {
    if (!line.includes('"sandbox.create"')) continue;
    const fields = JSON.parse(line) as Readonly<Record<string, unknown>>;
    if (!sandboxIds.has(String(fields['sandboxId']))) continue;
    for (const [name, sample] of Object.entries(parts)) sample.add(Number(fields[name]));
  }
  return {
    create_whole_backend_ms: parts.backendMs.p50,
    create_whole_network_ms: parts.networkMs.p50,
    create_whole_journal_ms: parts.journalMs.p50,
  };
}

async function askEgressd(data: string, clock: Clock): Promise<EgressInfo> {
  const socket = await new SystemNetwork().connectUnix(join(data, 'run/egressd.sock'));
  await using wire = WireClient.connect(socket, { role: 'bench', clock });
  return await new EgressClient(wire).nodeInfo();
}

/** What the launcher notes of a sandbox. */
async function recordOf(data: string, sandboxId: string): Promise<{ readonly pid: number }> {
  return JSON.parse(await readFile(join(data, 'run/launcher', `${sandboxId}.json`), 'utf8')) as {
    readonly pid: number;
  };
}

const mb = (sample: Sample): string => ((sample.p50 ?? 0) / 1e6).toFixed(0);
