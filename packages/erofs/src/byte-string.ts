/**
 * Names in a Unix file system are bytes, not text: a name that is not UTF-8 must survive unchanged. A ByteString holds one byte per code
 * unit (0-255), so that it can be a Map key, and so that the order of JavaScript strings is the byte order that EROFS sorts by.
 */
export type ByteString = string & { readonly __bytes: unique symbol };

const brand = (text: string): ByteString => text as ByteString; // the only place where the brand is given

export const ByteString = {
  fromBytes: (bytes: Uint8Array): ByteString =>
    brand(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('latin1')),
  /** From ordinary text, as UTF-8. */
  fromText: (text: string): ByteString => brand(Buffer.from(text, 'utf8').toString('latin1')),
  toBytes: (value: ByteString): Buffer => Buffer.from(value, 'latin1'),
  /** For people to read: bytes that are not UTF-8 become U+FFFD. */
  toText: (value: ByteString): string => Buffer.from(value, 'latin1').toString('utf8'),
  slice: (value: ByteString, start: number, end?: number): ByteString => brand(value.slice(start, end)),
  split: (value: ByteString, separator: string): ByteString[] => value.split(separator).map(brand),
  join: (...parts: ByteString[]): ByteString => brand(parts.join('/')),
  compare: (a: ByteString, b: ByteString): number => (a < b ? -1 : a > b ? 1 : 0),
};
