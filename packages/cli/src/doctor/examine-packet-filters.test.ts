/** Real tables, each in a network namespace of its own. */
import { join } from 'node:path';
import { run, SystemClock } from '@dsec/kit';
import { lacking } from '@dsec/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { programEnv } from '../server/volume.ts';
import type { Finding } from './finding.ts';
import { parseLegacy } from './legacy-iptables.ts';
import { parseRuleset } from './nft-ruleset.ts';
import { packetFilterFindings } from './examine-packet-filters.ts';

const clock = new SystemClock();
const DOCKER = 'iptables-nft -P FORWARD DROP; iptables-nft -N DOCKER-USER; iptables-nft -A FORWARD -j DOCKER-USER';
const DOCKER_RULES = `${DOCKER}; iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; iptables-nft -A FORWARD -i docker0 -j ACCEPT`;
const FIREWALLD =
  "nft add table inet firewalld; nft 'add chain inet firewalld filter_FORWARD { type filter hook forward priority filter + 10; policy accept; }'; nft add rule inet firewalld filter_FORWARD ct state established,related accept; nft add rule inet firewalld filter_FORWARD reject with icmpx type admin-prohibited";
const UFW =
  'iptables-nft -P INPUT DROP; iptables-nft -P FORWARD DROP; iptables-nft -N ufw-before-forward; iptables-nft -A FORWARD -j ufw-before-forward; iptables-nft -A ufw-before-forward -p icmp -j ACCEPT';
const OWN =
  "nft add table inet dsec0; nft 'add chain inet dsec0 forward { type filter hook forward priority filter; policy drop; }'";
const HAND =
  "nft add table ip mine; nft 'add chain ip mine f { type filter hook forward priority -150; policy drop; }'";

const inNamespace = async (setup: string, ...look: readonly string[]): Promise<string> => {
  const argv = ['unshare', '-n', 'sh', '-ec', `${setup}\nexec "$@"`, 'sh', ...look] as const;
  return (await run(argv, { clock, env: programEnv, timeoutMs: 30_000 })).stdout.toString();
};

/** Of a doctor there. */
async function examinedIn(setup: string): Promise<readonly Finding[]> {
  const fixture = join(import.meta.dirname, 'packet-filters.fixture.ts');
  const look = [process.execPath, '--disable-warning=ExperimentalWarning', fixture];
  return JSON.parse(await inNamespace(setup, ...look)) as readonly Finding[];
}

/** Of what nft says there. */
const findingsIn = async (setup: string): Promise<readonly Finding[]> =>
  packetFilterFindings(parseRuleset(JSON.parse(await inNamespace(setup, 'nft', '-j', 'list', 'ruleset'))));

describe('in a network namespace', () => {
  const lack = lacking('root', 'egress');
  beforeEach((context) => {
    if (lack !== undefined) context.skip(lack);
  });

  test.each<[string, string, readonly (readonly [string, string])[], string]>([
    [
      'docker',
      DOCKER_RULES,
      [['network: docker at hook forward', 'ip filter, chain FORWARD (priority 0']],
      'DOCKER-USER',
    ],
    [
      'ufw',
      UFW,
      [
        ['network: ufw at hook forward', 'chain FORWARD'],
        ['network: ufw at hook input', 'chain INPUT'],
      ],
      'ufw reload',
    ],
    [
      'firewalld, whose policy is accept',
      FIREWALLD,
      [['network: firewalld at hook forward', "priority 10, after dsec's): drops what no rule"]],
      '--zone=trusted',
    ],
    [
      'a table of somebody',
      HAND,
      [['network: another table at hook forward', "priority -150, before dsec's): policy drop"]],
      'iifname',
    ],
  ])('%s that drops what it does not know is told, with what to do', async (_who, setup, expected, fix) => {
    const findings = await findingsIn(setup);
    expect(findings.map(({ name }) => name)).toEqual(expected.map(([name]) => name));
    for (const [index, [, detail]] of expected.entries()) expect(findings[index]?.detail).toContain(detail);
    for (const finding of findings) expect(finding).toMatchObject({ isPresent: false, isNeeded: false });
    expect(findings[0]?.fix).toContain(fix);
  });

  test.each([
    ['no table', 'true'],
    ["dsec's own", OWN],
    ['docker, after what is to be done', `${DOCKER_RULES}; iptables-nft -I DOCKER-USER -i 'dsec+' -j ACCEPT`],
    [
      'docker, when the network of sandboxes is let through',
      `${DOCKER}; iptables-nft -I DOCKER-USER -s 198.18.0.0/15 -j ACCEPT`,
    ],
    [
      'firewalld, after what is to be done',
      `${FIREWALLD}; nft insert rule inet firewalld filter_FORWARD ip saddr 198.18.0.0/15 accept`,
    ],
    ['a table of somebody that knows them', `${HAND}; nft add rule ip mine f iifname '{ "lo", "dsec*" }' accept`],
    [
      'a filter that drops for others',
      "nft add table ip t; nft 'add chain ip t f { type filter hook forward priority 0; policy accept; }'; nft add rule ip t f iifname docker0 drop; nft add rule ip t f ct state invalid drop",
    ],
  ])('%s is no finding', async (_who, setup) => {
    expect(await findingsIn(setup)).toEqual([
      expect.objectContaining({ isPresent: true, detail: 'none drops what sandboxes send' }),
    ]);
  });

  test('a doctor there finds all of them, legacy iptables too, and none that knows sandboxes', async () => {
    const legacy = 'iptables-legacy -P FORWARD DROP';
    const found = await examinedIn(`${DOCKER_RULES}; ${HAND}; ${legacy}`);
    expect(found.map(({ name }) => name).toSorted()).toEqual([
      'network: another table at hook forward',
      'network: docker at hook forward',
      'network: iptables at hook forward',
    ]);
    expect(found.find(({ name }) => name.includes('iptables'))?.detail).toContain('legacy ip filter, chain FORWARD');
    expect(await examinedIn(`${legacy}; iptables-legacy -A FORWARD -i 'dsec+' -j ACCEPT`)).toEqual([
      expect.objectContaining({ isPresent: true }),
    ]);
  });

  test('the rules of the fix for docker are ones that iptables takes, and they end the finding', async () => {
    const [before] = await findingsIn(DOCKER_RULES);
    const commands = [...(before?.fix.matchAll(/`(iptables [^`]+)`/g) ?? [])].map(([, command]) => command ?? '');
    expect(commands).toHaveLength(2);
    const nft = commands.map((command) => command.replace(/^iptables /, 'iptables-nft ')).join('; ');
    expect(await findingsIn(`${DOCKER_RULES}; ${nft}`)).toMatchObject([{ isPresent: true }]);
  });
});

test('what is no ruleset, or refers to what is not there, is none', () => {
  for (const report of [null, {}, { nftables: 1 }, { nftables: [null, 1, { rule: {} }, { chain: 1 }] }])
    expect(packetFilterFindings(parseRuleset(report))).toMatchObject([{ isPresent: true }]);
  const loop = '-P FORWARD DROP\n-N A\n-A FORWARD -j A\n-A A -j A\n-A FORWARD -j NOWHERE\n-A';
  expect(packetFilterFindings([parseLegacy(loop)])).toMatchObject([{ isPresent: false }]);
});
