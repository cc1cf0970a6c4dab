import {
  policyPhases,
  policyProfiles,
  type NetworkPolicy,
  type NetworkRule,
  type Policy,
  type PolicyPhase,
  type PolicyUpdate,
} from '@dsec/contract';
import type { Sandbox } from '@dsec/libdsec';
import { Option, type Command } from 'commander';
import { integer, withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, printJson, say, type Context } from '../context.ts';
import { policyFile } from '../policy-file.ts';
import { printable, table } from '../table.ts';

interface Options extends ConnectionOptions {
  readonly set?: PolicyUpdate;
  readonly phase?: PolicyPhase | 'none';
  readonly ifVersion?: number;
  readonly json?: boolean;
}

const HELP = `
A policy is JSON: {"network": {"rules": [{"action": "allow", "to": "api.example.com"}], "services": {"npm": true}},
"phases": {"setup": {...}, "solve": {}}, "phase": "setup"}. Nothing is reachable but what it allows; denials win.
What --json prints can be changed and set again.`;

export function policyVerb(program: Command, context: Context): void {
  const policy = program
    .command('policy')
    .argument('<sandbox>')
    .description('show what a sandbox may reach and do, or change it while it runs')
    .addHelpText('after', HELP);
  withConnection(policy)
    .option('--set <file>', 'replace its policy by that of a JSON file; `-` is stdin', policyFile)
    .addOption(
      new Option('--phase <phase>', 'enter this phase of the policy; `none` leaves it').choices([
        ...policyPhases,
        'none',
      ]),
    )
    .option(
      '--if-version <n>',
      'refuse the change unless this version is in force (default: that of the file)',
      integer,
    )
    .option('--json', 'print the policy as JSON')
    .action(async (sandboxId: string, options: Options) => {
      await using client = await connect(context, options);
      const sandbox = await client.getSandbox(sandboxId, { signal: context.interrupted });
      const changed = await change(context, sandbox, options);
      const shown = changed ?? (await sandbox.policy.get({ signal: context.interrupted }));
      if (options.json === true) printJson(context, shown);
      else if (changed === undefined) show(context, shown);
      else say(context, `policy version ${shown.version} is in force${phaseOf(shown)}`);
    });
  policy
    .command('profiles')
    .description('list the profiles: what each means for the processes and the network of a sandbox')
    .option('--json', 'print them as JSON')
    .action((options: { readonly json?: boolean }) => {
      if (options.json === true) printJson(context, policyProfiles);
      else for (const [name, profile] of Object.entries(policyProfiles)) showProfile(context, name, profile);
    });
}

/** Undefined when nothing is asked for but to look. */
async function change(context: Context, sandbox: Sandbox, options: Options): Promise<Policy | undefined> {
  const { set, phase, ifVersion } = options;
  const call = { signal: context.interrupted };
  const entered = phase === undefined ? {} : { phase: phase === 'none' ? null : phase };
  const based = ifVersion === undefined ? {} : { version: ifVersion };
  if (set !== undefined) return await sandbox.policy.set({ ...set, ...entered, ...based }, call);
  if (entered.phase === undefined) return undefined;
  return await sandbox.policy.phase(entered.phase, { ...based, ...call });
}

const phaseOf = ({ phase }: Policy): string => (phase === null ? '' : `, phase ${phase}`);

function show(context: Context, policy: Policy): void {
  print(context, `version ${policy.version}, profile ${policy.profile}${phaseOf(policy)}`);
  for (const path of policy.tripwires ?? []) print(context, `tripwire ${printable(path)}`);
  const shown: readonly (readonly [string, NetworkPolicy | undefined])[] = [
    ['network', policy.network],
    ...policyPhases.map((phase) => [`phase ${phase}`, policy.phases?.[phase]] as const),
  ];
  for (const [name, network] of shown) if (network !== undefined) showNetwork(context, name, network);
}

function showNetwork(context: Context, name: string, network: NetworkPolicy): void {
  const literals = network.ipLiterals ? '' : ', addresses only as answers of the resolver';
  print(context, `\n${name}: what is not named is ${network.default === 'deny' ? 'closed' : 'open'}${literals}`);
  const rows = [
    ...network.rules.map((rule) => [rule.action, rule.to, rule.ports?.join(',') ?? '', protocolOf(rule)]),
    ...Object.entries(network.services).map(([service, isOpen]) => [isOpen ? 'allow' : 'deny', service, '', 'service']),
  ];
  if (rows.length > 0) print(context, table(['ACTION', 'TO', 'PORTS', 'PROTOCOL'], rows));
}

/** A denial that names none is of all. */
function protocolOf({ action, protocol, anyProtocol }: NetworkRule): string {
  const shown = protocol ?? (action === 'allow' ? 'tcp' : 'all');
  return anyProtocol === true ? `${shown}, not looked at` : shown;
}

function showProfile(context: Context, name: string, { summary, processes, network }: Profile): void {
  print(context, `${name}: ${summary}`);
  for (const line of processes) print(context, `  ${line}`);
  const literals = network.ipLiterals ? 'by address or name' : 'by name only';
  print(context, `  network: closed but for what the policy allows, ${literals}`);
}

type Profile = (typeof policyProfiles)[keyof typeof policyProfiles];
