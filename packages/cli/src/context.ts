import type { Clock, Logger, Network, Random } from '@dsec/kit';
import type { Installation } from './server/installation.ts';

/** Where a verb writes and what it may use: built once, in `main.ts`. */
export interface Context {
  readonly clock: Clock;
  readonly random: Random;
  readonly network: Network;
  readonly logger: Logger;
  readonly installation: Installation;
  readonly stdin: NodeJS.ReadStream;
  readonly stdout: NodeJS.WriteStream;
  readonly stderr: NodeJS.WriteStream;
  /** Variables of the environment. */
  readonly variables: Readonly<Record<string, string | undefined>>;
  /** Aborted by the first SIGINT or SIGTERM; a second one ends the process. */
  readonly interrupted: AbortSignal;
  /** What the process is to end with; verbs that run a command set it to that of the command. */
  setExitCode(code: number): void;
}

/** One line on stdout. */
export function print(context: Context, line = ''): void {
  context.stdout.write(`${line}\n`);
}

/** One line for a person, who is not what stdout may be read by. */
export function say(context: Context, line: string): void {
  context.stderr.write(`${line}\n`);
}

export function printJson(context: Context, value: unknown): void {
  print(context, JSON.stringify(value, null, context.stdout.isTTY ? 2 : 0));
}
