import type { Command } from 'commander';
import { integer, sizeBytes } from '../arguments.ts';
import { note } from '../audit-note.ts';
import { connectLocal, dataDirectoryOf } from '../connection.ts';
import { say, type Context } from '../context.ts';
import { blobSettingsOf } from '../server/blob-settings.ts';
import { startDetached } from '../server/detached.ts';
import { daemonVariables, parseListen } from '../server/daemon-config.ts';
import { parseNetwork } from '../server/sandbox-network.ts';
import { requireRoot } from '../server/installation.ts';
import { Supervisor } from '../server/supervisor.ts';
import { startProgress } from '../terminal/progress.ts';

interface Options {
  readonly data?: string;
  readonly listen: string;
  readonly volume?: string;
  readonly volumeSize?: number;
  readonly maxSandboxes?: number;
  readonly poolBlanks?: number;
  readonly blob?: string;
  readonly network?: string;
  readonly services?: string;
  readonly webhook?: string;
  readonly detach?: boolean;
}

export function upVerb(program: Command, context: Context): void {
  program
    .command('up')
    .description(
      'start a server on this machine (as root) and keep it running until it is interrupted; sandboxes outlive it',
    )
    .option('--data <dir>', 'where it keeps everything (default: DSEC_DATA, else /var/lib/dsec)')
    .option('--listen <host:port>', 'where the API listens; port 0 takes a free one', '127.0.0.1:7080')
    .option('--volume <dir>', 'directory for what sandboxes write, best on btrfs, instead of a file of its own')
    .option('--volume-size <size>', 'size of that file: 20G (default: 80% of what is free, at most 256G)', sizeBytes)
    .option('--max-sandboxes <n>', 'most sandboxes at once (default: 4096)', integer)
    .option(
      '--pool-blanks <n>',
      'sandboxes made ahead of any create, about 1 MiB each: a burst of so many is served at once (default: 64)',
      integer,
    )
    .option(
      '--blob <url>',
      'blob store that layers come from which are not on this machine: a directory, or s3://BUCKET/PREFIX with its account in DSEC_BLOB_ENDPOINT, DSEC_BLOB_ACCESS_KEY_ID, DSEC_BLOB_SECRET_ACCESS_KEY and DSEC_BLOB_REGION, or in a JSON file that DSEC_BLOB_FILE names (default: the one that was named before)',
    )
    .option(
      '--network <cidr>',
      'IPv4 network that sandboxes get their addresses of, or none: then no policy can allow anything (default: a part of 198.18.0.0/15, where this machine can)',
    )
    .option(
      '--services <file>',
      'JSON file of the mirror services that policies may open (docs/resolver.md), or none; kept, readable by root alone (default: those that were named before)',
    )
    .option(
      '--webhook <file>',
      'JSON file of where to post what sandboxes tried that was denied (docs/behaviour.md), or none; kept, readable by root and the apiserver alone (default: the one that was named before)',
    )
    .option('--detach', 'go on in the background; return when it is ready')
    .action(async (options: Options) => {
      requireRoot('up');
      const data = dataDirectoryOf(context, options);
      if (options.detach === true) {
        const endpoint = await startDetached(context, data);
        // The server is a child of this process, which is not to wait for its end.
        context.stdout.write(`${endpoint}\n`, () => process.exit(0));
        return;
      }
      const progress = startProgress(context);
      const settings = {
        data,
        listen: parseListen(options.listen),
        volume: { path: options.volume, sizeBytes: options.volumeSize },
        maxSandboxes: options.maxSandboxes,
        poolBlanks: options.poolBlanks,
        blob: options.blob === undefined ? undefined : await blobSettingsOf(options.blob, context.variables),
        network: parseNetwork(options.network),
        servicesFile: options.services,
        webhookFile: options.webhook,
        variables: daemonVariables(context.variables),
      };
      const supervisor = await start(settings, context, progress);
      if (supervisor.networkLack !== undefined)
        say(context, `warning: sandboxes get no network: ${supervisor.networkLack}`);
      {
        await using client = await connectLocal(data);
        const { endpoint } = supervisor;
        await note(context, client, { verb: 'up', outcome: 'ok', detail: { endpoint, pid: process.pid } });
      }
      progress.done(`dsec is up at ${supervisor.endpoint} (data: ${data.path}, logs: ${data.logs})`);
      await ended(AbortSignal.any([context.interrupted, supervisor.stopAsked]));
      say(context, 'stopping; sandboxes go on running: `dsec up` takes them over again, `dsec down` stops them');
      await supervisor[Symbol.asyncDispose]();
    });
}

async function start(
  settings: Parameters<typeof Supervisor.start>[0],
  context: Context,
  progress: ReturnType<typeof startProgress>,
): Promise<Supervisor> {
  try {
    return await Supervisor.start(settings, { ...context, onStep: (step) => progress.step(step) });
  } catch (error) {
    progress.failed('the server did not start');
    throw error;
  }
}

function ended(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
