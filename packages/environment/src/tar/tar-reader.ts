import { PlatformError } from '@dsec/contract';
import { ByteString, type Timestamp } from '@dsec/erofs';
import { ByteReader } from './byte-reader.ts';
import { decodePax, type PaxRecords, paxBytes, paxInteger, paxTime, paxXattrs } from './pax.ts';
import { expandSparse, readGnuMap, readPaxMap, type SparseMap } from './sparse.ts';
import { decodeHeader, isZeroBlock, TAR_BLOCK, type TarHeader } from './tar-header.ts';

type TarEntryType = 'file' | 'hard-link' | 'symlink' | 'char-device' | 'block-device' | 'directory' | 'fifo';

export interface TarEntry {
  /** Where in the (uncompressed) archive the entry begins. */
  readonly offset: number;
  /** Where the bytes of a regular file begin; undefined when it is stored as sparse. */
  readonly dataOffset: number | undefined;
  readonly type: TarEntryType;
  readonly path: ByteString;
  readonly linkPath: ByteString;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtime: Timestamp;
  /** Bytes of a regular file, holes included; else 0. */
  readonly sizeBytes: number;
  readonly major: number;
  readonly minor: number;
  readonly xattrs: ReadonlyMap<ByteString, Buffer>;
  /** The bytes of a regular file. What is not read of them before the next entry is asked for is passed over. */
  readonly data: AsyncIterable<Uint8Array>;
}

/** Long names and extended headers before one entry: an attribute may be 64 KiB, and a file may have several. */
const MAX_EXTENDED_BYTES = 1024 * 1024;
/** Global headers of one archive. They hold for each entry, and honest ones hold a comment. */
const MAX_GLOBAL_BYTES = 64 * 1024;
/** Of a name that an error shows. */
const MAX_SHOWN_CHARS = 256;

const types: Readonly<Record<string, TarEntryType>> = {
  '0': 'file',
  '\0': 'file',
  '7': 'file',
  S: 'file',
  '1': 'hard-link',
  '2': 'symlink',
  '3': 'char-device',
  '4': 'block-device',
  '5': 'directory',
  '6': 'fifo',
};

/** What extended headers said about the entry that follows them. */
interface Pending {
  readonly offset: number;
  /** Of all that describes the entry. */
  readonly extendedBytes: number;
  readonly pax: PaxRecords;
  readonly longName?: ByteString;
  readonly longLink?: ByteString;
}

const NO_RECORDS: PaxRecords = new Map();

/**
 * Reads a tar archive (v7, ustar, GNU, pax) as a stream. The archive is not trusted: lengths are bounded and checked, and every fault names
 * the archive and the byte. Names and attributes are bytes throughout.
 *
 * @param archive what to call the archive in errors: the digest of the layer
 */
export class TarReader {
  readonly #reader: ByteReader;
  readonly #archive: string;
  #global: PaxRecords = NO_RECORDS;
  #globalBytes = 0;
  #dataEnd = 0;

  constructor(chunks: AsyncIterable<Uint8Array>, archive: string) {
    this.#reader = new ByteReader(chunks);
    this.#archive = archive;
  }

  /** @throws PlatformError `image_corrupt` or `image_unsupported` with `details` layer, offset and reason */
  async *entries(): AsyncGenerator<TarEntry> {
    let pending: Pending | undefined;
    try {
      for (;;) {
        const offset = this.#reader.offset;
        const header = await this.#header(offset, pending !== undefined);
        if (header === undefined) break;
        const begun = pending ?? { offset, extendedBytes: 0, pax: NO_RECORDS };
        const extended = await this.#extended(header, begun);
        if (extended !== undefined) {
          pending = extended;
          continue;
        }
        yield await this.#entry(header, begun);
        pending = undefined;
        await this.#skipTo(this.#dataEnd, offset);
      }
      // What follows the end of the archive is read too, so that digests cover the whole stream.
      await this.#reader.skip(Number.MAX_SAFE_INTEGER);
    } finally {
      await this.#reader.close();
    }
  }

  fault(offset: number, reason: string): PlatformError {
    return new PlatformError('image_corrupt', 'The archive is damaged', {
      details: { layer: this.#archive, offset, reason },
    });
  }

  /** @returns undefined at the end of the archive */
  async #header(offset: number, isAwaited: boolean): Promise<TarHeader | undefined> {
    const block = await this.#reader.read(TAR_BLOCK);
    if (block.length === 0 && !isAwaited) return undefined;
    if (block.length < TAR_BLOCK) throw this.fault(offset + block.length, 'truncated');
    if (isZeroBlock(block)) {
      if (isAwaited) throw this.fault(offset, 'truncated');
      return undefined;
    }
    const header = decodeHeader(block);
    if (typeof header === 'string') throw this.fault(offset, header);
    return header;
  }

