/** The `dsec` command: builds what the verbs use, runs one, and turns its failure into words and an exit code. */
import { createLogger, SystemClock, SystemNetwork, SystemRandom } from '@dsec/kit';
import { CommanderError } from 'commander';
import type { Context } from './context.ts';
import { createProgram } from './program.ts';
import { exitCodes, reportError } from './report-error.ts';
import { installation } from './server/installation.ts';

const interruption = new AbortController();
const interrupt = (signal: NodeJS.Signals): void => {
  if (interruption.signal.aborted && signal === 'SIGTERM') process.exit(exitCodes.interrupted);
  interruption.abort();
};
process.on('SIGINT', interrupt);
process.on('SIGTERM', interrupt);
// Whoever read our output has gone (`dsec ls | head`): there is nobody to tell.
process.stdout.on('error', (error: NodeJS.ErrnoException) =>
  process.exit(error.code === 'EPIPE' ? 0 : exitCodes.failed),
);

const context: Context = {
  clock: new SystemClock(),
  random: new SystemRandom(),
  network: new SystemNetwork(),
  logger: createLogger({ component: 'dsec', level: 'warn' }),
  installation,
  stdin: process.stdin,
  stdout: process.stdout,
  stderr: process.stderr,
  variables: process.env,
  interrupted: interruption.signal,
  setExitCode: (code) => {
    process.exitCode = code;
  },
};

try {
  await createProgram(context).parseAsync(process.argv);
} catch (error) {
  if (error instanceof CommanderError) {
    process.exitCode = error.exitCode === 0 ? 0 : exitCodes.usage;
  } else {
    reportError(context, error);
    process.exitCode = interruption.signal.aborted ? exitCodes.interrupted : exitCodes.failed;
  }
}
