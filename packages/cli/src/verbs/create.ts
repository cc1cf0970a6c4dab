import type { Command } from 'commander';
import { withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, printJson, type Context } from '../context.ts';
import { sandboxArgs, withSandbox, type SandboxOptions } from '../sandbox-options.ts';

interface Options extends ConnectionOptions, SandboxOptions {
  readonly json?: boolean;
}

export function createVerb(program: Command, context: Context): void {
  const command = program
    .command('create <environment>')
    .description('make a sandbox and print its id; it lives until it is stopped, idle or at its TTL');
  withConnection(withSandbox(command))
    .option('--json', 'print all about it')
    .action(async (environment: string, options: Options) => {
      await using client = await connect(context, options);
      const sandbox = await client.runContainer(sandboxArgs(environment, options), { signal: context.interrupted });
      if (options.json === true) printJson(context, sandbox.initialInfo);
      else print(context, sandbox.sandboxId);
    });
}
