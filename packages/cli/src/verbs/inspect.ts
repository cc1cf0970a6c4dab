import { PlatformError } from '@dsec/contract';
import type { Command } from 'commander';
import { withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { printJson, type Context } from '../context.ts';

interface Options extends ConnectionOptions {
  readonly behaviour?: boolean;
}

export function inspectVerb(program: Command, context: Context): void {
  const command = program
    .command('inspect <sandbox>')
    .description('print all about a sandbox as JSON: state, policy, use, commands, processes');
  withConnection(command)
    .option(
      '--behaviour',
      'instead: what it tried that was denied, and which tripwires it touched; of one that has ended, too',
    )
    .action(async (sandboxId: string, options: Options) => {
      await using client = await connect(context, options);
      const sandbox = await client.getSandbox(sandboxId);
      if (options.behaviour === true) {
        printJson(context, await sandbox.behaviour());
        return;
      }
      const [policy, usage, execs, sessions, processes] = await Promise.all([
        unlessEnded(sandbox.policy.get()),
        unlessEnded(sandbox.usage()),
        unlessEnded(sandbox.execs()),
        unlessEnded(sandbox.sessions()),
        unlessEnded(sandbox.processes()),
      ]);
      const { initialInfo } = sandbox;
      printJson(context, { ...initialInfo, policy: policy ?? initialInfo.policy, usage, execs, sessions, processes });
    });
}

/** Of a sandbox that has ended, only what its edge remembers can be told. */
async function unlessEnded<T>(asked: Promise<T>): Promise<T | null> {
  try {
    return await asked;
  } catch (error) {
    if (PlatformError.is(error) && (error.code === 'sandbox_ended' || error.code === 'sandbox_failed')) return null;
    throw error;
  }
}
