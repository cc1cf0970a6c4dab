/** What the network of a server is on its host (native/egress/src/block.rs), looked at from outside. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run, SystemClock } from '@dsec/kit';

const PATH = '/usr/sbin:/usr/bin:/sbin:/bin';
/** `ds`, in front of number and meaning. */
const MARK = 0x6473_0000;

export interface NodeNetwork {
  readonly number: number;
  /** The gateway's. */
  readonly address4: string;
}

/** The network of the server of a data directory, if it has one. */
export async function nodeNetworkOf(data: string): Promise<NodeNetwork | undefined> {
  const read = async (name: string): Promise<Record<string, unknown> | undefined> => {
    const text = await readFile(join(data, name), 'utf8').catch(() => undefined);
    return text === undefined ? undefined : (JSON.parse(text) as Record<string, unknown>);
  };
  const settled = await read('run/egress/network.json');
  const resolver = await read('run/resolver.json');
  if (settled === undefined) return undefined;
  return { number: Number(settled['number']), address4: String(resolver?.['address4']) };
}

/** Interfaces of the sandboxes of a server. */
export async function devicesOf(data: string): Promise<readonly string[]> {
  const network = await nodeNetworkOf(data);
  return network === undefined ? [] : devicesNamed(network);
}

/** What of a network is still there, by kind and name. */
export async function leftOfNetwork(network: NodeNetwork): Promise<readonly string[]> {
  const mark = `0x${(MARK + network.number * 16).toString(16).slice(0, -1)}`;
  const [tables, rules, rules6, routes, addresses] = await Promise.all([
    tool('nft', 'list', 'tables'),
    tool('ip', 'rule'),
    tool('ip', '-6', 'rule'),
    tool('ip', 'route', 'show', 'table', 'all'),
    tool('ip', '-o', 'address', 'show', 'dev', 'lo'),
  ]);
  const matching = (kind: string, lines: readonly string[], text: string): readonly string[] =>
    lines.filter((line) => line.includes(text)).map((line) => `${kind}: ${line.trim()}`);
  return [
    ...(await devicesNamed(network)).map((name) => `device: ${name}`),
    ...matching(
      'table',
      tables.map((line) => `${line} `),
      ` dsec${network.number} `,
    ),
    ...matching('rule', [...rules, ...rules6], `fwmark ${mark}`),
    ...matching('route', routes, `dsec${network.number}.`),
    ...matching('address', addresses, ` ${network.address4}/`),
  ];
}

const devicesNamed = async ({ number }: NodeNetwork): Promise<readonly string[]> =>
  (await readdir('/sys/class/net')).filter((name) => name.startsWith(`dsec${number}.`));

async function tool(program: string, ...args: readonly string[]): Promise<readonly string[]> {
  const { stdout } = await run([program, ...args], { clock: new SystemClock(), env: { PATH }, timeoutMs: 30_000 });
  return stdout.toString().split('\n');
}
