import { packAllowances, packKinds, type Packed, type PackAllowance, type PackKind } from '@dsec/contract';
import type { PackOptions } from '@dsec/libdsec';
import { Option, type Command } from 'commander';
import { list, pairs, sizeBytes, integer, withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, printJson, say, type Context } from '../context.ts';
import { printable, size, table } from '../table.ts';
import { startProgress } from '../terminal/progress.ts';

interface Options extends ConnectionOptions {
  readonly as: string;
  readonly kind: PackKind;
  readonly path?: readonly string[];
  readonly omit?: readonly string[];
  readonly keep?: readonly string[];
  readonly scrub: boolean;
  readonly allow?: readonly PackAllowance[];
  readonly maxSize?: number;
  readonly maxEntries?: number;
  readonly env?: Readonly<Record<string, string>>;
  readonly workdir?: string;
  readonly description?: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

export function packVerb(program: Command, context: Context): void {
  const command = program
    .command('pack <sandbox>')
    .description('make what a live sandbox has written into a workspace, a toolkit or an environment (pack_diff)');
  withConnection(command)
    .requiredOption('--as <name>', 'its name; one that is taken by the same kind is given to the new one')
    .addOption(new Option('--kind <kind>', 'what it becomes').choices(packKinds).default('workspace'))
    .option('--path <path>', 'only what is at or below this path; may be given often (default: everything)', list)
    .option('--omit <path>', 'leave this out as well, with what is below it; may be given often', list)
    .option('--keep <path>', 'keep this, whatever the scrub rules say; may be given often', list)
    .option('--no-scrub', 'leave nothing out by rule: histories, caches and residue are packed')
    .addOption(
      new Option('--allow <rule>', 'a packing rule that may be broken; may be given often')
        .choices(packAllowances)
        .argParser(list),
    )
    .option('--max-size <size>', 'refuse more bytes of files (default: 8G)', sizeBytes)
    .option('--max-entries <n>', 'refuse more entries (default: 500000)', integer)
    .option('-e, --env <name=value>', 'variable of the new layer; may be given often', pairs)
    .option('--workdir <path>', 'working directory of the new layer')
    .option('--description <text>', 'what `dsec env ls` says of it')
    .option('--dry-run', 'pack nothing; list what would be packed and what would be left out')
    .option('--json', 'print all about it')
    .action(async (sandboxId: string, options: Options) => {
      await using client = await connect(context, options);
      const sandbox = await client.getSandbox(sandboxId, { signal: context.interrupted });
      const progress = startProgress(context);
      progress.step(`packing ${sandboxId}`);
      let packed: Packed;
      try {
        packed = await sandbox.packDiff({
          ...requestOf(options),
          signal: context.interrupted,
          onProgress: ({ step, doneBytes }) =>
            progress.detail(doneBytes === undefined ? step : `${step} ${size(doneBytes)}`),
        });
      } catch (error) {
        progress.failed('the pack failed');
        throw error;
      }
      const { report, environment, frozenMs } = packed;
      progress.done(
        `${environment === null ? 'would be' : `${environment.kind} ${environment.name}:`} ${report.entries} entries, ${size(report.bytes)}; the sandbox stood still for ${frozenMs.toFixed(1)} ms`,
      );
      if (options.json === true) printJson(context, packed);
      else {
        tell(context, packed);
        if (environment !== null) print(context, environment.name);
      }
    });
}

function requestOf(options: Options): PackOptions {
  const { as: name, kind, path, omit, keep, scrub, allow, maxSize, maxEntries, env, workdir, description } = options;
  return {
    name,
    kind,
    ...(path === undefined ? {} : { paths: [...path] }),
    scrub: {
      defaults: scrub,
      ...(omit === undefined ? {} : { omit: [...omit] }),
      ...(keep === undefined ? {} : { keep: [...keep] }),
    },
    ...(allow === undefined ? {} : { allow }),
    limits: {
      ...(maxSize === undefined ? {} : { maxBytes: maxSize }),
      ...(maxEntries === undefined ? {} : { maxEntries }),
    },
    ...(env === undefined ? {} : { env }),
    ...(workdir === undefined ? {} : { workdir }),
    ...(description === undefined ? {} : { description }),
    dryRun: options.dryRun === true,
  };
}

/** What a person wants to know of it, on stderr; of a dry run the entries, on stdout. */
function tell(context: Context, { report }: Packed): void {
  const { omitted, checks, listed, truncated } = report;
  if (listed !== undefined) {
    print(
      context,
      table(
        ['SIZE', 'KIND', 'LEFT OUT BY', 'PATH'],
        listed.map(({ path, kind, sizeBytes: bytes, omittedBy }) => [size(bytes), kind, omittedBy ?? '', path]),
      ),
    );
    if (truncated === true) say(context, 'there are more than are listed');
  }
  for (const { by, entries, bytes } of omitted) say(context, `left out by ${by}: ${entries} entries, ${size(bytes)}`);
  for (const { rule, level, message, count, paths } of checks) {
    if (level === 'pass') continue;
    say(context, `${level} ${rule}: ${message}${paths.length === 0 ? '' : ` (${count})`}`);
    for (const path of paths) say(context, `  ${printable(path)}`);
  }
}
