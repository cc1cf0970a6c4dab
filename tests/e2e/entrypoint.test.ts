/** What an image says is to run: whether it does, with what, and what is seen of it. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

const server = useServer();

let directory = '';
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-entrypoint-'));
});
afterAll(() => rm(directory, { recursive: true }));

/** Builds an environment whose program is what the lines say. */
async function built(name: string, lines: readonly string[], ...options: string[]): Promise<string> {
  const file = join(directory, `${name}.Dockerfile`);
  await writeFile(file, ['FROM e2e', ...lines].join('\n'));
  const { exitCode, stderrTail } = await server().cli(['env', 'build', file, '--name', name, ...options]);
  expect(exitCode, stderrTail).toBe(0);
  return name;
}

const create = (name: string, env: Readonly<Record<string, string>> = {}) =>
  server().client.runContainer({ containerImage: name, memoryLimitMb: 128, env });

/** It says what it finds, ignores the signal that asks it to end, and serves. */
const SERVING = [
  'USER user',
  'WORKDIR /home/user',
  'ENV GREETING=hello',
  `ENTRYPOINT ["/bin/sh", "-c", "trap '' TERM; echo \\"$GREETING $TOKEN $PWD $(id -un) $0 $1\\" | tee said; exec python3 -m http.server 8000", "from"]`,
  'CMD ["cmd"]',
];

test('runs from the beginning when the environment says so, with the variables of the create', async () => {
  const name = await built('serving', SERVING, '--entrypoint', 'run');
  expect(await server().client.environments.get(name)).toMatchObject({ entrypoint: 'run' });
  await using sandbox = await create(name, { TOKEN: 'secret' });
  await waitFor('the server', async () => {
    const probe = await sandbox.runShell(
      'python3 -c "import urllib.request; print(urllib.request.urlopen(\'http://127.0.0.1:8000/said\').read().decode())"',
    );
    return probe.stdout.trim() === 'hello secret /home/user user from cmd';
  });
  const status = await sandbox.execStatus('entrypoint');
  expect(status).toMatchObject({ state: 'running' });
  expect((await sandbox.info()).idleEndsAtMs).toBeNull();
  const before = clock.monotonicMs();
  await sandbox.stop();
  expect(clock.monotonicMs() - before).toBeLessThan(10_000);
});

test('tells its output and exit code like any command, and leaves the sandbox alive', async () => {
  const name = await built('failing', ['CMD echo going; exit 3'], '--entrypoint', 'run');
  await using sandbox = await create(name);
  const result = await sandbox.attach('entrypoint');
  expect([result.exitCode, result.stdout]).toEqual([3, 'going\n']);
  expect((await sandbox.runShell('echo alive')).stdout).toBe('alive\n');
  await waitFor('an idle sandbox', async () => (await sandbox.info()).idleEndsAtMs !== null);
});

test('does not run unless it is told to', async () => {
  const name = await built('ignored', SERVING);
  expect(await server().client.environments.get(name)).toMatchObject({ entrypoint: 'ignore' });
  await using sandbox = await create(name);
  expect(await failureOf(sandbox.execStatus('entrypoint'))).toMatchObject({ code: 'exec_not_found' });
  expect((await sandbox.runShell('ls /home/user/said', { user: 'root' })).exitCode).not.toBe(0);
});

test('fails the create when it cannot begin, by no fault of the platform', async () => {
  const name = await built('absent', ['ENTRYPOINT ["/none"]'], '--entrypoint', 'run');
  const error = await failureOf(create(name));
  expect(error).toMatchObject({ code: 'command_not_found', infrastructure: false, details: { program: '/none' } });
  await server().expectNoLeftovers();
});

test('is refused of an image that says nothing', async () => {
  const { image } = await server().client.environments.get('e2e');
  const error = await failureOf(server().client.environments.put('none', image, { entrypoint: 'run' }));
  expect(error).toMatchObject({ code: 'invalid_argument', details: { field: 'entrypoint' } });
});
