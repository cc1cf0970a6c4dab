/**
 * The audit log of an apiserver: a chain of lines in files that only grow, of which so many are kept. Appending costs no system call; what was appended is
 * written and synchronised together, `FLUSH_MS` later at most. What cannot be written, as on a full disk, waits within a bound; what is beyond it is counted, and
 * the count is a record as soon as there is room.
 */
import { open, unlink, type FileHandle } from 'node:fs/promises';
import { mkdirSync } from 'node:fs';
import { syncDirectory, type Clock, type Logger, type Timer } from '@dsec/kit';
import { auditFile, auditFiles, type AuditFile } from './audit-files.ts';
import { encodeFields, hashLine, type AuditFields, type ChainHead, type EncodedFields } from './audit-line.ts';
import { findChainEnd, type ChainEnd } from './chain-end.ts';
import { PendingRecords } from './pending-records.ts';

/** Where records go. */
export interface AuditSink {
  /** Of its files. */
  readonly directory: string;
  /** Adds a record; returns its number, or 0 when it is lost. */
  append(fields: AuditFields): number;
  appendEncoded(fields: EncodedFields): number;
  /** Resolves when everything that was appended is on the disk. Rejects with what the disk says. */
  flush(): Promise<void>;
}

export interface AuditLogOptions {
  /** Made when it is not there. */
  readonly directory: string;
  /** A file is followed by another at this size. @default 33,554,432 */
  readonly fileBytes?: number;
  /** Files that are kept, with the newest. @default 16 */
  readonly files?: number;
  readonly clock: Clock;
  readonly logger: Logger;
}

const DEFAULT_FILE_BYTES = 32 * 1024 * 1024;
const DEFAULT_FILES = 16;
/** Longest that a record is only in memory. */
export const FLUSH_MS = 200;
/** The same after the disk has refused. */
const RETRY_MS = 2000;
/** What waits for the disk, beside as much that it has begun to take. */
const MAX_PENDING_BYTES = 8 * 1024 * 1024;
const DIRECTORY_MODE = 0o700;
const FILE_MODE = 0o600;

export class AuditLog implements AuditSink, AsyncDisposable {
  readonly #options: AuditLogOptions;
  /** Of what was taken for writing. */
  #head: ChainHead;
  /** Of the last record that was appended. */
  #seq: number;
  readonly #pending = new PendingRecords(MAX_PENDING_BYTES);
  #lost = 0;
  #timer: Timer | undefined;
  #turn: Promise<void> = Promise.resolve();
  #file: AuditFile | undefined;
  #handle: FileHandle | undefined;
  #sizeBytes: number;
  /** Of what was taken for writing and is not written yet. */
  #unwritten: Buffer | undefined;
  #isFailing = false;
  #isClosed = false;

  private constructor(options: AuditLogOptions, end: ChainEnd, file: AuditFile | undefined) {
    this.#options = options;
    this.#head = end.head;
    this.#seq = end.head.seq;
    this.#file = file;
    this.#sizeBytes = end.sizeBytes;
  }

  /** Goes on where the log ends, and says so in it. */
  static async open(options: AuditLogOptions): Promise<AuditLog> {
    mkdirSync(options.directory, { recursive: true, mode: DIRECTORY_MODE });
    const files = auditFiles(options.directory);
    const end = findChainEnd(files);
    const log = new AuditLog(options, end, files.at(-1));
    // Ended, so that it stays what it is: a line that is no record.
    if (end.fragment.length > 0) log.#unwritten = Buffer.from('\n');
    log.append({ operation: 'audit.open', outcome: 'ok', detail: openDetail(end) });
    // Refused by the disk, which the log of the process tells: it waits for its turn.
    await log.flush().catch(() => undefined);
    return log;
  }

  get directory(): string {
    return this.#options.directory;
  }

  /** Of the last record that was written. */
  get head(): ChainHead {
    return this.#head;
  }

  /** Files that are kept. */
  get keptFiles(): number {
    return this.#options.files ?? DEFAULT_FILES;
  }

  append(fields: AuditFields): number {
    return this.appendEncoded(encodeFields(fields));
  }

  appendEncoded(fields: EncodedFields): number {
    if (this.#isClosed || !this.#pending.hasRoom) {
      this.#lost++;
      return 0;
    }
    const lost = this.#lost;
    if (lost > 0) {
      this.#lost = 0;
      this.#add(encodeFields({ operation: 'audit.lost', outcome: 'ok', detail: { records: lost } }));
    }
    this.#add(fields);
    this.#timer ??= this.#options.clock.setTimer(this.#isFailing ? RETRY_MS : FLUSH_MS, () => this.#onTimer());
    return this.#seq;
  }

