import { ByteString } from '@dsec/erofs';

export const TAR_BLOCK = 512;

/** One 512-byte header as it stands, before extended headers change it. */
export interface TarHeader {
  readonly typeFlag: string;
  readonly name: ByteString;
  readonly linkName: ByteString;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly sizeBytes: number;
  readonly mtimeSeconds: number;
  readonly major: number;
  readonly minor: number;
  readonly block: Buffer;
}

export type HeaderFault = 'checksum' | 'number';

export const isZeroBlock = (block: Buffer): boolean => block.every((byte) => byte === 0);

/** @returns the header, or what is wrong with it */
export const decodeHeader = (block: Buffer): TarHeader | HeaderFault => {
  if (!checksumMatches(block)) return 'checksum';
  const isUstar = block.toString('latin1', 257, 263) === 'ustar\0';
  const prefix = isUstar ? cString(block, 345, 155) : ByteString.fromText('');
  const name = cString(block, 0, 100);
  const numbers = {
    mode: decodeNumber(block.subarray(100, 108)),
    uid: decodeNumber(block.subarray(108, 116)),
    gid: decodeNumber(block.subarray(116, 124)),
    sizeBytes: decodeNumber(block.subarray(124, 136)),
    mtimeSeconds: decodeNumber(block.subarray(136, 148)),
    major: decodeNumber(block.subarray(329, 337)),
    minor: decodeNumber(block.subarray(337, 345)),
  };
  for (const [field, value] of Object.entries(numbers)) {
    // Some writers leave rubbish in the fields of devices that are none.
    const isDeviceField = field === 'major' || field === 'minor';
    if (!isDeviceField && (Number.isNaN(value) || (value < 0 && field !== 'mtimeSeconds'))) return 'number';
  }
  return {
    ...numbers,
    typeFlag: String.fromCharCode(block[156] ?? 0),
    name: prefix === '' ? name : ByteString.join(prefix, name),
    linkName: cString(block, 157, 100),
    block,
  };
};

/** A number field: octal text, or base 256 when its first bit is set. NaN when it is neither or too large to be exact. */
export const decodeNumber = (field: Buffer): number => {
  const first = field[0] ?? 0;
  if (first & 0x80) {
    const isNegative = first === 0xff;
    let value = isNegative ? -1n : BigInt(first & 0x7f);
    for (const byte of field.subarray(1)) value = (value << 8n) | BigInt(byte);
    const exact = Number(value);
    return Number.isSafeInteger(exact) ? exact : Number.NaN;
  }
  const text = field.toString('latin1').replace(/\0.*$/s, '').trim();
  if (text === '') return 0;
  return /^[0-7]+$/.test(text) ? Number.parseInt(text, 8) : Number.NaN;
};

const cString = (block: Buffer, start: number, length: number): ByteString => {
  const field = block.subarray(start, start + length);
  const end = field.indexOf(0);
  return ByteString.fromBytes(end === -1 ? field : field.subarray(0, end));
};

/** The sum of all bytes with the checksum field as spaces; old writers summed signed bytes. */
const checksumMatches = (block: Buffer): boolean => {
  const stored = decodeNumber(block.subarray(148, 156));
  let unsigned = 0;
  let signed = 0;
  for (let index = 0; index < TAR_BLOCK; index++) {
    const value = index >= 148 && index < 156 ? 0x20 : (block[index] ?? 0);
    unsigned += value;
    signed += value > 127 ? value - 256 : value;
  }
  return stored === unsigned || stored === signed;
};
