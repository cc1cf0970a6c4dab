/** Tells whether two requests with one idempotency key are the same request. */
import { hash } from 'node:crypto';
import { limits, PlatformError } from '@dsec/contract';
import type { IncomingHttpHeaders } from 'node:http';

/** JSON with the members of each object in order, so that equal values give equal text. */
function stableJson(value: unknown): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null';
  if (Array.isArray(value)) return `[${value.map(stableJson).join(',')}]`;
  const members = Object.entries(value)
    .filter(([, member]) => member !== undefined)
    .toSorted(([left], [right]) => (left < right ? -1 : 1))
    .map(([name, member]) => `${JSON.stringify(name)}:${stableJson(member)}`);
  return `{${members.join(',')}}`;
}

export const fingerprintOf = (value: unknown): string => hash('sha256', stableJson(value));

const keyForm = new RegExp(`^[\\x21-\\x7e]{1,${limits.idempotencyKeyChars}}$`);

/** The `Idempotency-Key` of a request. */
export function idempotencyKeyIn(headers: IncomingHttpHeaders): string | undefined {
  const key = headers['idempotency-key'];
  if (key === undefined) return undefined;
  if (typeof key === 'string' && keyForm.test(key)) return key;
  throw new PlatformError('invalid_argument', 'the Idempotency-Key is not 1 to 256 visible ASCII characters', {
    details: { field: 'Idempotency-Key' },
  });
}
