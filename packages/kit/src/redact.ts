/** Keeps secrets out of logs and printed configurations, in one place. */

const SECRET_NAME = /(?:key|secret|token|password|passphrase|authorization|cookie|signature|credential)s?$/i;
/** Names that end like a secret and are none. */
const HARMLESS = new Set(['idempotencyKey', 'hasKey']);
/** The environment of a command often holds secrets. */
const SECRET_MAPS = new Set(['env']);
const MAX_DEPTH = 8;
/** Decisions that are kept; names may come from outside. */
const MAX_KNOWN = 1024;
const known = new Map<string, boolean>();

function isSecret(name: string): boolean {
  const before = known.get(name);
  if (before !== undefined) return before;
  const decided = SECRET_MAPS.has(name) || (SECRET_NAME.test(name) && !HARMLESS.has(name));
  if (known.size < MAX_KNOWN) known.set(name, decided);
  return decided;
}

/** A copy without secrets: a field whose name ends in key, secret, token and the like shows as `[redacted]`. */
export function redact(value: unknown, depth = 0): unknown {
  if (typeof value !== 'object' || value === null) return typeof value === 'bigint' ? value.toString() : value;
  if (depth >= MAX_DEPTH) return '[deep]';
  if (Array.isArray(value)) return value.map((item) => redact(item, depth + 1));
  if (Buffer.isBuffer(value)) return `[${value.length} bytes]`;
  const copy: Record<string, unknown> = {};
  for (const [name, field] of Object.entries(value)) {
    copy[name] = isSecret(name) && field !== undefined && field !== null ? '[redacted]' : redact(field, depth + 1);
  }
  return copy;
}
