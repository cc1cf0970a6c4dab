/** Reads the audit log from its end: newest first, by pages, whatever the sizes of its files. */
import { open, type FileHandle } from 'node:fs/promises';
import { PlatformError, type AuditPage, type AuditRecord } from '@dsec/contract';
import { auditFiles, type AuditFile } from './audit-files.ts';
import { MAX_LINE_BYTES, parseLine } from './audit-line.ts';

/** Which records; a member that is undefined selects all. */
export interface AuditFilter {
  readonly sandboxId?: string | undefined;
  readonly keyId?: string | undefined;
  readonly operation?: string | undefined;
  /** Not those that were written before this moment. */
  readonly sinceMs?: number | undefined;
}

const CHUNK_BYTES = 512 * 1024;
/** Read for one page: then it is answered with what was found. */
const SCAN_BYTES = 32 * 1024 * 1024;
const LINE_FEED = 0x0a;
const CURSOR = /^(\d{1,15})-(\d{1,15})$/;

/** A place in the log: records behind it were shown already. */
interface Place {
  readonly firstSeq: number;
  readonly offset: number;
}

const cursorOf = ({ firstSeq, offset }: Place): string => `${firstSeq}-${offset}`;

/** A page of the log in `directory`. @throws PlatformError `invalid_argument` for a cursor that no page gave */
export async function readAudit(
  directory: string,
  filter: AuditFilter,
  { cursor, limit }: { readonly cursor?: string | undefined; readonly limit: number },
): Promise<AuditPage> {
  const place = cursor === undefined ? undefined : placeOf(cursor);
  const files = auditFiles(directory)
    .filter(({ firstSeq }) => place === undefined || firstSeq <= place.firstSeq)
    .toReversed();
  const page = new PageReader(filter, limit);
  for (const file of files) {
    const until = file.firstSeq === place?.firstSeq ? place.offset : undefined;
    const next = await page.readFile(file, until);
    if (next !== undefined) return { records: page.records, cursor: page.isOver ? null : cursorOf(next) };
  }
  return { records: page.records, cursor: null };
}

function placeOf(cursor: string): Place {
  const [, firstSeq, offset] = CURSOR.exec(cursor) ?? [];
  if (firstSeq === undefined || offset === undefined) throw noSuchCursor();
  return { firstSeq: Number(firstSeq), offset: Number(offset) };
}

const noSuchCursor = (): PlatformError =>
  new PlatformError('invalid_argument', 'the query: cursor is of no page', { details: { field: 'cursor' } });

class PageReader {
  readonly records: AuditRecord[] = [];
  /** What is older was not asked for. */
  isOver = false;
  readonly #filter: AuditFilter;
  readonly #needle: string | undefined;
  readonly #limit: number;
  #scanBytes = SCAN_BYTES;

  constructor(filter: AuditFilter, limit: number) {
    this.#filter = filter;
    this.#limit = limit;
    // Most lines are told apart without being parsed: an id stands in its line as it is.
    const { sandboxId, keyId, operation } = filter;
    const text = sandboxId ?? keyId ?? operation;
    this.#needle = text === undefined ? undefined : JSON.stringify(text);
  }

  /** Reads a file from `until` back to its begin. Returns where the next page begins when this one is full. */
  async readFile({ path, firstSeq }: AuditFile, until: number | undefined): Promise<Place | undefined> {
    let file: FileHandle;
    try {
      file = await open(path, 'r');
    } catch (error) {
      // It was the oldest, and has made room meanwhile.
      if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
      throw error;
    }
    try {
      const { size } = await file.stat();
      let end = until ?? size;
      if (end > size || !(await isLineEnd(file, end, until === undefined))) throw noSuchCursor();
      while (end > 0) {
        if (this.#isFull) return { firstSeq, offset: end };
        end = await this.#readChunk(file, end);
        if (this.isOver) return { firstSeq, offset: end };
      }
    } finally {
      await file.close();
    }
    return undefined;
  }

  get #isFull(): boolean {
    return this.records.length >= this.#limit || this.#scanBytes <= 0;
  }

  /** Takes whole lines that end at `end` or before; returns where the first of them begins, or the one that was not taken ends. */
  async #readChunk(file: FileHandle, end: number): Promise<number> {
    const length = Math.min(end, CHUNK_BYTES + MAX_LINE_BYTES);
    const from = end - length;
    const bytes = Buffer.alloc(length);
    const { bytesRead } = await file.read(bytes, 0, length, from);
    this.#scanBytes -= bytesRead;
    let lineEnd = bytesRead;
    // The first may begin before the chunk.
    const first = from === 0 ? 0 : bytes.indexOf(LINE_FEED) + 1;
    // A line that is longer than any record is none.
    if (from > 0 && (first === 0 || first === bytesRead)) return from;
    while (lineEnd > first) {
      if (this.records.length >= this.#limit) return from + lineEnd;
      const begin = lineEnd < 2 ? 0 : bytes.lastIndexOf(LINE_FEED, lineEnd - 2) + 1;
      this.#take(bytes.toString('utf8', begin, lineEnd).trimEnd());
      if (this.isOver) return from + begin;
      lineEnd = begin;
    }
    return from + first;
  }

  #take(line: string): void {
    if (this.#needle !== undefined && !line.includes(this.#needle)) return;
    const record = parseLine(line);
    if (record === undefined) return;
    const { sandboxId, keyId, operation, sinceMs } = this.#filter;
    if (sinceMs !== undefined && record.atMs < sinceMs) {
      this.isOver = true;
      return;
    }
    if (keyId !== undefined && record.keyId !== keyId) return;
    if (operation !== undefined && record.operation !== operation) return;
    if (sandboxId !== undefined && record.sandboxId !== sandboxId && record.sandboxIds?.includes(sandboxId) !== true)
      return;
    this.records.push(record);
  }
}

/** Whether a line begins at `offset`; a line at the end of the log may still be written. */
async function isLineEnd(file: FileHandle, offset: number, isEnd: boolean): Promise<boolean> {
  if (offset === 0 || isEnd) return true;
  const { buffer, bytesRead } = await file.read(Buffer.alloc(1), 0, 1, offset - 1);
  return bytesRead === 1 && buffer[0] === LINE_FEED;
}
