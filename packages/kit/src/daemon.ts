/** What the daemons that are written in TypeScript have in common as processes. */
import { Type } from 'typebox';
import type { Logger } from './logger.ts';

const id = { minimum: 1, maximum: 4_294_967_294 } as const;

/** Members of every daemon's configuration. @param name what the daemon is called */
export const daemonConfig = (name: string) => ({
  uid: Type.Integer({ ...id, description: `The user that the ${name} becomes.` }),
  gid: Type.Integer({ ...id }),
  logLevel: Type.Union(
    [Type.Literal('debug'), Type.Literal('info'), Type.Literal('warn'), Type.Literal('error'), Type.Literal('silent')],
    { default: 'info' },
  ),
});

/** Resolves with why this process is to end: its stdin is closed, as when whoever started it is gone, or a signal says so. */
export function askedToEnd(): Promise<string> {
  return new Promise((resolve) => {
    process.stdin.once('end', () => resolve('stdin'));
    process.stdin.once('error', () => resolve('stdin'));
    process.stdin.resume();
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => resolve(signal));
  });
}

/** A fault that nobody handles leaves the process in no known state: it is logged, and the supervisor starts another. */
export function exitOnFault(logger: Logger, event: string): void {
  const exit = (error: unknown): never => {
    logger.error(event, { outcome: 'failed', error });
    process.exit(1);
  };
  process.on('uncaughtException', exit);
  process.on('unhandledRejection', exit);
}
