/** The files of the audit log: named by the number of their first record, so that they are in order, and that a missing one shows. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';

const SEQ_DIGITS = 12;
const FORM = new RegExp(`^audit-(\\d{${SEQ_DIGITS}})\\.jsonl$`);

export interface AuditFile {
  readonly path: string;
  /** Of its first record. */
  readonly firstSeq: number;
}

export const auditFile = (directory: string, firstSeq: number): AuditFile => ({
  path: join(directory, `audit-${String(firstSeq).padStart(SEQ_DIGITS, '0')}.jsonl`),
  firstSeq,
});

/** Those that are there, the oldest first. */
export function auditFiles(directory: string): readonly AuditFile[] {
  return readdirSync(directory)
    .map((name) => FORM.exec(name)?.[1])
    .filter((digits) => digits !== undefined)
    .map((digits) => auditFile(directory, Number(digits)))
    .toSorted((left, right) => left.firstSeq - right.firstSeq);
}
