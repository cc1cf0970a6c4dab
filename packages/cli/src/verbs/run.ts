import type { Command } from 'commander';
import { seconds, withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import type { Context } from '../context.ts';
import { exitCodeOf, reportError } from '../report-error.ts';
import { sandboxArgs, withSandbox, type SandboxOptions } from '../sandbox-options.ts';
import { copyOutput, forwardInterrupt } from '../terminal/output.ts';

interface Options extends ConnectionOptions, SandboxOptions {
  readonly interactive?: boolean;
  readonly timeout?: number;
}

export function runVerb(program: Command, context: Context): void {
  const command = program
    .command('run <environment> <command...>')
    .usage('[options] <environment> -- <command...>')
    .description("make a sandbox, run a command in it, stop it; exits with the command's code");
  withConnection(withSandbox(command))
    .option('-i, --interactive', 'pass stdin on to the command')
    .option('--timeout <time>', 'end the command after this long', seconds)
    .action(async (environment: string, argv: readonly string[], options: Options) => {
      try {
        await using client = await connect(context, options);
        await using sandbox = await client.runContainer(sandboxArgs(environment, options), {
          signal: context.interrupted,
        });
        const exec = sandbox.exec(argv, {
          ...(options.interactive === true ? { input: context.stdin } : {}),
          ...(options.timeout === undefined ? {} : { timeoutMs: options.timeout * 1000 }),
        });
        using _ = forwardInterrupt(context, exec);
        context.setExitCode(await copyOutput(context, exec));
      } catch (error) {
        reportError(context, error);
        context.setExitCode(exitCodeOf(error));
      }
    });
}
