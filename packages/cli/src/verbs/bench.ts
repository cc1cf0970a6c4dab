import { Process } from '@dsec/kit';
import type { Command } from 'commander';
import type { Context } from '../context.ts';

export function benchVerb(program: Command, context: Context): void {
  program
    .command('bench <name> [options...]')
    .description('measure: create, exec, burst, layers or ondemand; the last line on stdout is one JSON object')
    .allowUnknownOption()
    .action(async (name: string, options: readonly string[]) => {
      const argv = [
        process.execPath,
        '--disable-warning=ExperimentalWarning',
        context.installation.benchMain,
        name,
        ...options,
      ] as const;
      const env = Object.fromEntries(
        Object.entries(context.variables).flatMap(([key, value]) => (value === undefined ? [] : [[key, value]])),
      );
      await using bench = await Process.start(argv, {
        clock: context.clock,
        env,
        stdin: 'ignore',
        stdout: 'inherit',
        stderr: 'inherit',
        killAfterMs: 60_000,
      });
      const onInterrupt = (): void => void bench.stop();
      context.interrupted.addEventListener('abort', onInterrupt, { once: true });
      const exit = await bench.exited;
      context.setExitCode(exit.exitCode ?? 1);
    });
}
