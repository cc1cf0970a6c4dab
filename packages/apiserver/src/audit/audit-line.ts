/** A record of the audit log as a line of its file, and the chain that the lines are. */
import { hash } from 'node:crypto';
import { AuditRecordSchema, type AuditRecord } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';

/** A record before it has its place in the chain. */
export type AuditFields = Omit<AuditRecord, 'seq' | 'prev' | 'atMs'>;

/** Where a chain ends: what the next line is chained to. */
export interface ChainHead {
  /** Of the last record; 0: there is none. */
  readonly seq: number;
  /** Of its line; empty: there is none. */
  readonly hash: string;
}

export const EMPTY_CHAIN: ChainHead = { seq: 0, hash: '' };

/** Longest line: a bulk create names all of its sandboxes. */
export const MAX_LINE_BYTES = 256 * 1024;

const parser = compileSchema(AuditRecordSchema);

/** sha256 of a line without its line feed. */
export const hashLine = (line: string | Uint8Array): string => hash('sha256', line, 'base64url');

/** The members of a record as JSON, without its braces: what comes with every command is put together by hand, at a third of the cost. */
export type EncodedFields = string;

export const encodeFields = (fields: AuditFields): EncodedFields => JSON.stringify(fields).slice(1, -1);

/** What a line says; undefined when it is no record. */
export function parseLine(line: string): AuditRecord | undefined {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return undefined;
  }
  return parser.is(value) ? (value as AuditRecord) : undefined;
}
