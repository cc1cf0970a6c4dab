/**
 * The network of sandboxes (docs/decisions/0008-egress.md): egressd and the resolver, where the host can run them. What egressd has put into the kernel outlives it, so that
 * sandboxes go on; here it is taken away when it is over.
 */
import { readdir, readFile } from 'node:fs/promises';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { parsePrefix, PlatformError } from '@dsec/contract';
import { compileSchema, run, type Clock, type Network } from '@dsec/kit';
import { EgressClient, WireClient, type EgressInfo } from '@dsec/native-link';
import { Type } from 'typebox';
import { exists, isErrno, type DataDirectory } from './data-directory.ts';
import type { Installation } from './installation.ts';
import { notListening } from './readiness.ts';
import { programEnv } from './volume.ts';

/** For measurements between networks (RFC 2544): on no LAN. */
const DEFAULT_CIDR = '198.18.0.0/15';
const NO_NETWORK = 'none';
/** What egressd takes. */
const MIN_BITS = 8;
const MAX_BITS = 28;
const CLEAR_MS = 60_000;
/** An egressd whose supervisor was killed ends by itself. */
const END_MS = 10_000;
const CALL_MS = 10_000;
const MAX_REASON_CHARS = 300;

export interface NetworkChoice {
  /** What sandboxes get their addresses of; undefined: none gets any. */
  readonly cidr: string | undefined;
  /** Whether a host that cannot is an error, and not a server without a network. */
  readonly isDemanded: boolean;
}

/** What of the network the edge is told. */
export type NodeNetwork = { readonly resolverSocket: string } | { readonly lack: string };

/** What `--network` says; undefined is the default. @throws PlatformError `config_invalid` */
export function parseNetwork(text: string | undefined): NetworkChoice {
  if (text === undefined) return { cidr: DEFAULT_CIDR, isDemanded: false };
  if (text === NO_NETWORK) return { cidr: undefined, isDemanded: false };
  const parsed = parsePrefix(text);
  const reason = !parsed.ok
    ? parsed.reason
    : parsed.prefix.family !== 4 || parsed.prefix.length < MIN_BITS || parsed.prefix.length > MAX_BITS
      ? `is not of IPv4 with ${MIN_BITS} to ${MAX_BITS} bits`
      : undefined;
  if (reason === undefined) return { cidr: text, isDemanded: true };
  throw new PlatformError('config_invalid', `--network wants a CIDR or ${NO_NETWORK}; ${text} ${reason}`, {
    details: { field: '--network' },
  });
}

export interface SandboxNetworkParts {
  readonly data: DataDirectory;
  readonly installation: Installation;
  readonly clock: Clock;
  readonly network: Network;
}

/** Without the packet filter nothing of a network could be taken away again either. @throws PlatformError `host_unsuitable` */
export async function checkPacketFilter(clock: Clock): Promise<void> {
  try {
    await run(['nft', 'list', 'tables'], { clock, env: programEnv, timeoutMs: CALL_MS });
  } catch (cause) {
    if (!PlatformError.is(cause)) throw cause;
    const why =
      cause.code === 'command_not_found' ? 'is not installed (Debian package nftables)' : 'does not work here';
    throw new PlatformError('host_unsuitable', `the packet filter nft ${why}`, { details: { missing: 'nft' }, cause });
  }
}

/** What the node is to sandboxes, of the egressd that listens. */
export async function askEgressd({ data, clock, network }: SandboxNetworkParts): Promise<EgressInfo> {
  await using wire = WireClient.connect(await network.connectUnix(data.egressdSocket), { role: 'cli', clock });
  return await new EgressClient(wire).nodeInfo({ timeoutMs: CALL_MS });
}

/** Whether the host has this address, as it has the gateway's of a protocol that it speaks. */
export const hasAddress = (address: string): boolean =>
  Object.values(networkInterfaces()).some((all) => all?.some((own) => own.address === address));

/** Takes away what an egressd before has of another network than this, or of any. */
export async function clearOtherNetwork(parts: SandboxNetworkParts, cidr: string | undefined): Promise<void> {
  const settled = await settledOf(parts.data);
  if (settled !== undefined && settled.network4 === cidr) return;
  await clearNetwork(parts);
}

/** The same when no sandbox is left that it serves. */
export async function clearUnusedNetwork(parts: SandboxNetworkParts): Promise<void> {
  const settled = await settledOf(parts.data);
  const devices = await readdir('/sys/class/net');
  if (settled !== undefined && devices.some((name) => name.startsWith(`dsec${settled.number}.`))) return;
  await clearNetwork(parts);
}

/** Takes away all that this server has of the host's network: devices, packet filter, programs, routes and the gate. @throws PlatformError `cleanup_incomplete` */
export async function clearNetwork({ data, installation, clock, network }: SandboxNetworkParts): Promise<void> {
  if (!(await exists(data.egress))) return;
  await notListening(clock, network, data.egressdSocket, AbortSignal.timeout(END_MS));
  await run([installation.egressd, 'clear', '--data', data.path], {
    clock,
    env: programEnv,
    timeoutMs: CLEAR_MS,
    errorCode: 'cleanup_incomplete',
  });
}

/** Why there is no network, in words for people, of an error that a daemon did not start with. */
export function lackOf(error: PlatformError): string {
  const output = error.details['output'];
  const said = typeof output === 'string' ? output.trim().split('\n').findLast(isTelling) : undefined;
  return (said === undefined ? error.message : messageOf(said)).slice(0, MAX_REASON_CHARS);
}

const isTelling = (line: string): boolean => line.trim() !== '';

/** What a line of a daemon's log tells. */
function messageOf(line: string): string {
  try {
    const parsed = JSON.parse(line) as { readonly message?: unknown; readonly error?: { readonly message?: unknown } };
    const message = parsed.message ?? parsed.error?.message;
    return typeof message === 'string' ? message : line;
  } catch {
    return line;
  }
}

/** What egressd keeps of its network (native/egress/src/place.rs). */
const settledParser = compileSchema(Type.Object({ number: Type.Integer({ minimum: 0 }), network4: Type.String() }));

async function settledOf(
  data: DataDirectory,
): Promise<{ readonly number: number; readonly network4: string } | undefined> {
  try {
    return settledParser.parse(JSON.parse(await readFile(join(data.egress, 'network.json'), 'utf8')), {
      what: 'network.json',
      code: 'internal',
    });
  } catch (error) {
    // What egressd cannot read is of nobody any more; it says the same.
    if (isErrno(error, 'ENOENT') || error instanceof SyntaxError || PlatformError.is(error)) return undefined;
    throw error;
  }
}
