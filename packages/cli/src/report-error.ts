import { PlatformError } from '@dsec/contract';
import type { Context } from './context.ts';
import { say } from './context.ts';
import { printable } from './table.ts';

/** Causes that are printed below an error. */
const MAX_CAUSES = 5;

/** Exit codes of failures of dsec itself, next to those of the commands that it runs (as with `docker run` and shells). */
export const exitCodes = {
  failed: 1,
  usage: 2,
  commandFailed: 125,
  notExecutable: 126,
  notFound: 127,
  interrupted: 130,
} as const;

/** Prints what failed, why, what to do, and the code; of the details those that the message lacks or the advice names. */
export function reportError(context: Context, error: unknown): void {
  if (!PlatformError.is(error)) {
    say(
      context,
      `dsec: a fault of dsec itself: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`,
    );
    return;
  }
  say(context, `error: ${printable(error.message)} [${error.code}]`);
  for (const cause of causesOf(error)) say(context, `  because: ${printable(cause)}`);
  for (const [key, value] of Object.entries(error.details)) {
    if (key === 'output' && typeof value === 'string') say(context, indent(value));
    else if (value !== null && (error.fix.includes(`details.${key}`) || !error.message.includes(String(value))))
      say(context, `  ${printable(key)}: ${printable(String(value))}`);
  }
  say(context, `  to do: ${error.fix}`);
}

/** With what `run` and `exec` end when dsec failed, not the command. */
export function exitCodeOf(error: unknown): number {
  if (!PlatformError.is(error)) return exitCodes.commandFailed;
  if (error.code === 'command_not_found') return exitCodes.notFound;
  if (error.code === 'command_not_executable') return exitCodes.notExecutable;
  if (error.code === 'cancelled') return exitCodes.interrupted;
  return exitCodes.commandFailed;
}

function causesOf(error: Error): readonly string[] {
  const messages: string[] = [];
  let { cause } = error;
  while (cause instanceof Error && messages.length < MAX_CAUSES) {
    messages.push(cause.message);
    cause = cause.cause;
  }
  return messages;
}

function indent(text: string): string {
  return text
    .trimEnd()
    .split('\n')
    .map((line) => `  | ${printable(line)}`)
    .join('\n');
}
