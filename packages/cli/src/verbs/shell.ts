import type { Pty, PtyOptions } from '@dsec/libdsec';
import { PlatformError } from '@dsec/contract';
import type { Command } from 'commander';
import { pairs, withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { say, type Context } from '../context.ts';
import { write } from '../terminal/output.ts';

interface Options extends ConnectionOptions {
  readonly user?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly workdir?: string;
}

export function shellVerb(program: Command, context: Context): void {
  const command = program
    .command('shell <sandbox> [command...]')
    .description('a terminal in a sandbox: a login shell, or the command; exits with its code');
  withConnection(command)
    .option('-u, --user <user>', 'who it runs as (default: that of the sandbox)')
    .option('-e, --env <key=value>', 'environment variable; may be given often', pairs)
    .option('-w, --workdir <path>', 'working directory (default: that of the sandbox)')
    .action(async (sandboxId: string, argv: readonly string[], options: Options) => {
      if (!context.stdin.isTTY || !context.stdout.isTTY) {
        throw new PlatformError('invalid_argument', '`dsec shell` needs a terminal: use `dsec exec -i` for scripts', {
          details: { field: 'stdin' },
        });
      }
      await using client = await connect(context, options);
      const sandbox = await client.getSandbox(sandboxId);
      const pty = await sandbox.pty(ptyOptions(context, argv, options));
      context.setExitCode(await attachTerminal(context, pty));
    });
}

function ptyOptions(context: Context, argv: readonly string[], { user, env, workdir }: Options): PtyOptions {
  const term = context.variables.TERM;
  return {
    ...sizeOf(context),
    ...(argv.length === 0 ? {} : { argv }),
    ...(user === undefined ? {} : { user }),
    ...(workdir === undefined ? {} : { cwd: workdir }),
    env: { ...(term === undefined ? {} : { TERM: term }), ...env },
  };
}

const sizeOf = ({ stdout }: Context): { readonly rows: number; readonly cols: number } => ({
  rows: Math.max(1, stdout.rows),
  cols: Math.max(1, stdout.columns),
});

/** Makes this terminal the one in the sandbox, until what runs in it ends. */
async function attachTerminal(context: Context, pty: Pty): Promise<number> {
  const { stdin, stdout } = context;
  let isOver = false;
  const failed = (error: unknown): void => {
    // What was typed after the shell has ended is nobody's.
    if (isOver) return;
    if (!PlatformError.is(error) || (error.code !== 'stdin_closed' && error.code !== 'exec_not_found'))
      say(context, `dsec: ${String(error)}\r`);
  };
  const onInput = (data: Buffer): void => void pty.write(Uint8Array.from(data)).catch(failed);
  const onResize = (): void => void pty.resize(sizeOf(context)).catch(failed);
  stdin.setRawMode(true);
  stdin.on('data', onInput);
  stdout.on('resize', onResize);
  try {
    for await (const data of pty) await write(stdout, data);
    return (await pty.exited()).exitCode;
  } finally {
    isOver = true;
    stdout.off('resize', onResize);
    stdin.off('data', onInput);
    stdin.setRawMode(false);
    stdin.pause();
  }
}
