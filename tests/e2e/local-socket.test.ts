/** The unix socket of the API: the same server, without TCP. */
import http from 'node:http';
import { copyFile, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';

const server = useServer();
const socketPath = (): string => join(server().data, 'run/api/api.sock');
/** Larger than what the kernel buffers. */
const FILE_BYTES = 8 * 1024 * 1024;
/** Nobody listens there: what is answered has come by the socket. */
const NOWHERE = 'http://127.0.0.1:1';

test('serves all that the port does, and links that name the port', async () => {
  const client = server().connect({ endpoint: NOWHERE, socketPath: socketPath() });
  await client.open();
  await using sandbox = await client.runContainer({ containerImage: server().environment, memoryLimitMb: 128 });
  const script = sandbox.runShell('echo out; echo err >&2; exit 3');
  let streamed = '';
  for await (const event of script) if (event.kind === 'stdout') streamed += Buffer.from(event.data).toString();
  expect(streamed).toBe('out\n');
  expect(await script).toMatchObject({ exitCode: 3, stderr: 'err\n' });

  const content = new Uint8Array(FILE_BYTES).map((_, index) => index % 251);
  await sandbox.files.write('/root/file', content);
  expect(Buffer.from(await sandbox.files.read('/root/file')).equals(content)).toBe(true);
  const named = await server().connect({ socketPath: socketPath() }).getSandbox(sandbox.sandboxId);
  const link = await named.files.signedUrl('/root/file');
  expect(link.url.startsWith(server().endpoint)).toBe(true);
  expect(Buffer.from(await (await fetch(link.url)).arrayBuffer()).equals(content)).toBe(true);

  await using pty = await sandbox.pty({ argv: ['sh', '-c', 'echo by pty; sleep 1000'] });
  let shown = '';
  for await (const data of pty) {
    shown += Buffer.from(data).toString();
    if (shown.includes('by pty')) break;
  }
  expect(await Promise.all(Array.from({ length: 100 }, async () => (await sandbox.exec(['true'])).exitCode))).toEqual(
    Array.from({ length: 100 }, () => 0),
  );
});

test('asks for a key like the port, though everybody on the machine may connect', async () => {
  expect((await stat(socketPath())).mode & 0o777).toBe(0o666);
  const stranger = server().connect({ socketPath: socketPath(), apiKey: 'dsec_wrong' });
  expect((await failureOf(stranger.open())).code).toBe('unauthenticated');
  const status = await new Promise<number | undefined>((resolve, reject) => {
    http
      .get({ socketPath: socketPath(), path: '/v1/sandboxes' }, (response) => {
        response.resume();
        resolve(response.statusCode);
      })
      .once('error', reject);
  });
  expect(status).toBe(401);
});

test('is there again after the apiserver was killed, and a path where nobody listens is told as such', async () => {
  const client = server().connect({ socketPath: socketPath() });
  await client.open();
  await server().kill('apiserver');
  await client.open();
  const nowhere = server().connect({ socketPath: join(server().data, 'run/api/none.sock'), retry: { budgetMs: 0 } });
  expect((await failureOf(nowhere.open())).code).toBe('server_unreachable');
});

test('is what `dsec` goes by on the machine of the server', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-socket-'));
  try {
    for (const name of ['run', 'keys']) await mkdir(join(directory, name));
    await copyFile(join(server().data, 'keys/admin.key'), join(directory, 'keys/admin.key'));
    const told = JSON.parse(await readFile(join(server().data, 'run/server.json'), 'utf8')) as object;
    await writeFile(join(directory, 'run/server.json'), JSON.stringify({ ...told, endpoint: NOWHERE }));
    const listed = await server().cli(['env', 'ls', '--data', directory]);
    expect(listed.exitCode, listed.stderrTail).toBe(0);
    expect(listed.stdout.toString()).toContain(server().environment);
  } finally {
    await rm(directory, { recursive: true });
  }
});
