/**
 * Which command and session a process belongs to: the one whose first process it is, or that is among its parents; else the one whose kernel session it
 * is in, for a process whose parents have ended. Who has left both by setsid and a dead parent belongs to none.
 */
import type { ActingProcess, ChannelExec, ChannelSession } from '@dsec/backends';

/** The process that everything descends from belongs to nobody. */
const FIRST_PID = 1;
/** What clocks of milliseconds round away. */
const ROUNDED_MS = 2;
/** A command is recorded a moment after its process has begun. */
const RECORDED_WITHIN_MS = 1000;

/** What runs in a sandbox, as it was at one moment. */
export interface KnownCommands {
  readonly askedAtMs: number;
  readonly execs: readonly ChannelExec[];
  readonly sessions: readonly ChannelSession[];
}

export interface Owner {
  readonly execId?: string;
  readonly sessionId?: string;
}

/** `orderOf`: in which order the commands were asked for. */
export function ownerOf(
  process: Pick<ActingProcess, 'pid' | 'ancestors' | 'session'>,
  atMs: number,
  { execs, sessions }: KnownCommands,
  orderOf: (execId: string) => number,
): Owner {
  const line = [process.pid, ...process.ancestors, process.session].filter((pid) => pid > FIRST_PID);
  for (const pid of line) {
    const session = sessions.find((each) => each.pid === pid);
    const exec = chosen(
      execs.filter((each) => each.pid === pid && each.startedAtMs <= atMs + RECORDED_WITHIN_MS),
      atMs,
      orderOf,
    );
    if (exec === undefined && session === undefined) continue;
    return {
      ...(exec === undefined ? {} : { execId: exec.execId }),
      ...(session === undefined ? {} : { sessionId: session.sessionId }),
    };
  }
  return {};
}

/** Several commands have one process where a session runs them one after the other, or where its id came again. */
function chosen(
  execs: readonly ChannelExec[],
  atMs: number,
  orderOf: (execId: string) => number,
): ChannelExec | undefined {
  const covering = execs.filter(
    ({ startedAtMs, endedAtMs }) => startedAtMs <= atMs + ROUNDED_MS && (endedAtMs ?? atMs) + ROUNDED_MS >= atMs,
  );
  // Of those that are not over, all but the first wait for their turn.
  const [first] = covering.toSorted((a, b) => orderOf(a.execId) - orderOf(b.execId));
  if (first !== undefined) return first;
  // It outlived its command, and the one after has not begun.
  const begun = execs.filter(({ startedAtMs }) => startedAtMs <= atMs);
  return (begun.length > 0 ? begun : execs).toSorted((a, b) => b.startedAtMs - a.startedAtMs)[0];
}
