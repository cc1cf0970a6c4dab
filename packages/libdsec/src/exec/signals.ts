import { PlatformError } from '@dsec/contract';

/** Signals of Linux, which is what every sandbox runs, whatever the caller's own system numbers them. */
const signalNumbers = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGABRT: 6,
  SIGKILL: 9,
  SIGUSR1: 10,
  SIGUSR2: 12,
  SIGPIPE: 13,
  SIGALRM: 14,
  SIGTERM: 15,
  SIGCHLD: 17,
  SIGCONT: 18,
  SIGSTOP: 19,
  SIGTSTP: 20,
  SIGTTIN: 21,
  SIGTTOU: 22,
  SIGWINCH: 28,
} as const;

/** A signal by its name, or by its number on Linux (1 to 64). */
export type Signal = keyof typeof signalNumbers | number;

export function signalNumber(signal: Signal): number {
  const number = typeof signal === 'number' ? signal : signalNumbers[signal];
  if (!Number.isInteger(number) || number < 1 || number > 64) {
    throw new PlatformError('invalid_argument', `there is no signal ${String(signal)}`, {
      details: { field: 'signal' },
    });
  }
  return number;
}
