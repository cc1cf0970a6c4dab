/** Looks whether the audit log is whole: every line is chained to the one before, and no file is missing between the oldest and the newest. */
import { createReadStream } from 'node:fs';
import { auditFiles } from './audit-files.ts';
import { EMPTY_CHAIN, hashLine, MAX_LINE_BYTES, parseLine, type ChainHead } from './audit-line.ts';

/** Problems that are told; the rest is counted. */
const MAX_TOLD = 100;
const LINE_FEED = 0x0a;

export interface AuditProblem {
  /** Of the record at which it shows. */
  readonly seq: number;
  readonly file: string;
  readonly what: string;
}

export interface AuditVerdict {
  readonly files: number;
  readonly records: number;
  readonly firstSeq: number;
  readonly head: ChainHead;
  /** The first of them. */
  readonly problems: readonly AuditProblem[];
  readonly problemCount: number;
  /** What is no sign of tampering, but of a kill, a loss of power, or a full disk. */
  readonly marks: readonly AuditProblem[];
  /** Whether the log still has the record of `anchor`; undefined: none was given, or it is older than what is kept. */
  readonly hasAnchor: boolean | undefined;
}

/** @param anchor the head that an earlier verdict gave: a log that was written anew, or cut at its end, no longer has it */
export async function verifyAudit(directory: string, anchor?: ChainHead): Promise<AuditVerdict> {
  const verifier = new Verifier(anchor);
  const files = auditFiles(directory);
  for (const { path, firstSeq } of files) {
    verifier.beginFile(path, firstSeq);
    for await (const { line, isWhole } of linesOf(path)) verifier.take(line, isWhole);
  }
  return { files: files.length, ...verifier.verdict() };
}

class Verifier {
  readonly #problems: AuditProblem[] = [];
  readonly #marks: AuditProblem[] = [];
  readonly #anchor: ChainHead | undefined;
  #problemCount = 0;
  #records = 0;
  #firstSeq = 0;
  #head: ChainHead = EMPTY_CHAIN;
  #hasAnchor: boolean | undefined;
  #file = '';
  /** A line that is no record: one that a kill has cut, when the next record says so. */
  #fragment: Buffer | undefined;

  constructor(anchor: ChainHead | undefined) {
    this.#anchor = anchor;
  }

  verdict(): Omit<AuditVerdict, 'files'> {
    if (this.#fragment !== undefined) this.#mark('the last line is not whole');
    const { seq = 0 } = this.#anchor ?? {};
    if (seq > this.#head.seq) {
      this.#hasAnchor = false;
      this.#problem(`records up to ${seq} were there before: the end was cut off`);
    }
    return {
      records: this.#records,
      firstSeq: this.#firstSeq,
      head: this.#head,
      problems: this.#problems,
      problemCount: this.#problemCount,
      marks: this.#marks,
      hasAnchor: this.#hasAnchor,
    };
  }

  beginFile(path: string, firstSeq: number): void {
    this.#file = path;
    if (this.#fragment !== undefined) this.#problem('the file before ends in the middle of a line');
    this.#fragment = undefined;
    if (this.#head.seq !== 0 && firstSeq !== this.#head.seq + 1)
      this.#problem(`the file begins with record ${firstSeq}, and the one before ends with ${this.#head.seq}`);
  }

  take(line: Buffer, isWhole: boolean): void {
    const record = isWhole ? parseLine(line.toString('utf8')) : undefined;
    if (record === undefined) {
      if (this.#fragment !== undefined) this.#problem('a line is no record');
      this.#fragment = line;
      return;
    }
    const { seq, prev, operation, detail } = record;
    if (this.#fragment !== undefined) {
      if (operation === 'audit.open' && detail?.['fragmentSha256'] === hashLine(this.#fragment))
        this.#mark(`a line of ${this.#fragment.length} bytes was not written whole before record ${seq}`);
      else this.#problem('a line is no record');
      this.#fragment = undefined;
    }
    const isFirst = this.#records === 0;
    if (isFirst) this.#firstSeq = seq;
    else {
      if (seq !== this.#head.seq + 1) this.#problem(`record ${seq} follows record ${this.#head.seq}`);
      if (prev !== this.#head.hash) this.#problem(`record ${seq} is not chained to the line before it`);
    }
    if (isFirst && seq === 1 && prev !== '') this.#problem('the first record is chained to another');
    this.#records++;
    this.#head = { seq, hash: hashLine(line) };
    this.#remark(record.operation, seq, detail ?? {});
    if (this.#anchor?.seq === seq) {
      this.#hasAnchor = this.#anchor.hash === this.#head.hash;
      if (!this.#hasAnchor) this.#problem(`record ${seq} is not the one that was there before`);
    }
  }

  #remark(operation: string, seq: number, detail: Readonly<Record<string, unknown>>): void {
    if (operation === 'audit.touched') this.#problem('somebody else has written to, cut or removed the file');
    if (operation === 'audit.lost') this.#mark(`${String(detail['records'])} records were lost before record ${seq}`);
    if (operation !== 'audit.open') return;
    if (detail['wasClosed'] === false)
      this.#mark(`the apiserver before record ${seq} was killed: what it did last may be missing`);
    if (detail['isDamaged'] === true) this.#problem('the last line was no record when the apiserver was started');
  }

  #problem(what: string): void {
    this.#problemCount++;
    if (this.#problems.length < MAX_TOLD) this.#problems.push({ seq: this.#head.seq, file: this.#file, what });
  }

  #mark(what: string): void {
    if (this.#marks.length < MAX_TOLD) this.#marks.push({ seq: this.#head.seq, file: this.#file, what });
  }
}

/** The lines of a file as bytes, each whole or, the last, not. Of one that is longer than any record only the begin. */
async function* linesOf(path: string): AsyncGenerator<{ readonly line: Buffer; readonly isWhole: boolean }> {
  let rest: Buffer = Buffer.alloc(0);
  for await (const chunk of createReadStream(path, { highWaterMark: 1024 * 1024 }) as AsyncIterable<Buffer>) {
    const bytes = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    let begin = 0;
    for (let end = bytes.indexOf(LINE_FEED); end >= 0; end = bytes.indexOf(LINE_FEED, begin)) {
      yield { line: bytes.subarray(begin, end), isWhole: true };
      begin = end + 1;
    }
    rest = bytes.subarray(begin);
    if (rest.length > MAX_LINE_BYTES) rest = rest.subarray(0, MAX_LINE_BYTES);
  }
  if (rest.length > 0) yield { line: rest, isWhole: false };
}
