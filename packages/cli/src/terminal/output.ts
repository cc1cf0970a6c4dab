import type { Exec } from '@dsec/libdsec';
import type { Context } from '../context.ts';
import { say } from '../context.ts';
import { size } from '../table.ts';

/** Copies the output of a command to this process's own, byte for byte, no faster than it is read. Returns the exit code. */
export async function copyOutput(context: Context, exec: Exec): Promise<number> {
  for await (const event of exec) {
    if (event.kind === 'gap') {
      say(
        context,
        `dsec: ${size(event.toByte - event.fromByte)} of ${event.stream} were dropped: they were written faster than they were read`,
      );
      continue;
    }
    await write(event.kind === 'stdout' ? context.stdout : context.stderr, event.data);
  }
  const result = await exec;
  if (result.isTimedOut) say(context, 'dsec: the command was ended by its timeout');
  if (result.isOomKilled) say(context, 'dsec: the command ran into the memory limit of the sandbox');
  return result.exitCode;
}

/** Resolves when the stream takes more. */
export function write(stream: NodeJS.WriteStream, data: Uint8Array): Promise<void> {
  return new Promise((resolve) => {
    if (stream.write(data)) resolve();
    else stream.once('drain', resolve);
  });
}

/**
 * Hands SIGINT and SIGTERM of this process on to a command: the first politely, the next with force. Without it the command would
 * go on alone.
 */
export function forwardInterrupt(context: Context, exec: Exec): Disposable {
  const onInterrupt = (): void => {
    exec.kill('SIGINT').catch(() => undefined);
    process.once('SIGINT', force);
  };
  const force = (): void => void exec.kill('SIGKILL').catch(() => undefined);
  if (context.interrupted.aborted) onInterrupt();
  else context.interrupted.addEventListener('abort', onInterrupt, { once: true });
  return {
    [Symbol.dispose]: () => {
      context.interrupted.removeEventListener('abort', onInterrupt);
      process.off('SIGINT', force);
    },
  };
}
