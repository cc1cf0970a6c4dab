import { chown, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { hashSecret } from '@dsec/iam';
import { Process, SystemClock } from '@dsec/kit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ScriptedEdge } from './apiserver.fixture.ts';

const USER = 64_899;
const clock = new SystemClock();
let directory: string;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'apiserver-main-'));
  await mkdir(join(directory, 'state'));
  await chown(directory, USER, USER);
  await chown(join(directory, 'state'), USER, USER);
});
afterEach(() => rm(directory, { recursive: true }));

async function start(changes: object = {}): Promise<Process> {
  const at = (name: string): string => join(directory, name);
  for (const name of ['id.key', 'link.key']) {
    await writeFile(at(name), Buffer.alloc(32, 1), { mode: 0o600 });
    await chown(at(name), USER, USER);
  }
  const config = {
    port: 0,
    edgeSocket: at('edge.sock'),
    store: at('state/store.db'),
    auditDirectory: at('state/audit'),
    idKeyFile: at('id.key'),
    linkKeyFile: at('link.key'),
    adminKeySha256: hashSecret('dsec_test'),
    uid: USER,
    gid: USER,
    ...changes,
  };
  await writeFile(at('config.json'), JSON.stringify(config), { mode: 0o644 });
  const main = new URL('./main.ts', import.meta.url).pathname;
  const argv = [
    process.execPath,
    '--disable-warning=ExperimentalWarning',
    main,
    '--config',
    at('config.json'),
  ] as const;
  return await Process.start(argv, { clock, stdout: 'pipe' });
}

async function portOf(daemon: Process): Promise<number> {
  for await (const chunk of daemon.stdout as AsyncIterable<Buffer>) {
    return (JSON.parse(chunk.toString()) as { listening: { port: number } }).listening.port;
  }
  throw new Error(`it ended: ${daemon.stderrTail}`);
}

test('serves as an ordinary user and ends when its stdin closes', async () => {
  await using edge = new ScriptedEdge(join(directory, 'edge.sock'));
  await edge.start();
  await chown(join(directory, 'edge.sock'), USER, USER);
  await using daemon = await start();
  const port = await portOf(daemon);
  const health = async (): Promise<number> => (await fetch(`http://127.0.0.1:${port}/v1/health`)).status;
  await expect.poll(health, { timeout: 5000 }).toBe(200);
  const status = await readFile(`/proc/${daemon.pid}/status`, 'utf8');
  expect(status).toMatch(new RegExp(`^Uid:\\t${USER}\\t${USER}\\t${USER}\\t${USER}$`, 'm'));
  expect(status).toMatch(/^CapEff:\t0+$/m);
  const response = await fetch(`http://127.0.0.1:${port}/v1/keys`, {
    method: 'POST',
    headers: { authorization: 'Bearer dsec_test', 'content-type': 'application/json' },
    body: '{"name":"a"}',
  });
  expect(response.status).toBe(201);
  const { key } = (await response.json()) as { key: string };
  daemon.stdin.end();
  expect(await daemon.exited).toEqual({ exitCode: 0, signal: undefined });
  await using again = await start();
  const answer = await fetch(`http://127.0.0.1:${await portOf(again)}/v1/environments`, {
    headers: { authorization: `Bearer ${key}` },
  });
  expect(answer.status).toBe(200);
});

test.each([
  ['root', { uid: 0 }, /uid/],
  ['an unknown field', { prot: 1 }, /prot/],
  ['a missing key file', { idKeyFile: '/no/such/file' }, /idKeyFile/],
])('does not start with %s', async (_name, changes, message) => {
  await using daemon = await start(changes);
  expect(await daemon.exited).toMatchObject({ exitCode: 1 });
  await daemon.drained();
  expect(daemon.stderrTail).toMatch(message);
});
