/** Finds where the chain goes on when the log is opened: behind the last whole line of the newest file that has one. */
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { hashLine, MAX_LINE_BYTES, parseLine, EMPTY_CHAIN, type ChainHead } from './audit-line.ts';
import type { AuditFile } from './audit-files.ts';

const LINE_FEED = 0x0a;

/** How the newest file ends. */
export interface ChainEnd {
  readonly head: ChainHead;
  readonly sizeBytes: number;
  /** What is behind the last line feed: a line that was not written whole. */
  readonly fragment: Buffer;
  /** The last line is no record. */
  readonly isDamaged: boolean;
  /** What the last record was. */
  readonly operation: string | undefined;
}

const NOTHING: ChainEnd = {
  head: EMPTY_CHAIN,
  sizeBytes: 0,
  fragment: Buffer.alloc(0),
  isDamaged: false,
  operation: undefined,
};

/** @param files the oldest first */
export function findChainEnd(files: readonly AuditFile[]): ChainEnd {
  const newest = files.at(-1);
  if (newest === undefined) return NOTHING;
  const end = endOf(newest);
  if (end.head.hash !== '') return end;
  // It was made, and nothing whole was written to it.
  const before = findChainEnd(files.slice(0, -1));
  return { ...before, sizeBytes: end.sizeBytes, fragment: end.fragment };
}

function endOf({ path, firstSeq }: AuditFile): ChainEnd {
  const file = openSync(path, 'r');
  try {
    const sizeBytes = fstatSync(file).size;
    // A line, and one that was not written whole.
    const from = Math.max(0, sizeBytes - 2 * MAX_LINE_BYTES);
    const bytes = Buffer.alloc(sizeBytes - from);
    const tail = bytes.subarray(0, readSync(file, bytes, 0, bytes.length, from));
    const last = tail.lastIndexOf(LINE_FEED);
    const fragment = Buffer.from(tail.subarray(last + 1));
    if (last < 0) return { ...NOTHING, sizeBytes, fragment };
    const line = tail.subarray(last === 0 ? 0 : tail.lastIndexOf(LINE_FEED, last - 1) + 1, last);
    const record = parseLine(line.toString('utf8'));
    const seq = record?.seq ?? seqBefore(tail.subarray(0, last)) ?? firstSeq;
    return {
      head: { seq, hash: hashLine(line) },
      sizeBytes,
      fragment,
      isDamaged: record === undefined,
      operation: record?.operation,
    };
  } finally {
    closeSync(file);
  }
}

/** The number of the newest record before a line that is none. */
function seqBefore(bytes: Buffer): number | undefined {
  for (const line of bytes.toString('utf8').split('\n').toReversed()) {
    const seq = parseLine(line)?.seq;
    if (seq !== undefined) return seq;
  }
  return undefined;
}
