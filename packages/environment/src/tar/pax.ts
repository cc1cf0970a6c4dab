import { ByteString, type Timestamp } from '@dsec/erofs';

/** Records of a pax extended header. Values are bytes: attributes are binary, and names need not be UTF-8. */
export type PaxRecords = ReadonlyMap<string, Buffer>;

/** @returns the records, or undefined when they are malformed */
export const decodePax = (bytes: Buffer): PaxRecords | undefined => {
  const records = new Map<string, Buffer>();
  let at = 0;
  while (at < bytes.length) {
    const space = bytes.indexOf(0x20, at);
    if (space === -1 || space - at > 10) return undefined;
    const digits = bytes.toString('latin1', at, space);
    const end = at + Number(digits);
    if (!/^[0-9]+$/.test(digits) || end <= space + 1 || end > bytes.length || bytes[end - 1] !== 0x0a) return undefined;
    const equals = bytes.indexOf(0x3d, space);
    if (equals === -1 || equals >= end) return undefined;
    records.set(bytes.toString('latin1', space + 1, equals), bytes.subarray(equals + 1, end - 1));
    at = end;
  }
  return records;
};

/** @returns undefined without such a record, NaN for a malformed one */
export const paxInteger = (records: PaxRecords, key: string): number | undefined => {
  const value = records.get(key);
  if (value === undefined || value.length === 0) return undefined;
  const text = value.toString('latin1');
  const number = Number(text);
  return /^[0-9]+$/.test(text) && Number.isSafeInteger(number) ? number : Number.NaN;
};

/** @returns undefined without such a record; empty values mean the same */
export const paxBytes = (records: PaxRecords, key: string): ByteString | undefined => {
  const value = records.get(key);
  return value === undefined || value.length === 0 ? undefined : ByteString.fromBytes(value);
};

const TIME = /^(-?)([0-9]{1,15})(?:\.([0-9]*))?$/;
const NANOSECONDS = 1_000_000_000;

/** @returns undefined without such a record, 'malformed' for a malformed one */
export const paxTime = (records: PaxRecords, key: string): Timestamp | undefined | 'malformed' => {
  const value = records.get(key);
  if (value === undefined || value.length === 0) return undefined;
  const match = TIME.exec(value.toString('latin1'));
  if (match === null) return 'malformed';
  const whole = Number(match[2]);
  const fraction = Number((match[3] ?? '').slice(0, 9).padEnd(9, '0'));
  if (match[1] === '') return { seconds: whole, nanoseconds: fraction };
  return fraction === 0
    ? { seconds: -whole, nanoseconds: 0 }
    : { seconds: -whole - 1, nanoseconds: NANOSECONDS - fraction };
};

const XATTR_PREFIX = 'SCHILY.xattr.';

/** The extended attributes that GNU tar, bsdtar and Go write. */
export const paxXattrs = (records: PaxRecords): ReadonlyMap<ByteString, Buffer> => {
  const xattrs = new Map<ByteString, Buffer>();
  for (const [key, value] of records) {
    // The key was read as bytes, and is taken on as bytes.
    if (key.startsWith(XATTR_PREFIX)) {
      xattrs.set(ByteString.fromBytes(Buffer.from(key.slice(XATTR_PREFIX.length), 'latin1')), Buffer.from(value));
    }
  }
  return xattrs;
};
