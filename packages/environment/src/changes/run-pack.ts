/** One pack, from the request to the layer. */
import {
  type EnvironmentConfig,
  type EnvironmentImage,
  type PackCheck,
  type PackReport,
  type PackRequest,
  PlatformError,
} from '@dsec/contract';
import type { BuildContext } from '../build-context.ts';
import { changesIn } from './change-scan.ts';
import { packChanges, scanChanges } from './pack-changes.ts';
import { ChangeList, reportOf, requirePassed } from './pack-report.ts';
import { PackingRules } from './packing-rules.ts';
import { defaultScrubRules } from './scrub-rules.ts';
import { Selection } from './selection.ts';

export interface PackOutcome {
  /** One layer; absent after a dry run. */
  readonly image?: EnvironmentImage;
  readonly report: PackReport;
}

export interface PackSource {
  /** The archive of the changes. */
  readonly changes: AsyncIterable<Uint8Array>;
  readonly config: EnvironmentConfig;
  readonly architecture: string;
}

/**
 * Packs the changes as the request says: scrubbed, held to the packing rules before anything is stored, and read again before it is published.
 *
 * @throws PlatformError `invalid_argument` for its paths, `pack_refused`, and what {@link packChanges} throws
 */
export const runPack = async (
  context: BuildContext,
  request: PackRequest,
  source: PackSource,
): Promise<PackOutcome> => {
  const selection = selectionOf(request);
  const rules = new PackingRules({ limits: request.limits, allow: request.allow });
  if (request.dryRun === true) {
    const list = new ChangeList();
    const scan = await scanChanges(changesIn(source.changes, request.name, selection), (change) => {
      rules.add(change);
      list.add(change);
    });
    return { report: reportOf(scan, rules, list) };
  }
  let report: PackReport | undefined;
  let copies: readonly string[] = [];
  const image = await packChanges(context, {
    ...source,
    name: request.name,
    selection,
    isVerified: true,
    onChange: (change) => rules.add(change),
    onScanned: (scan) => {
      report = reportOf(scan, rules);
      requirePassed(report);
    },
    onVerified: (verified) => (copies = verified.copies),
  });
  if (report === undefined) throw new PlatformError('internal', 'a pack went by without a report');
  return { image, report: { ...report, checks: [...report.checks, scrubbedCheck(copies)] } };
};

/** What is kept under other names is said, not judged: a copy may be meant. */
const scrubbedCheck = (copies: readonly string[]): PackCheck =>
  copies.length === 0
    ? { rule: 'scrubbed', level: 'pass', message: 'the layer has nothing of what was left out', count: 0, paths: [] }
    : {
        rule: 'scrubbed',
        level: 'warn',
        message: 'files with the same bytes as some that were left out',
        count: copies.length,
        paths: [...copies],
      };

/** @throws PlatformError `invalid_argument` */
const selectionOf = ({ paths, scrub = {} }: Pick<PackRequest, 'paths' | 'scrub'>): Selection =>
  new Selection({
    paths,
    rules: scrub.defaults === false ? [] : defaultScrubRules,
    omit: scrub.omit,
    keep: scrub.keep,
  });
