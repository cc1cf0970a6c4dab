/** `Range` of HTTP (RFC 9110): one range of bytes. */
import { PlatformError } from '@dsec/contract';

export interface ByteRange {
  /** Undefined: the last `length` bytes. */
  readonly offset: number | undefined;
  readonly length: number | undefined;
}

const form = /^bytes=(\d{0,30})-(\d{0,30})$/;

/**
 * The range that a header asks for; undefined for units and lists that a server may ignore.
 * @throws PlatformError `invalid_argument` for a range that ends before it begins
 */
export function parseRange(header: string | undefined): ByteRange | undefined {
  const match = header === undefined ? null : form.exec(header.trim());
  if (match === null) return undefined;
  const [, first = '', last = ''] = match;
  if (first === '' && last === '') return undefined;
  if (first === '') return { offset: undefined, length: numberOf(last) };
  const offset = numberOf(first);
  if (last === '') return { offset, length: undefined };
  if (numberOf(last) < offset) throw rangeInvalid('ends before it begins');
  return { offset, length: numberOf(last) - offset + 1 };
}

/** No file has a byte beyond this, and numbers are exact up to it. */
const numberOf = (digits: string): number => Math.min(Number(digits), Number.MAX_SAFE_INTEGER - 1);

export const rangeInvalid = (reason: string): PlatformError =>
  new PlatformError('invalid_argument', `the range ${reason}`, { details: { field: 'Range', reason } });
