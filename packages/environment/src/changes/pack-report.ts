/** What a pack is, or would be. */
import { type ListedChange, type PackReport, PlatformError } from '@dsec/contract';
import type { Change, ChangeScan } from './change-scan.ts';
import { type PackingRules, shown } from './packing-rules.ts';

/** Entries that a report lists, and the letters of their paths: a report is one message. */
const MAX_LISTED = 2000;
const MAX_LISTED_CHARS = 256 * 1024;

/** Collects what a dry run lists. */
export class ChangeList {
  readonly listed: ListedChange[] = [];
  truncated = false;
  #chars = 0;

  add({ kind, path, verdict, entry }: Change): void {
    if (path === '' || (verdict.kind === 'omit' && (verdict.by === 'platform' || verdict.by === 'path'))) return;
    const text = shown(path);
    if (this.listed.length >= MAX_LISTED || this.#chars + text.length > MAX_LISTED_CHARS) {
      this.truncated = true;
      return;
    }
    this.#chars += text.length;
    this.listed.push({
      path: text,
      kind,
      sizeBytes: kind === 'file' ? entry.sizeBytes : 0,
      omittedBy: verdict.kind === 'omit' ? verdict.by : kind === 'socket' ? 'socket' : null,
    });
  }
}

/** What the scan found, by its rules. */
export const reportOf = (scan: ChangeScan, rules: PackingRules, list?: ChangeList): PackReport => ({
  entries: scan.entries,
  bytes: scan.bytes,
  omitted: [...scan.omitted]
    .map(([by, { entries, bytes }]) => ({ by, entries, bytes }))
    .toSorted((left, right) => right.bytes - left.bytes || right.entries - left.entries),
  checks: rules.checks(scan),
  ...(list === undefined ? {} : { listed: list.listed, truncated: list.truncated }),
});

/** @throws PlatformError `pack_refused` when a rule failed */
export const requirePassed = ({ checks }: PackReport): void => {
  const failed = checks.filter(({ level }) => level === 'fail');
  const [first] = failed;
  if (first === undefined) return;
  throw new PlatformError('pack_refused', `the changes break the packing rule ${first.rule}: ${first.message}`, {
    details: { rules: failed.map(({ rule }) => rule), paths: first.paths.slice(0, 5) },
  });
};
