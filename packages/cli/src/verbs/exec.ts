import type { Command } from 'commander';
import { pairs, seconds, withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, type Context } from '../context.ts';
import { exitCodeOf, reportError } from '../report-error.ts';
import { copyOutput, forwardInterrupt } from '../terminal/output.ts';

interface Options extends ConnectionOptions {
  readonly user?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly workdir?: string;
  readonly interactive?: boolean;
  readonly detach?: boolean;
  readonly timeout?: number;
}

export function execVerb(program: Command, context: Context): void {
  const command = program
    .command('exec <sandbox> <command...>')
    .usage('[options] <sandbox> -- <command...>')
    .description("run a command in a sandbox; exits with the command's code");
  withConnection(command)
    .option('-u, --user <user>', 'who it runs as (default: that of the sandbox)')
    .option('-e, --env <key=value>', 'environment variable; may be given often', pairs)
    .option('-w, --workdir <path>', 'working directory (default: that of the sandbox)')
    .option('-i, --interactive', 'pass stdin on to the command')
    .option('-d, --detach', 'leave it running and print its id (see `dsec logs`)')
    .option('--timeout <time>', 'end it after this long', seconds)
    .action(async (sandboxId: string, argv: readonly string[], options: Options) => {
      const { user, env, workdir, timeout } = options;
      const how = {
        ...(user === undefined ? {} : { user }),
        ...(env === undefined ? {} : { env }),
        ...(workdir === undefined ? {} : { cwd: workdir }),
        ...(timeout === undefined ? {} : { timeoutMs: timeout * 1000 }),
      };
      try {
        await using client = await connect(context, options);
        const sandbox = await client.getSandbox(sandboxId);
        if (options.detach === true) {
          print(context, (await sandbox.execDetached(argv, how)).execId);
          return;
        }
        const exec = sandbox.exec(argv, { ...how, ...(options.interactive === true ? { input: context.stdin } : {}) });
        using _ = forwardInterrupt(context, exec);
        context.setExitCode(await copyOutput(context, exec));
      } catch (error) {
        reportError(context, error);
        context.setExitCode(exitCodeOf(error));
      }
    });
}
