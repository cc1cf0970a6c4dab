import { readFile } from 'node:fs/promises';
import { limits, PlatformError, type AuditRecord } from '@dsec/contract';
import { compileSchema, writeDurably } from '@dsec/kit';
import { InvalidArgumentError, type Command } from 'commander';
import { Type } from 'typebox';
import { count, seconds, withConnection } from '../arguments.ts';
import { connect, dataDirectoryOf, type ConnectionOptions } from '../connection.ts';
import { print, printJson, say, type Context } from '../context.ts';
import { exitCodes } from '../report-error.ts';
import { isErrno, type DataDirectory } from '../server/data-directory.ts';
import { requireRoot } from '../server/installation.ts';
import { duration, table } from '../table.ts';

interface Options extends ConnectionOptions {
  readonly sandbox?: string;
  readonly key?: string;
  readonly operation?: string;
  readonly strangers?: boolean;
  readonly since?: Since;
  readonly limit: number;
  readonly json?: boolean;
}

/** A moment, or how long ago. */
type Since = { readonly atMs: number } | { readonly agoMs: number };

interface VerifyOptions {
  readonly data?: string;
  readonly json?: boolean;
}

const DEFAULT_LIMIT = 100;
const STRANGERS = 'edge.stranger';
const HeadSchema = Type.Object(
  { seq: Type.Integer({ minimum: 1 }), hash: Type.String({ pattern: '^[A-Za-z0-9_-]{43}$' }) },
  { additionalProperties: false },
);
const headParser = compileSchema(HeadSchema);

export function auditVerb(program: Command, context: Context): void {
  const audit = program
    .command('audit')
    .description('who did what on a server, the newest first (with the admin key); docs/audit.md says what is in it');
  withConnection(audit)
    .option('--sandbox <id>', 'only what was done to this sandbox')
    .option('--key <id>', 'only what came with the key of this id')
    .option('--operation <name>', 'only this one: sandbox.create, exec.start, ...')
    .option('--strangers', 'only what was asked of the edge past the API, which nobody should do')
    .option('--since <time>', 'only what is not older: 2h, 3d, or 2026-11-30T12:00Z', since)
    .option('-n, --limit <n>', `most records to show (default: ${DEFAULT_LIMIT})`, count, DEFAULT_LIMIT)
    .option('--json', 'print all about them, a line each')
    .action(async (options: Options) => {
      await using client = await connect(context, options);
      const { sandbox: sandboxId, key: principal, limit } = options;
      const operation = options.strangers === true ? STRANGERS : options.operation;
      const sinceMs = options.since === undefined ? undefined : momentOf(options.since, context.clock.now());
      const pageSize = Math.min(limit, limits.pageSize.maximum);
      const signal = context.interrupted;
      const records: AuditRecord[] = [];
      let shown = 0;
      for await (const record of client.audit({ sandboxId, principal, operation, sinceMs, pageSize, signal })) {
        if (options.json === true) print(context, JSON.stringify(record));
        else records.push(record);
        if (++shown >= limit) break;
      }
      if (options.json !== true) print(context, listing(records));
    });
  audit
    .command('verify')
    .description(
      'look whether the log on this machine is whole, and still has what was in it when this was asked last (as root); exits with 1 when not',
    )
    .option('--data <dir>', 'data directory of the server (default: DSEC_DATA, else /var/lib/dsec)')
    .option('--json', 'print all about it')
    .action(async (options: VerifyOptions) => {
      requireRoot('audit verify');
      await verify(context, dataDirectoryOf(context, options), options.json === true);
    });
}

async function verify(context: Context, data: DataDirectory, isJson: boolean): Promise<void> {
  const { verifyAudit } = await import('@dsec/apiserver');
  const anchor = await readHead(data);
  const verdict = await verifyAudit(data.auditDirectory, anchor);
  const { files, records, firstSeq, head, problems, problemCount, marks, hasAnchor } = verdict;
  if (isJson) printJson(context, verdict);
  else {
    for (const { file, what } of marks) say(context, `note: ${file}: ${what}`);
    for (const { file, seq, what } of problems) print(context, `after record ${seq}, ${file}: ${what}`);
    const kept = `${records} records in ${files} files, ${firstSeq} to ${head.seq}`;
    const before = hasAnchor === true ? `; it has what it had at record ${anchor?.seq ?? 0}` : '';
    print(context, problemCount === 0 ? `whole: ${kept}${before}` : `NOT WHOLE: ${problemCount} faults in ${kept}`);
    print(context, `head ${head.seq} ${head.hash}`);
  }
  if (problemCount > 0) context.setExitCode(exitCodes.failed);
  else if (head.seq > 0) await writeDurably(data.auditHead, `${JSON.stringify(head)}\n`, { mode: 0o600 });
}

/** How the log ended when it was whole last: kept where only root writes, since whoever takes over the apiserver can write its log anew. */
async function readHead(data: DataDirectory): Promise<{ readonly seq: number; readonly hash: string } | undefined> {
  let text: string;
  try {
    text = await readFile(data.auditHead, 'utf8');
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return undefined;
    throw error;
  }
  try {
    return headParser.parse(JSON.parse(text), { what: data.auditHead, code: 'config_invalid' });
  } catch (cause) {
    throw new PlatformError('config_invalid', `${data.auditHead} is not what a verification has left`, {
      details: { field: data.auditHead },
      cause,
    });
  }
}

function since(text: string): Since {
  const atMs = /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(text) : Number.NaN;
  if (!Number.isNaN(atMs)) return { atMs };
  try {
    return { agoMs: seconds(text) * 1000 };
  } catch (error) {
    if (!(error instanceof InvalidArgumentError)) throw error;
    throw new InvalidArgumentError('It must be a time such as 2h or 3d, or a date such as 2026-11-30T12:00Z.');
  }
}

const momentOf = (moment: Since, nowMs: number): number =>
  Math.max(0, 'atMs' in moment ? moment.atMs : nowMs - moment.agoMs);

const listing = (records: readonly AuditRecord[]): string =>
  table(['TIME', 'WHO', 'FROM', 'OPERATION', 'ON', 'OUTCOME', 'TOOK'], records.map(row));

function row(record: AuditRecord): readonly string[] {
  const { atMs, keyName, keyId, credential, remote, operation, outcome, durationMs, replay } = record;
  const who = keyName === undefined || keyName === keyId ? (keyId ?? credential) : `${keyName} (${keyId ?? ''})`;
  return [
    new Date(atMs).toISOString(),
    who ?? '-',
    remote ?? '-',
    operation,
    subjectOf(record),
    `${outcome}${replay === true ? ', again' : ''}`,
    durationMs === undefined ? '-' : duration(durationMs),
  ];
}

function subjectOf({
  sandboxId,
  sandboxIds,
  execId,
  sessionId,
  environment,
  subjectKeyId,
  detail,
}: AuditRecord): string {
  const many = sandboxIds === undefined ? undefined : `${sandboxIds.length} sandboxes`;
  const { argv0, path, method } = detail ?? {};
  const parts = [sandboxId, many, execId, sessionId, environment, subjectKeyId, argv0, path, method];
  return parts.filter((part) => part !== undefined).join(' ');
}