  #add(fields: EncodedFields): void {
    this.#seq++;
    this.#pending.add(this.#options.clock.now(), fields);
  }

  flush(): Promise<void> {
    const turn = this.#turn.then(() => this.#write());
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  /** Says in the log that it ends, and closes it. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isClosed) return;
    this.append({ operation: 'audit.close', outcome: 'ok' });
    this.#isClosed = true;
    try {
      await this.flush();
    } finally {
      this.#timer?.cancel();
      await this.#handle?.close();
      this.#handle = undefined;
    }
  }

  #onTimer(): void {
    this.#timer = undefined;
    // It was told when it began to fail.
    this.flush().catch(() => undefined);
  }

  async #write(): Promise<void> {
    this.#timer?.cancel();
    this.#timer = undefined;
    if (this.#pending.isEmpty && this.#unwritten === undefined) return;
    try {
      await this.#rotate();
      let handle = await this.#opened();
      if (await this.#isGone(handle)) handle = await this.#opened();
      await this.#writeAll(handle);
      await handle.datasync();
      if (this.#isFailing) this.#options.logger.info('audit.write', { outcome: 'ok' });
      this.#isFailing = false;
    } catch (error) {
      if (!this.#isFailing) this.#options.logger.error('audit.write', { outcome: 'failed', error });
      this.#isFailing = true;
      if (!this.#isClosed) this.#timer ??= this.#options.clock.setTimer(RETRY_MS, () => this.#onTimer());
      throw error;
    }
  }

  async #writeAll(handle: FileHandle): Promise<void> {
    while (this.#unwritten !== undefined || !this.#pending.isEmpty) {
      let left = this.#unwritten ?? this.#takePending();
      // A line that a full disk has cut in two is gone on with.
      while (left.length > 0) {
        this.#unwritten = left;
        const { bytesWritten } = await handle.write(left, 0, left.length);
        this.#sizeBytes += bytesWritten;
        left = left.subarray(bytesWritten);
      }
      this.#unwritten = undefined;
    }
  }

  #takePending(): Buffer {
    const { lines, head } = this.#pending.take(this.#head);
    this.#head = head;
    return lines;
  }

  /** What somebody else has done to the file is told in the log itself; one that has no name any more is left. */
  async #isGone(handle: FileHandle): Promise<boolean> {
    const { size, nlink } = await handle.stat();
    if (size === this.#sizeBytes && nlink === 1) return false;
    const detail = { expectedBytes: this.#sizeBytes, foundBytes: size, names: nlink };
    this.#options.logger.error('audit.touched', detail);
    this.append({ operation: 'audit.touched', outcome: 'ok', detail });
    this.#sizeBytes = size;
    if (nlink > 0) return false;
    await this.#leaveFile();
    return true;
  }

  async #leaveFile(): Promise<void> {
    await this.#handle?.close();
    this.#handle = undefined;
    this.#file = undefined;
  }

  async #rotate(): Promise<void> {
    const { fileBytes = DEFAULT_FILE_BYTES } = this.#options;
    // What was begun is gone on with where it is.
    if (this.#file !== undefined && this.#sizeBytes >= fileBytes && this.#unwritten === undefined)
      await this.#leaveFile();
  }

  async #opened(): Promise<FileHandle> {
    if (this.#handle !== undefined) return this.#handle;
    const { directory } = this.#options;
    const isNew = this.#file === undefined;
    this.#file ??= auditFile(directory, this.#head.seq + 1);
    this.#handle = await open(this.#file.path, 'a', FILE_MODE);
    if (isNew) {
      this.#sizeBytes = 0;
      await syncDirectory(directory);
      await this.#removeOldest();
    }
    return this.#handle;
  }

  async #removeOldest(): Promise<void> {
    for (const { path } of auditFiles(this.#options.directory).slice(0, -this.keptFiles)) await unlink(path);
  }
}

/** How the log was left: whether its last record says that it ends, and what is behind that. */
function openDetail({ head, fragment, isDamaged, operation }: ChainEnd): NonNullable<AuditFields['detail']> {
  return {
    pid: process.pid,
    wasClosed: head.seq === 0 || operation === 'audit.close',
    ...(fragment.length === 0 ? {} : { fragmentBytes: fragment.length, fragmentSha256: hashLine(fragment) }),
    ...(isDamaged ? { isDamaged } : {}),
  };
}
