import { PlatformError } from '@dsec/contract';
import { ByteString } from './byte-string.ts';
import {
  alignUp,
  MAX_XATTR_BODY_BYTES,
  MAX_XATTR_NAME_BYTES,
  MAX_XATTR_VALUE_BYTES,
  XATTR_ENTRY_SIZE,
  XATTR_HEADER_SIZE,
} from './format.ts';

/** The namespaces that EROFS stores, by index; the first two prefixes are whole names. */
const prefixes: readonly (readonly [index: number, prefix: string])[] = [
  [2, 'system.posix_acl_access'],
  [3, 'system.posix_acl_default'],
  [1, 'user.'],
  [4, 'trusted.'],
  [6, 'security.'],
];

const splitName = (name: ByteString): { readonly index: number; readonly suffix: Buffer } | undefined => {
  for (const [index, prefix] of prefixes) {
    if (prefix.endsWith('.') ? name.startsWith(prefix) && name.length > prefix.length : name === prefix) {
      return { index, suffix: ByteString.toBytes(ByteString.slice(name, prefix.length)) };
    }
  }
  return undefined;
};

/** True when the name lies in a namespace that EROFS can store. */
export const isStorableXattr = (name: ByteString): boolean => splitName(name) !== undefined;

const NOTHING = Buffer.alloc(0);

/**
 * Encodes the attributes of one inode as they follow it: a header, then entries padded to 4 bytes, sorted by name so that equal sets give
 * equal bytes.
 *
 * @throws PlatformError `invalid_argument` for a namespace that EROFS cannot store, and for names, values or sums beyond the format's bounds
 */
export const encodeXattrs = (xattrs: ReadonlyMap<ByteString, Uint8Array>): Buffer => {
  if (xattrs.size === 0) return NOTHING;
  const parts: Buffer[] = [Buffer.alloc(XATTR_HEADER_SIZE)];
  let total = XATTR_HEADER_SIZE;
  for (const [name, value] of [...xattrs].sort(([a], [b]) => ByteString.compare(a, b))) {
    const split = splitName(name);
    const field = ByteString.toText(name);
    if (split === undefined) {
      throw new PlatformError('invalid_argument', `EROFS cannot store the extended attribute ${field}`, {
        details: { field },
      });
    }
    if (split.suffix.length > MAX_XATTR_NAME_BYTES || value.length > MAX_XATTR_VALUE_BYTES) {
      throw new PlatformError('invalid_argument', `The extended attribute ${field} is too long`, {
        details: { field },
      });
    }
    const entry = Buffer.alloc(alignUp(XATTR_ENTRY_SIZE + split.suffix.length + value.length, XATTR_ENTRY_SIZE));
    entry.writeUInt8(split.suffix.length, 0);
    entry.writeUInt8(split.index, 1);
    entry.writeUInt16LE(value.length, 2);
    entry.set(split.suffix, XATTR_ENTRY_SIZE);
    entry.set(value, XATTR_ENTRY_SIZE + split.suffix.length);
    total += entry.length;
    if (total > MAX_XATTR_BODY_BYTES) {
      throw new PlatformError('invalid_argument', 'The extended attributes of one file are too long together', {
        details: { field, limit: MAX_XATTR_BODY_BYTES },
      });
    }
    parts.push(entry);
  }
  return Buffer.concat(parts, total);
};

/** What i_xattr_icount says for a body of this many bytes. */
export const xattrCount = (bodyBytes: number): number =>
  bodyBytes === 0 ? 0 : (bodyBytes - XATTR_HEADER_SIZE) / XATTR_ENTRY_SIZE + 1;

/** The inverse of {@link xattrCount}. */
export const xattrBodyBytes = (count: number): number =>
  count === 0 ? 0 : XATTR_HEADER_SIZE + (count - 1) * XATTR_ENTRY_SIZE;

export interface DecodedEntry {
  /** Undefined when the namespace is unknown: such an entry is skipped, as the kernel does. */
  readonly name: ByteString | undefined;
  readonly value: Buffer;
  readonly sizeBytes: number;
}

/** How many bytes the entry has, without padding, whose first four bytes these are. */
export const xattrEntryBytes = (head: Buffer): number => XATTR_ENTRY_SIZE + head.readUInt8(0) + head.readUInt16LE(2);

/** Decodes the entry at `offset`, or returns undefined when it does not fit in `body`. */
export const decodeXattrEntry = (body: Buffer, offset: number): DecodedEntry | undefined => {
  if (offset + XATTR_ENTRY_SIZE > body.length) return undefined;
  const nameLength = body.readUInt8(offset);
  const index = body.readUInt8(offset + 1);
  const valueLength = body.readUInt16LE(offset + 2);
  const nameStart = offset + XATTR_ENTRY_SIZE;
  const valueStart = nameStart + nameLength;
  if (valueStart + valueLength > body.length) return undefined;
  const prefix = prefixes.find(([known]) => known === index)?.[1];
  const suffix = body.subarray(nameStart, valueStart);
  return {
    name:
      prefix === undefined ? undefined : ByteString.fromBytes(Buffer.concat([Buffer.from(prefix, 'latin1'), suffix])),
    value: body.subarray(valueStart, valueStart + valueLength),
    sizeBytes: alignUp(XATTR_ENTRY_SIZE + nameLength + valueLength, XATTR_ENTRY_SIZE),
  };
};
