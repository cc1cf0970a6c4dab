/** One pass over the changes of a sandbox, before anything of them is stored: what becomes of each entry, and what they are together. */
import { type ChangeKind, PlatformError } from '@dsec/contract';
import { ByteString } from '@dsec/erofs';
import { parseEntryPath } from '../entry-path.ts';
import { refusal } from '../entry-refusal.ts';
import { isWhiteoutEntry } from '../layer-tree.ts';
import { type TarEntry, TarReader } from '../tar/tar-reader.ts';
import type { Omission, Selection, Verdict } from './selection.ts';

/** What the archive calls a socket, which tar does not know. */
const SOCKET = ByteString.fromText('dsec.socket');

/** One entry of the changes, with what becomes of it. */
export interface Change {
  readonly kind: ChangeKind;
  /** Without a slash at either end. */
  readonly path: ByteString;
  readonly verdict: Verdict;
  readonly entry: TarEntry;
}

/** Reads an archive of changes; what is wrong with it is an error that calls it `name`. */
export async function* changesIn(
  archive: AsyncIterable<Uint8Array>,
  name: string,
  selection: Selection,
): AsyncGenerator<Change> {
  for await (const entry of new TarReader(archive, name).entries()) {
    const names = parseEntryPath(entry.path);
    if (typeof names === 'string') throw refusal('archive_unsafe', entry, name, names);
    const path = ByteString.join(...names);
    yield { kind: kindOf(entry, name), path, verdict: selection.judge(path), entry };
  }
}

const kindOf = (entry: TarEntry, name: string): ChangeKind => {
  if (isWhiteoutEntry(entry)) return 'whiteout';
  switch (entry.type) {
    case 'char-device':
    case 'block-device':
      throw refusal('archive_unsafe', entry, name, 'device');
    case 'fifo':
      return entry.xattrs.has(SOCKET) ? 'socket' : 'fifo';
    default:
      return entry.type;
  }
};

/** What was left out, by reason. */
export interface Omitted {
  entries: number;
  bytes: number;
}

/** What of a file counts when it stands under another of its names. */
type FileHead = Pick<TarEntry, 'sizeBytes' | 'mode' | 'xattrs'>;

/** Files that are left out, which the pass holds in memory as hard links may name them: by the bytes of their paths and attributes. */
const MAX_LINK_BYTES = 128 * 1024 * 1024;

/**
 * What becomes of the changes. A file of several names stands under the first in the archive; where that name is left out and another is not,
 * the file moves to the first that is kept.
 */
export class ChangeScan {
  readonly #moved = new Map<ByteString, ByteString>();
  readonly #omittedFiles = new Map<ByteString, FileHead>();
  #linkBytes = 0;
  /** Directories that the platform makes in every sandbox and that nothing is kept in. */
  readonly #bare = new Set<ByteString>(['etc', 'tmp'].map(ByteString.fromText));
  readonly omitted = new Map<Omission, Omitted>();
  /** Of the files that go into the layer. */
  bytes = 0;
  #entries = 0;
  /** Of the bare directories, how many there are. */
  #bareSeen = 0;
  #isRootSeen = false;

  /** What goes into the layer. Known when all entries are taken in. */
  get entries(): number {
    return this.#entries - this.#bareSeen;
  }

  /** Whether anything goes into the layer but its root. Known when all entries are taken in. */
  get hasChanges(): boolean {
    return this.entries > (this.#isRootSeen ? 1 : 0);
  }

  /** Takes in the next entry. @returns what it is for the layer: the file itself where a file moves to the name of a link */
  add(change: Change): Change {
    const { kind, path, verdict, entry } = change;
    if (kind === 'hard-link') return this.#addLink(change);
    if (verdict.kind === 'omit' || kind === 'socket') {
      this.#omit(verdict.kind === 'omit' ? verdict.by : 'socket', entry.sizeBytes);
      if (kind === 'file') this.#remember(path, entry);
    } else if (verdict.kind === 'way' && kind !== 'directory') {
      this.#omit('path', entry.sizeBytes);
    } else {
      this.#count(path, kind === 'directory' ? 0 : entry.sizeBytes);
    }
    return change;
  }

  /** Whether a directory is no change: the platform made it and nothing is kept in it. Known when all entries are taken in. */
  isBare(path: ByteString): boolean {
    return this.#bare.has(path);
  }

  /** Where the file goes whose first name is left out; undefined when it goes nowhere. */
  movedTo(path: ByteString): ByteString | undefined {
    return this.#moved.get(path);
  }

  #addLink(change: Change): Change {
    const { path, verdict, entry } = change;
    if (verdict.kind !== 'keep') {
      this.#omit(verdict.kind === 'omit' ? verdict.by : 'path', 0);
      return change;
    }
    const target = targetOf(entry);
    const file = this.#moved.has(target) ? undefined : this.#omittedFiles.get(target);
    if (file !== undefined) this.#moved.set(target, path);
    this.#count(path, file?.sizeBytes ?? 0);
    return file === undefined ? change : { ...change, kind: 'file', entry: { ...entry, ...file } };
  }

  #count(path: ByteString, bytes: number): void {
    this.#entries++;
    this.bytes += bytes;
    if (path === '') this.#isRootSeen = true;
    if (this.#bare.has(path)) this.#bareSeen++;
    const slash = path.indexOf('/');
    // A directory comes before what is in it.
    if (slash > 0 && this.#bare.delete(ByteString.slice(path, 0, slash))) this.#bareSeen--;
  }

  #omit(by: Omission, bytes: number): void {
    const sum = this.omitted.get(by);
    if (sum === undefined) this.omitted.set(by, { entries: 1, bytes });
    else {
      sum.entries++;
      sum.bytes += bytes;
    }
  }

  #remember(path: ByteString, { sizeBytes, mode, xattrs }: TarEntry): void {
    this.#linkBytes += path.length;
    for (const [name, value] of xattrs) this.#linkBytes += name.length + value.length;
    if (this.#linkBytes > MAX_LINK_BYTES) {
      throw new PlatformError(
        'archive_unsafe',
        'the names and attributes of the files that are left out take too much memory',
        {
          details: { reason: 'too_many_omitted' },
        },
      );
    }
    this.#omittedFiles.set(path, { sizeBytes, mode, xattrs });
  }
}

/** The name that a hard link names, in the form of paths here. */
export const targetOf = (entry: TarEntry): ByteString => {
  const names = parseEntryPath(entry.linkPath);
  return typeof names === 'string' ? entry.linkPath : ByteString.join(...names);
};
