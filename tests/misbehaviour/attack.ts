import type { Sandbox } from '@dsec/libdsec';
import { beforeEach, expect } from 'vitest';

/** Attacks name system calls by the numbers of one architecture. */
export function onX64Only(): void {
  if (process.arch === 'x64') return;
  const reason = 'the attacks know the system calls of x86-64 only';
  process.stderr.write(`skipped: ${reason}\n`);
  beforeEach((context) => context.skip(reason));
}

/** What every attack in Python can use: calls by name and number, and `attempt`, which prints how one went. */
export const PRELUDE = `
import ctypes, ctypes.util, errno, fcntl, os, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def checked(result):
    if result != 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def attempt(name, action):
    try: value = action()
    except OSError as error: print(name + '\\t' + errno.errorcode.get(error.errno, str(error.errno)), flush=True)
    except Exception as error: print(name + '\\tFAULT ' + repr(error), flush=True)
    else: print(name + '\\tDONE' + ('' if value is None else ' ' + str(value)), flush=True)
def read(path, length=64):
    with open(path, 'rb') as file: return file.read(length)
def write(path, data=b'1'):
    fd = os.open(path, os.O_WRONLY)
    try: os.write(fd, data)
    finally: os.close(fd)
`;

/**
 * Runs a script as root inside.
 *
 * @returns by the names of its attempts: `DONE` with what came of it, or the name of an error number
 */
export async function attack(
  sandbox: Sandbox,
  script: string,
  timeoutMs = 60_000,
): Promise<ReadonlyMap<string, string>> {
  const result = await sandbox.exec(['python3', '-c', PRELUDE + script], { timeoutMs });
  expect({ stderr: result.stderr, exitCode: result.exitCode }).toEqual({ stderr: '', exitCode: 0 });
  const outcomes = new Map<string, string>();
  for (const line of result.stdout.split('\n').filter((text) => text !== '')) {
    const [name = '', outcome = ''] = line.split('\t');
    outcomes.set(name, outcome);
  }
  expect(outcomes.size).toBeGreaterThan(0);
  return outcomes;
}

/** The attempts that did something, or broke in the attack itself. */
export function notRefused(outcomes: ReadonlyMap<string, string>): readonly string[] {
  return [...outcomes].filter(([, outcome]) => /^(DONE|FAULT)/.test(outcome)).map((pair) => pair.join(': '));
}

/** Both sandboxes and the platform go on: commands run, files are kept, and what is told of them is true. */
export async function expectUnharmed(...sandboxes: readonly Sandbox[]): Promise<void> {
  await Promise.all(
    sandboxes.map(async (sandbox) => {
      const result = await sandbox.exec(['python3', '-c', 'print(6 * 7); raise SystemExit(3)'], { timeoutMs: 20_000 });
      expect([result.stdout, result.exitCode]).toEqual(['42\n', 3]);
      await sandbox.files.write('/root/.unharmed', 'still here');
      expect(await sandbox.files.readText('/root/.unharmed')).toBe('still here');
      expect((await sandbox.info()).state).toBe('running');
    }),
  );
}
