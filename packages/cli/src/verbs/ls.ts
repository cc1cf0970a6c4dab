import type { SandboxInfo } from '@dsec/libdsec';
import { sandboxStates } from '@dsec/contract';
import type { Command } from 'commander';
import { pairs, withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, printJson, type Context } from '../context.ts';
import { duration, table } from '../table.ts';

interface Options extends ConnectionOptions {
  readonly all?: boolean;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly json?: boolean;
  readonly quiet?: boolean;
}

export function listVerb(program: Command, context: Context): void {
  const command = program.command('ls').description('list the sandboxes');
  withConnection(command)
    .option('-a, --all', 'those that have ended too')
    .option('--metadata <key=value>', 'only those with this label; may be given often', pairs)
    .option('-q, --quiet', 'print ids only')
    .option('--json', 'print all about them')
    .action(async (options: Options) => {
      await using client = await connect(context, options);
      const list = client.sandboxes({
        ...(options.all === true ? { states: sandboxStates } : {}),
        ...(options.metadata === undefined ? {} : { metadata: options.metadata }),
        signal: context.interrupted,
      });
      const sandboxes = await list.toArray();
      if (options.json === true) printJson(context, sandboxes);
      else if (options.quiet === true) for (const { sandboxId } of sandboxes) print(context, sandboxId);
      else
        print(
          context,
          table(
            ['ID', 'ENVIRONMENT', 'STATE', 'AGE', 'MEMORY', 'CPUS', 'ENDS WHEN', 'METADATA'],
            sandboxes.map((info) => row(info, context.clock.now())),
          ),
        );
    });
}

function row(info: SandboxInfo, nowMs: number): readonly string[] {
  const state = info.cause === null ? info.state : `${info.state} (${info.cause.kind})`;
  const idle = info.idleEndsAtMs === null ? 'busy' : `idle ${duration(info.idleEndsAtMs - nowMs)}`;
  const labels = Object.entries(info.metadata).map(([key, value]) => `${key}=${value}`);
  return [
    info.sandboxId,
    info.environment,
    state,
    duration((info.endedAtMs ?? nowMs) - info.createdAtMs),
    `${info.memoryMib} MiB`,
    String(info.cpuMillis / 1000),
    info.endedAtMs === null ? idle : '-',
    labels.join(' '),
  ];
}
