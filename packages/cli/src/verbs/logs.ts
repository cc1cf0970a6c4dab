import type { ExecStatus } from '@dsec/libdsec';
import type { Command } from 'commander';
import { withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, printJson, type Context } from '../context.ts';
import { duration, size, table } from '../table.ts';
import { copyOutput } from '../terminal/output.ts';

interface Options extends ConnectionOptions {
  readonly follow?: boolean;
  readonly json?: boolean;
}

export function logsVerb(program: Command, context: Context): void {
  const command = program
    .command('logs <sandbox> [exec]')
    .description('list the commands of a sandbox, or print what one of them wrote');
  withConnection(command)
    .option('-f, --follow', 'go on until the command ends')
    .option('--json', 'print the list as JSON')
    .action(async (sandboxId: string, execId: string | undefined, options: Options) => {
      await using client = await connect(context, options);
      const sandbox = await client.getSandbox(sandboxId);
      if (execId !== undefined) {
        await copyOutput(context, sandbox.attach(execId, { follow: options.follow === true }));
        return;
      }
      const execs = await sandbox.execs();
      if (options.json === true) printJson(context, execs);
      else
        print(
          context,
          table(
            ['EXEC', 'STATE', 'STARTED', 'TOOK', 'STDOUT', 'STDERR', 'TAG'],
            execs.map((exec) => row(exec, context.clock.now())),
          ),
        );
    });
}

function row(exec: ExecStatus, nowMs: number): readonly string[] {
  const ended = exec.signal === undefined ? `exit ${exec.exitCode ?? 0}` : `signal ${exec.signal}`;
  const state =
    exec.state === 'running'
      ? 'running'
      : exec.timedOut
        ? `${ended} (timeout)`
        : exec.oomKilled
          ? `${ended} (oom)`
          : ended;
  return [
    exec.execId,
    state,
    `${duration(nowMs - exec.startedAtMs)} ago`,
    duration(exec.durationMs ?? nowMs - exec.startedAtMs),
    size(exec.stdoutBytes),
    size(exec.stderrBytes),
    exec.tag ?? '',
  ];
}
