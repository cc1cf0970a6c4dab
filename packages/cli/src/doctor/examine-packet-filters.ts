import { PlatformError } from '@dsec/contract';
import { run, type Argv, type Clock } from '@dsec/kit';
import { readFile } from 'node:fs/promises';
import { programEnv } from '../server/volume.ts';
import type { Finding } from './finding.ts';
import { parseLegacy } from './legacy-iptables.ts';
import { parseRuleset } from './nft-ruleset.ts';
import { isDropped, type FilterTable } from './packet-filter.ts';

const NAME = 'network: other packet filters';
const LOOK_MS = 10_000;
/** Rulesets of hosts with many services are long. */
const MAX_RULESET_BYTES = 64 * 1024 * 1024;
/** Of dsec itself: one for each server. */
const OWN_TABLE = /^inet dsec\d+$/;
const HOOKS = ['forward', 'input'] as const;
type Hook = (typeof HOOKS)[number];

const meanings: Readonly<Record<Hook, string>> = {
  forward:
    'sandboxes with a network are connected through this machine: what it drops they do not reach, whatever their policy allows, and hear nothing',
  input:
    'sandboxes with a network ask the resolver on this machine, and go by the gate on it to what is allowed by name: what it drops they wait for in vain',
};

/** Who has put a table there, told by its chains, and what he is to be told. */
interface Owner {
  readonly name: string;
  readonly isIt: (table: FilterTable) => boolean;
  readonly fix: Readonly<Record<Hook, string>>;
}

const BOTH_WAYS = "-i 'dsec+' -j ACCEPT` and `iptables -I";
const owners: readonly Owner[] = [
  {
    name: 'docker',
    isIt: ({ chains }) => chains.has('DOCKER-USER') || chains.has('DOCKER-FORWARD') || chains.has('DOCKER'),
    fix: {
      forward: `\`iptables -I DOCKER-USER ${BOTH_WAYS} DOCKER-USER -o 'dsec+' -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\`; docker keeps them until the next boot`,
      input: "`iptables -I INPUT -i 'dsec+' -j ACCEPT`",
    },
  },
  {
    name: 'ufw',
    isIt: ({ chains }) => [...chains.keys()].some((chain) => /^ufw6?-/.test(chain)),
    fix: {
      forward:
        'in /etc/ufw/before.rules (and before6.rules), before COMMIT: `-A ufw-before-forward -i dsec+ -j ACCEPT` and `-A ufw-before-forward -o dsec+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT` (ufw6-before-forward there), then `ufw reload`',
      input:
        'in /etc/ufw/before.rules (and before6.rules), before COMMIT: `-A ufw-before-input -i dsec+ -j ACCEPT` (ufw6-before-input there), then `ufw reload`',
    },
  },
  {
    name: 'firewalld',
    isIt: ({ name }) => name.endsWith(' firewalld'),
    fix: {
      forward:
        '`firewall-cmd --permanent --zone=trusted --add-source=198.18.0.0/15` (or the network that `dsec up --network` names), then `firewall-cmd --reload`',
      input:
        '`firewall-cmd --permanent --zone=trusted --add-source=198.18.0.0/15` (or the network that `dsec up --network` names), then `firewall-cmd --reload`',
    },
  },
  {
    name: 'iptables',
    isIt: ({ chains }) => chains.has('FORWARD') || chains.has('INPUT'),
    fix: {
      forward: `\`iptables -I FORWARD ${BOTH_WAYS} FORWARD -o 'dsec+' -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\` (ip6tables too; iptables-legacy where it is a legacy table)`,
      input: "`iptables -I INPUT -i 'dsec+' -j ACCEPT` (ip6tables too; iptables-legacy where it is a legacy table)",
    },
  },
];

const anybody: Owner = {
  name: 'another table',
  isIt: () => true,
  fix: {
    forward: 'let it accept at hook forward `iifname "dsec*"`, and `oifname "dsec*" ct state established,related`',
    input: 'let it accept at hook input `iifname "dsec*"`',
  },
};

/** Tables on this host beside dsec's own that drop what sandboxes send. Nothing is changed, and no module is loaded. */
export async function examinePacketFilters(clock: Clock): Promise<readonly Finding[]> {
  let tables: readonly FilterTable[];
  try {
    tables = [
      ...parseRuleset(JSON.parse(await ask(clock, ['nft', '-j', 'list', 'ruleset']))),
      ...(await legacyTables(clock)),
    ];
  } catch (error) {
    if (!PlatformError.is(error) && !(error instanceof SyntaxError)) throw error;
    return [notLookedAt(error)];
  }
  return packetFilterFindings(tables);
}

/** The same of tables that are known. */
export function packetFilterFindings(tables: readonly FilterTable[]): readonly Finding[] {
  const findings = HOOKS.flatMap((hook) => droppingAt(hook, tables));
  if (findings.length > 0) return findings;
  return [
    {
      name: NAME,
      isPresent: true,
      isNeeded: false,
      detail: 'none drops what sandboxes send',
      why: meanings.forward,
      fix: 'nothing',
    },
  ];
}

function droppingAt(hook: Hook, tables: readonly FilterTable[]): readonly Finding[] {
  const found = new Map<Owner, string[]>();
  for (const table of tables.filter(({ name }) => !OWN_TABLE.test(name))) {
    for (const [name, chain] of table.chains) {
      const { base } = chain;
      if (base?.hook !== hook || !isDropped(table, chain)) continue;
      const owner = owners.find(({ isIt }) => isIt(table)) ?? anybody;
      const how = base.isDropping ? 'policy drop' : 'drops what no rule of it accepts';
      const places = found.get(owner) ?? [];
      places.push(`table ${table.name}, chain ${name} (priority ${base.priority}, ${orderOf(base.priority)}): ${how}`);
      found.set(owner, places);
    }
  }
  return [...found].map(([{ name, fix }, places]) => ({
    name: `network: ${name} at hook ${hook}`,
    isPresent: false,
    isNeeded: false,
    detail: places.join('; '),
    why: meanings[hook],
    fix: fix[hook],
  }));
}

/** A drop counts in either order. */
const orderOf = (priority: number): string =>
  priority < 0 ? "before dsec's" : priority > 0 ? "after dsec's" : "beside dsec's";

/** Asked only when it is loaded: the program would load it. */
async function legacyTables(clock: Clock): Promise<readonly FilterTable[]> {
  const names = await readFile('/proc/net/ip_tables_names', 'utf8').catch(() => '');
  if (!names.split('\n').includes('filter')) return [];
  return [parseLegacy(await ask(clock, ['iptables-legacy', '-S']))];
}

async function ask(clock: Clock, argv: Argv): Promise<string> {
  const { stdout } = await run(argv, { clock, env: programEnv, timeoutMs: LOOK_MS, maxStdoutBytes: MAX_RULESET_BYTES });
  return stdout.toString();
}

function notLookedAt(error: unknown): Finding {
  const isMissing = PlatformError.is(error) && error.code === 'command_not_found';
  const isRoot = process.getuid?.() === 0;
  return {
    name: NAME,
    isPresent: false,
    isNeeded: false,
    detail: isMissing ? `${error.message}` : isRoot ? 'they are not to be read' : 'only root can look',
    why: meanings.forward,
    fix: isMissing ? 'apt-get install nftables iptables' : 'run `sudo bin/dsec doctor`',
  };
}