  /** Takes in a header that only describes the next one. */
  async #extended(header: TarHeader, before: Pending): Promise<Pending | undefined> {
    if (!'xgLK'.includes(header.typeFlag)) return undefined;
    const { offset } = before;
    const isGlobal = header.typeFlag === 'g';
    const pending = isGlobal ? before : { ...before, extendedBytes: before.extendedBytes + header.sizeBytes };
    if (isGlobal) this.#globalBytes += header.sizeBytes;
    if (this.#globalBytes > MAX_GLOBAL_BYTES || pending.extendedBytes > MAX_EXTENDED_BYTES)
      throw this.fault(offset, 'extended_header_size');
    const body = await this.#reader.read(header.sizeBytes);
    await this.#skipTo(alignedEnd(this.#reader.offset - body.length + header.sizeBytes), offset);
    if (header.typeFlag === 'L' || header.typeFlag === 'K') {
      const nul = body.indexOf(0);
      const name = ByteString.fromBytes(nul === -1 ? body : body.subarray(0, nul));
      return header.typeFlag === 'L' ? { ...pending, longName: name } : { ...pending, longLink: name };
    }
    const records = decodePax(body);
    if (records === undefined) throw this.fault(offset, 'extended_header');
    if (isGlobal) {
      this.#global = new Map([...this.#global, ...records]);
      return pending;
    }
    return { ...pending, pax: new Map([...pending.pax, ...records]) };
  }

  async #entry(header: TarHeader, pending: Pending): Promise<TarEntry> {
    const { offset } = pending;
    const pax = this.#global.size === 0 ? pending.pax : new Map([...this.#global, ...pending.pax]);
    const isSparse = pax.has('GNU.sparse.major') || pax.has('GNU.sparse.map') || pax.has('GNU.sparse.size');
    const path = paxBytes(pax, 'GNU.sparse.name') ?? paxBytes(pax, 'path') ?? pending.longName ?? header.name;
    // Any sandbox can make one, of holes alone: whoever packs it must hear which.
    if (isSparse && isTooLarge(pax)) throw this.#tooLarge(offset, path);
    const type = header.typeFlag === '\0' && path.endsWith('/') ? 'directory' : types[header.typeFlag];
    if (type === undefined) throw this.#unsupported(offset, 'tar_entry_type');
    const mtime = paxTime(pax, 'mtime') ?? { seconds: header.mtimeSeconds, nanoseconds: 0 };
    const uid = paxInteger(pax, 'uid') ?? header.uid;
    const gid = paxInteger(pax, 'gid') ?? header.gid;
    const storedBytes = type === 'file' ? (paxInteger(pax, 'size') ?? header.sizeBytes) : 0;
    if (mtime === 'malformed' || !isId(uid) || !isId(gid) || !Number.isSafeInteger(storedBytes)) {
      throw this.fault(offset, 'number');
    }
    const start = this.#reader.offset;
    let map: SparseMap | undefined;
    if (header.typeFlag === 'S' || isSparse) {
      const read =
        header.typeFlag === 'S'
          ? await readGnuMap(header, this.#reader)
          : await readPaxMap(pax, this.#reader, storedBytes);
      if (read === 'unsupported') throw this.#unsupported(offset, 'sparse_format');
      if (read === undefined) throw this.fault(offset, 'sparse_map');
      map = read;
    }
    // Continuation blocks of GNU's old map stand before the data and are not counted as data.
    const dataStart = header.typeFlag === 'S' ? this.#reader.offset : start;
    this.#dataEnd = alignedEnd(dataStart + storedBytes);
    return {
      offset,
      dataOffset: map === undefined ? start : undefined,
      type,
      path,
      linkPath: paxBytes(pax, 'linkpath') ?? pending.longLink ?? header.linkName,
      mode: header.mode & 0o7777,
      uid,
      gid,
      mtime,
      sizeBytes: map?.sizeBytes ?? storedBytes,
      major: header.major,
      minor: header.minor,
      xattrs: paxXattrs(pax),
      data: this.#data(map, storedBytes, offset),
    };
  }

  async *#data(map: SparseMap | undefined, storedBytes: number, offset: number): AsyncGenerator<Uint8Array> {
    const before = this.#reader.offset;
    yield* map === undefined ? this.#reader.take(storedBytes) : expandSparse(map, this.#reader);
    if (this.#reader.offset - before < storedBytes - (map?.mapBytes ?? 0)) throw this.#truncated(offset);
  }

  async #skipTo(end: number, offset: number): Promise<void> {
    const count = end - this.#reader.offset;
    if (count > 0 && (await this.#reader.skip(count)) < count) throw this.#truncated(offset);
  }

  /** The archive ends inside the entry at `offset`. */
  #truncated(offset: number): PlatformError {
    return new PlatformError('image_corrupt', 'The archive ends in the middle of an entry', {
      details: { layer: this.#archive, offset: this.#reader.offset, entryOffset: offset, reason: 'truncated' },
    });
  }

  #tooLarge(offset: number, path: ByteString): PlatformError {
    const entry = ByteString.toText(path).slice(0, MAX_SHOWN_CHARS);
    return new PlatformError('image_unsupported', `The archive has a file that is too large: ${entry}`, {
      details: { layer: this.#archive, offset, reason: 'file_size', entry },
    });
  }

  #unsupported(offset: number, reason: string): PlatformError {
    return new PlatformError('image_unsupported', 'The archive has an entry of a form that is not supported', {
      details: { layer: this.#archive, offset, reason },
    });
  }
}

const alignedEnd = (offset: number): number => Math.ceil(offset / TAR_BLOCK) * TAR_BLOCK;

/** Whether a sparse file is said to be of a size that no number here holds. */
const isTooLarge = (pax: PaxRecords): boolean =>
  ['GNU.sparse.realsize', 'GNU.sparse.size'].some((key) => {
    const text = pax.get(key)?.toString('latin1') ?? '';
    return /^[0-9]{16,20}$/.test(text) && !Number.isSafeInteger(Number(text));
  });

const isId = (id: number): boolean => Number.isInteger(id) && id <= 0xfffffffe;
