import { PlatformError } from '@dsec/contract';
import { Process } from '@dsec/kit';
import { mkdir, open, readFile } from 'node:fs/promises';
import type { Context } from '../context.ts';
import type { DataDirectory } from './data-directory.ts';
import { readServerFile } from './server-file.ts';
import { programEnv } from './volume.ts';

/** How often the server that starts is looked for. */
const POLL_MS = 50;
/** Kept of what it said, for the error. */
const TAIL_CHARS = 4000;

/** Starts this same command in a session of its own, without `--detach`; returns its endpoint when it is ready. */
export async function startDetached(context: Context, data: DataDirectory): Promise<string> {
  await mkdir(data.logs, { recursive: true, mode: 0o750 });
  const logFile = data.logFile('up');
  await using log = await open(logFile, 'a', 0o640);
  const offset = (await log.stat()).size;
  const [, main = '', ...args] = process.argv;
  const argv = [
    'setsid',
    process.execPath,
    '--disable-warning=ExperimentalWarning',
    main,
    ...args.filter((arg) => arg !== '--detach'),
  ] as const;
  const variables = Object.fromEntries(
    Object.entries(context.variables).flatMap(([key, value]) =>
      key.startsWith('DSEC_') && value !== undefined ? [[key, value]] : [],
    ),
  );
  const server = await Process.start(argv, {
    clock: context.clock,
    env: { ...programEnv, ...variables },
    stdin: 'ignore',
    stdout: log.fd,
    stderr: log.fd,
  });
  for (;;) {
    const file = await readServerFile(data);
    if (file?.pid === server.pid) {
      server.release();
      return file.endpoint;
    }
    if (!server.isRunning) {
      const said = (await readFile(logFile)).subarray(offset).toString().slice(-TAIL_CHARS);
      throw new PlatformError('host_unsuitable', 'the server did not start', {
        details: { missing: 'server', output: said },
      });
    }
    if (context.interrupted.aborted) {
      await server.stop();
      throw new PlatformError('cancelled', 'starting the server was interrupted');
    }
    await context.clock.sleep(POLL_MS);
  }
}
