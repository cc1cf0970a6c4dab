/** What the verbs of `dsec` do that only a real server and a real terminal show. */
import { Process, run } from '@dsec/kit';
import { chmod, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { useServer } from './started-server.ts';
import { clock } from './wait-for.ts';

const server = useServer();

const DSEC = join(import.meta.dirname, '../../bin/dsec');
const PATH = '/usr/sbin:/usr/bin:/sbin:/bin';

test('shell has the size of the terminal that it runs in, its user and directory, and ends with the code of what ran', async () => {
  await using sandbox = await server().sandbox({ env: { FROM: 'create' } });
  const script = `stty rows 33 cols 99; exec ${DSEC} shell -u user -w /tmp ${sandbox.sandboxId} -- sh -c 'stty size; id -un; pwd; echo $FROM; exit 3'`;
  // Its input stays open: at the end of its own, `script` types the end of a file, which the terminal in the sandbox shows.
  await using terminal = await Process.start(['script', '-qec', script, '/dev/null'], {
    clock,
    env: { PATH, DSEC_DATA: server().data, SHELL: '/bin/sh', TERM: 'xterm' },
    stdin: 'pipe',
    stdout: 'pipe',
  });
  const shown = await text(terminal.stdout);
  expect(await terminal.exited).toEqual({ exitCode: 3, signal: undefined });
  // Both terminals, that of the sandbox and the one around, end lines in their way; and nothing comes after the last of them.
  expect(shown.replaceAll('\r', '')).toMatch(/33 99\nuser\n\/tmp\ncreate\n$/);
});

test('shell without a terminal says what to use', async () => {
  await using sandbox = await server().sandbox();
  const { exitCode, stderrTail } = await server().cli(['shell', sandbox.sandboxId]);
  expect(exitCode).not.toBe(0);
  expect(stderrTail).toContain('dsec exec -i');
});

test('exec, run and logs pass bytes on as they are', async () => {
  await using sandbox = await server().sandbox();
  const print = ['sh', '-c', String.raw`printf '\377\376\000ok\303'`];
  const bytes = Buffer.of(0xff, 0xfe, 0, 0x6f, 0x6b, 0xc3);
  expect((await server().cli(['exec', sandbox.sandboxId, '--', ...print])).stdout).toEqual(bytes);
  expect((await server().cli(['run', server().environment, '-m', '64', '--', ...print])).stdout).toEqual(bytes);
  const { execId } = await sandbox.execDetached(print);
  expect((await server().cli(['logs', '-f', sandbox.sandboxId, execId])).stdout).toEqual(bytes);
});

test('doctor says of each requirement whether it is there, why it matters, and how to get what is missing', async () => {
  const { stdout, exitCode } = await server().cli(['doctor', '--json']);
  const findings = JSON.parse(stdout.toString()) as readonly {
    readonly name: string;
    readonly isPresent: boolean;
    readonly isNeeded: boolean;
    readonly why: string;
    readonly fix: string;
  }[];
  expect(findings.length).toBeGreaterThan(10);
  for (const { name, why, fix } of findings)
    for (const text of [name, why, fix]) expect(text.length).toBeGreaterThan(3);
  expect(exitCode).toBe(findings.some(({ isPresent, isNeeded }) => isNeeded && !isPresent) ? 1 : 0);
  const shown = (await server().cli(['doctor'])).stdout.toString();
  for (const { name } of findings) expect(shown).toContain(name);
});

test('quickstart does the main job on real input, prints each step, and leaves nothing', {
  timeout: 600_000,
}, async () => {
  const directory = await mkdtemp(join(tmpdir(), 'dsec-qs-'));
  // Daemons that are not root pass through it.
  await chmod(directory, 0o711);
  try {
    const result = await run([DSEC, 'quickstart'], {
      clock,
      env: { PATH, TMPDIR: directory },
      timeoutMs: 590_000,
    });
    const said = result.stdout.toString() + result.stderrTail;
    for (const step of [/server/, /environment/, /sandbox/, /found \d+ files in \/usr/, /nothing is left/])
      expect(said).toMatch(step);
    expect(await readdir(directory)).toEqual([]);
    expect(await readFile('/proc/self/mountinfo', 'utf8')).not.toContain(directory);
  } finally {
    await rm(directory, { recursive: true });
  }
});
