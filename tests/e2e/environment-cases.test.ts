/** Public failure cases of environments, through a build. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';

const server = useServer();

let directory = '';
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-cases-'));
});
afterAll(() => rm(directory, { recursive: true }));

/** Builds a Dockerfile without a context. */
async function build(name: string, lines: readonly string[]): Promise<void> {
  const context = await mkdtemp(join(directory, 'context-'));
  await writeFile(join(context, 'Dockerfile'), lines.join('\n'));
  expect(await server().cli(['env', 'build', context, '--name', name])).toMatchObject({ exitCode: 0 });
}

const answerOf = async (name: string): Promise<string> => {
  await using sandbox = await server().client.runContainer({ containerImage: name, memoryLimitMb: 64 });
  return (await sandbox.exec(['cat', '/answer'])).stdout;
};

test('I01: ENV of an image is there in an exec, in a shell and in a session; a login shell has the PATH of its profile', async () => {
  await build('env-of-image', [
    'FROM e2e',
    'ENV PATH=/opt/x:$PATH PYTHONPATH=/app',
    `RUN mkdir /opt/x && printf '#!/bin/sh\\necho own tool' > /opt/x/own-tool && chmod 755 /opt/x/own-tool`,
  ]);
  await using sandbox = await server().client.runContainer({ containerImage: 'env-of-image', memoryLimitMb: 64 });
  const print = 'own-tool; echo $PYTHONPATH; echo $PATH';
  const outputs = [
    await sandbox.exec(['bash', '-c', print]),
    await sandbox.runShell(print),
    await (await sandbox.session()).run(print),
  ];
  expect((await sandbox.exec(['own-tool'])).stdout).toBe('own tool\n');
  for (const { stdout } of outputs) expect(stdout).toMatch(/^own tool\n\/app\n\/opt\/x:\/.*\n$/);
  // /etc/profile of the distribution sets PATH anew, and nothing else: as it is said of `login`.
  const logins = [await sandbox.exec(['bash', '-lc', print]), await sandbox.runShell(print, { login: true })];
  for (const { stdout } of logins) expect(stdout).toMatch(/^\/app\n\/usr\/local\/sbin:.*\n$/);
});

test('I12: a name with dots, slashes, capitals and a tag is found, and a rebuild switches it at once and whole', async () => {
  const name = 'Org.x/task-1__0A1b:v1.2';
  expect((await failureOf(server().client.environments.get(name))).code).toBe('environment_not_found');
  await build(name, ['FROM e2e', 'RUN echo first > /answer']);
  expect((await server().client.environments.get(name)).name).toBe(name);
  await using older = await server().client.runContainer({ containerImage: name, memoryLimitMb: 64 });
  await build(name, ['FROM e2e', 'RUN echo second > /answer']);
  expect(await answerOf(name)).toBe('second\n');
  expect((await older.exec(['cat', '/answer'])).stdout).toBe('first\n');

  const words = ['third', 'fourth', 'fifth'];
  const builds = words.map((word) => build(name, ['FROM e2e', `RUN echo ${word} > /answer`]));
  const seen: string[] = [];
  let areOver = false;
  const looking = (async () => {
    while (!areOver) seen.push(await answerOf(name));
  })();
  await Promise.all(builds);
  areOver = true;
  await looking;
  expect(words.map((word) => `${word}\n`)).toContain(await answerOf(name));
  for (const answer of seen) expect(['second\n', ...words.map((word) => `${word}\n`)]).toContain(answer);
  const names = (await server().client.environments.list({ prefix: 'Org.x/' }).toArray()).map((found) => found.name);
  expect(names).toEqual([name]);
}, 180_000);
