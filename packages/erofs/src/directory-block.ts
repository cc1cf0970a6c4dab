import { ByteString } from './byte-string.ts';
import { BLOCK_SIZE, DIRENT_SIZE } from './format.ts';

export interface DirectoryEntry {
  readonly name: ByteString;
  readonly nid: number;
  readonly fileType: number;
}

/**
 * How a directory's sorted names fall into blocks. Each block holds its own array of entries followed by their names, so that the kernel
 * can search by halves: first for the block, then in it.
 */
export interface DirectoryPacking {
  /** `starts[i]` is the index of the first name of block i. */
  readonly starts: readonly number[];
  /** Bytes of the directory: whole blocks and the used part of the last. */
  readonly sizeBytes: number;
}

/** @param names sorted by bytes, with `.` and `..` among them */
export const packNames = (names: readonly ByteString[]): DirectoryPacking => {
  const starts: number[] = [];
  let used = BLOCK_SIZE + 1; // no room: the first name opens a block
  for (const [index, name] of names.entries()) {
    const need = DIRENT_SIZE + name.length;
    if (used + need > BLOCK_SIZE) {
      starts.push(index);
      used = 0;
    }
    used += need;
  }
  return { starts, sizeBytes: starts.length === 0 ? 0 : (starts.length - 1) * BLOCK_SIZE + used };
};

/** Encodes one directory block, without padding. */
export const encodeDirectoryBlock = (entries: readonly DirectoryEntry[]): Buffer => {
  const names = entries.map((entry) => ByteString.toBytes(entry.name));
  const block = Buffer.alloc(entries.length * DIRENT_SIZE + names.reduce((sum, name) => sum + name.length, 0));
  let nameOffset = entries.length * DIRENT_SIZE;
  for (const [index, entry] of entries.entries()) {
    const name = names[index] ?? Buffer.alloc(0);
    const at = index * DIRENT_SIZE;
    block.writeBigUInt64LE(BigInt(entry.nid), at);
    block.writeUInt16LE(nameOffset, at + 8);
    block.writeUInt8(entry.fileType, at + 10);
    block.set(name, nameOffset);
    nameOffset += name.length;
  }
  return block;
};

/**
 * Decodes one directory block (of at most 4 KiB; the last one of a directory is shorter).
 *
 * @returns the entries, or the offset in the block of what is wrong
 */
export const decodeDirectoryBlock = (block: Buffer): readonly DirectoryEntry[] | number => {
  if (block.length < DIRENT_SIZE) return 0;
  const namesStart = block.readUInt16LE(8);
  if (namesStart < DIRENT_SIZE || namesStart % DIRENT_SIZE !== 0 || namesStart >= block.length) return 8;
  const count = namesStart / DIRENT_SIZE;
  const entries: DirectoryEntry[] = [];
  for (let index = 0; index < count; index++) {
    const at = index * DIRENT_SIZE;
    const start = block.readUInt16LE(at + 8);
    const end = index + 1 < count ? block.readUInt16LE(at + DIRENT_SIZE + 8) : block.length;
    if (start < namesStart || end <= start || end > block.length) return at + 8;
    const padded = block.subarray(start, end);
    const nul = index + 1 < count ? -1 : padded.indexOf(0); // only the last name of a block may be padded
    const name = ByteString.fromBytes(nul === -1 ? padded : padded.subarray(0, nul));
    const nid = block.readBigUInt64LE(at);
    if (nid > BigInt(Number.MAX_SAFE_INTEGER)) return at;
    entries.push({ name, nid: Number(nid), fileType: block.readUInt8(at + 10) });
  }
  return entries;
};
