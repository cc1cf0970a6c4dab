import { PlatformError } from '@dsec/contract';
import type { StopFilter } from '@dsec/libdsec';
import type { Command } from 'commander';
import { pairs, withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, say, type Context } from '../context.ts';
import { exitCodes } from '../report-error.ts';

interface Options extends ConnectionOptions {
  readonly all?: boolean;
  readonly metadata?: Readonly<Record<string, string>>;
}

export function stopVerb(program: Command, context: Context): void {
  const command = program
    .command('stop [sandbox...]')
    .description('stop sandboxes: these, all with a label, or all; prints the ids of those stopped');
  withConnection(command)
    .option('-a, --all', 'all sandboxes of the project')
    .option('--metadata <key=value>', 'those with this label; may be given often', pairs)
    .action(async (sandboxIds: readonly string[], options: Options) => {
      const which = filterOf(sandboxIds, options);
      await using client = await connect(context, options);
      const outcomes = await client.stopSandboxes(which, { signal: context.interrupted });
      for (const outcome of outcomes) {
        if ('error' in outcome) {
          say(
            context,
            `error: ${sandboxIds[outcome.index] ?? outcome.index}: ${outcome.error.message} [${outcome.error.code}]`,
          );
          context.setExitCode(exitCodes.failed);
        } else print(context, outcome.sandbox.sandboxId);
      }
    });
}

function filterOf(sandboxIds: readonly string[], { all, metadata }: Options): StopFilter {
  const given = [sandboxIds.length > 0, all === true, metadata !== undefined].filter(Boolean).length;
  if (given !== 1)
    throw new PlatformError('invalid_argument', 'say which sandboxes: ids, --metadata or --all', {
      details: { field: 'sandbox' },
    });
  return sandboxIds.length > 0 ? { sandboxIds: [...new Set(sandboxIds)] } : { metadata: metadata ?? {} };
}
