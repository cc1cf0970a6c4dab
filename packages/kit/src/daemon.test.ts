import { Type } from 'typebox';
import { expect, test } from 'vitest';
import { SystemClock } from './clock.ts';
import { loadConfig } from './config.ts';
import { daemonConfig } from './daemon.ts';
import { Process, run } from './spawn.ts';

const clock = new SystemClock();
const url = (file: string): string => JSON.stringify(new URL(file, import.meta.url).href);
const argvOf = (script: string) =>
  [
    process.execPath,
    '--disable-warning=ExperimentalWarning',
    '--input-type=module',
    '-e',
    `const { askedToEnd, exitOnFault } = await import(${url('./daemon.ts')});
     const { createLogger } = await import(${url('./logger.ts')});
     ${script}`,
  ] as const;

test.each<[string, (daemon: Process) => void]>([
  ['stdin', (daemon) => daemon.stdin.end()],
  ['SIGTERM', (daemon) => daemon.signal('SIGTERM')],
  ['SIGINT', (daemon) => daemon.signal('SIGINT')],
])('a process is asked to end by %s', async (reason, ask) => {
  const script = `
    const asked = askedToEnd();
    process.stdout.write('ready');
    process.stdout.write(await asked, () => process.exit(0));`;
  await using daemon = await Process.start(argvOf(script), { clock, stdin: 'pipe', stdout: 'pipe' });
  const said = daemon.stdout[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  expect(String((await said.next()).value)).toBe('ready');
  ask(daemon);
  expect(String((await said.next()).value)).toBe(reason);
  expect((await daemon.exited).exitCode).toBe(0);
});

test.each(['setImmediate(() => { throw new Error("broken"); });', 'void Promise.reject(new Error("broken"));'])(
  'a fault that nobody handles is logged and ends the process: %s',
  async (fault) => {
    const script = `exitOnFault(createLogger({ component: 'test' }), 'test.fault'); ${fault} setInterval(() => {}, 60_000);`;
    await expect(run(argvOf(script), { clock })).rejects.toMatchObject({
      details: { exitCode: 1, stderr: expect.stringMatching(/"test\.fault".*broken/s) as string },
    });
  },
);

test('a configuration has a user that is never root, and a level', () => {
  const load = (env: Record<string, string>) =>
    loadConfig(Type.Object(daemonConfig('test')), { envPrefix: 'DSEC_TEST_', env });
  expect(load({ DSEC_TEST_UID: '1', DSEC_TEST_GID: '2' })).toEqual({ uid: 1, gid: 2, logLevel: 'info' });
  for (const wrong of [{ DSEC_TEST_UID: '0' }, { DSEC_TEST_GID: '4294967295' }, { DSEC_TEST_LOG_LEVEL: 'loud' }])
    expect(() => load({ DSEC_TEST_UID: '1', DSEC_TEST_GID: '2', ...wrong })).toThrow('configuration');
});
