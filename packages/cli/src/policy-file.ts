/** Policies as people write them: a JSON file, and single destinations on the command line. */
import { readFileSync } from 'node:fs';
import {
  completePolicy,
  limits,
  parseDestination,
  PlatformError,
  PolicyUpdateSchema,
  type NetworkRule,
  type PolicyUpdate,
} from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import { InvalidArgumentError } from 'commander';

const parser = compileSchema(PolicyUpdateSchema);

/**
 * Reads a policy; `-` is stdin. It is checked whole before any server is asked; what the API shows of a policy is one, too.
 * @throws PlatformError `invalid_argument`
 */
export function policyFile(path: string): PolicyUpdate {
  const value = withoutShown(readJson(path));
  // The schema has checked it; its derived type has lost the names of literals.
  const update = parser.parse(value, { what: `the policy in ${nameOf(path)}` }) as PolicyUpdate;
  const { version: _version, ...request } = update;
  completePolicy(request);
  return update;
}

const nameOf = (path: string): string => (path === '-' ? 'stdin' : path);

/** What the platform says of a policy, and nobody may set. */
function withoutShown(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || !('changedAtMs' in value)) return value;
  const { changedAtMs: _changedAtMs, ...rest } = value;
  return rest;
}

function readJson(path: string): unknown {
  let text: string;
  try {
    text = readFileSync(path === '-' ? 0 : path, 'utf8');
  } catch (cause) {
    throw fileError(path, 'cannot be read', cause);
  }
  if (Buffer.byteLength(text) > limits.bodyBytes) throw fileError(path, `is larger than ${limits.bodyBytes} bytes`);
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw fileError(path, 'is not JSON', cause);
  }
}

function fileError(path: string, reason: string, cause?: unknown): PlatformError {
  return new PlatformError('invalid_argument', `the policy in ${nameOf(path)} ${reason}`, {
    details: { field: 'policy', reason },
    ...(cause === undefined ? {} : { cause }),
  });
}

const PORT_FORM = /^(\d{1,5})(?:-(\d{1,5}))?(?:\/(tcp|udp))?$/;

/** Collects `HOST[:PORT[-PORT][/udp]]` of an option that may be given often; IPv6 with a port is `[ADDRESS]:PORT`. */
export function allowedDestinations(text: string, earlier: readonly NetworkRule[] = []): readonly NetworkRule[] {
  const { to, port } = split(text);
  const parsed = parseDestination(to);
  if (!parsed.ok) throw new InvalidArgumentError(`${to} ${parsed.reason}.`);
  const rule: NetworkRule = { action: 'allow', to };
  if (port === undefined) return [...earlier, rule];
  const match = PORT_FORM.exec(port);
  const [, low, high, protocol] = match ?? [];
  if (low === undefined) throw new InvalidArgumentError('Its port must be PORT, LOW-HIGH, PORT/tcp or PORT/udp.');
  const ports = high === undefined ? Number(low) : `${Number(low)}-${Number(high)}`;
  return [...earlier, { ...rule, ports: [ports], ...(protocol === 'udp' ? { protocol } : {}) }];
}

function split(text: string): { readonly to: string; readonly port: string | undefined } {
  const bracketed = /^\[([^\]]*)\](?::(.*))?$/.exec(text);
  if (bracketed !== null) return { to: bracketed[1] ?? '', port: bracketed[2] };
  const parts = text.split(':');
  // More than one colon is IPv6, which has no port outside of brackets.
  return parts.length === 2 ? { to: parts[0] ?? '', port: parts[1] } : { to: text, port: undefined };
}
