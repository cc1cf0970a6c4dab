import { lacking, TestServer, waitFor } from '@dsec/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DSecClient, PlatformError, type Sandbox, type WatchEvent } from '../src/index.ts';

const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup');

/** Answers every request with its method, path and body, on 127.0.0.1. */
const ECHO_SERVER = `use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8000, Listen => 16, ReuseAddr => 1) or die;
while (my $client = $server->accept) {
  my $length = 0;
  my $first = <$client>;
  while (my $line = <$client>) { $length = $1 if $line =~ /^content-length: (\\d+)/i; last if $line =~ /^\\r?\\n$/; }
  read($client, my $body, $length) if $length;
  my ($method, $path) = split / /, $first;
  my $answer = "$method $path " . ($body // "");
  print $client "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($answer) . "\\r\\nConnection: close\\r\\n\\r\\n$answer";
  close $client;
}
`;

describe.skipIf(lack !== undefined)(`a sandbox through the SDK${lack === undefined ? '' : ` (${lack})`}`, () => {
  let server: TestServer | undefined;
  let shared: Sandbox | undefined;

  beforeAll(async () => {
    server = await TestServer.start({ volumeSize: '16G' });
    shared = await server.client.runContainer({ containerImage: 'debian', memoryLimitMb: 256, diskLimitMb: 512 });
  }, 900_000);
  afterAll(() => server?.[Symbol.asyncDispose](), 120_000);
  const sandbox = (): Sandbox => shared ?? expect.unreachable();

  test('a port that listens on 127.0.0.1 answers by the key, by its own token, and by no other', async () => {
    await sandbox().files.write('/root/echo.pl', ECHO_SERVER);
    const { execId } = await sandbox().execDetached(['perl', '/root/echo.pl']);
    const { ports } = sandbox();
    const clock = server?.clock ?? expect.unreachable();
    await waitFor(clock, 'the service listens', async () => (await ports.fetch(8000)).status === 200);
    const answer = await ports.fetch(8000, '/a/b?c=d', { method: 'POST', body: 'ping' });
    expect(await answer.text()).toBe('POST /a/b?c=d ping');
    const { token } = await ports.token(8000, { expiresInSeconds: 60 });
    const byToken = (port: number): Promise<Response> =>
      fetch(ports.url(port), { headers: { 'x-dsec-port-token': token } });
    expect((await byToken(8000)).status).toBe(200);
    expect((await byToken(8001)).status).toBeGreaterThanOrEqual(401);
    expect((await fetch(ports.url(8000))).status).toBe(401);
    expect((await ports.fetch(8001)).status).toBe(502);
    expect(() => ports.url(0)).toThrow(PlatformError);
    await sandbox().attach(execId).kill();
  });

  test('a session keeps its shell, several stand side by side, and closing one ends what it started', async () => {
    await using first = await sandbox().session({ cwd: '/tmp', env: { NAME: 'first' } });
    await using second = await sandbox().session({ env: { NAME: 'second' } });
    await first.run('cd /usr; greet() { echo "$NAME in $PWD"; }; COUNT=1');
    const [one, two] = await Promise.all([
      first.run('greet; echo $((COUNT + 1))'),
      second.run('greet 2>/dev/null || echo "$NAME has no greet"'),
    ]);
    expect(one.stdout).toBe('first in /usr\n2\n');
    expect(two.stdout).toBe('second has no greet\n');
    expect((await first.run('false')).exitCode).toBe(1);
    await first.run('sleep 4711 &');
    await first.close();
    await first.close();
    expect((await sandbox().runShell('cat /proc/[0-9]*/cmdline | tr "\\\\0" " "')).stdout).not.toContain('sleep 4711');
    await expect(first.run('true')).rejects.toMatchObject({ code: 'session_not_found' });
    expect((await sandbox().sessions()).map(({ sessionId }) => sessionId)).toEqual([second.sessionId]);
  });

  test('a script that ends the shell of its session has that as its result, and the session is gone', async () => {
    const session = await sandbox().session();
    expect((await session.run('exit 3')).exitCode).toBe(3);
    await expect(session.run('true')).rejects.toMatchObject({
      code: expect.stringMatching(/^session_(not_found|lost)$/) as string,
    });
  });

  test('a watch tells what happens from the moment that it resolves', async () => {
    const { files } = sandbox();
    await files.mkdir('/root/watched/deep');
    await using watch = await files.watch('/root/watched', { recursive: true });
    const events: WatchEvent[] = [];
    const seen = (async () => {
      for await (const event of watch) {
        events.push(event);
        if (event.kind === 'remove' && event.path.endsWith('two')) return;
      }
    })();
    await files.write('/root/watched/one', '1');
    await files.write('/root/watched/deep/two', '2');
    await files.remove('/root/watched/deep/two');
    await seen;
    expect(events.some((event) => event.kind !== 'overflow' && event.path.endsWith('one'))).toBe(true);
  });

  test('much input and much output pass byte for byte, in both directions at once', async () => {
    const size = 16 * 1024 * 1024;
    const piece = Uint8Array.from({ length: 65_536 }, (_, index) => (index * 7) % 251);
    const input = (async function* () {
      for (let at = 0; at < size; at += piece.length) yield piece;
    })();
    const exec = sandbox().exec(['sh', '-c', 'tee /dev/stderr | sha256sum | cut -c1-64'], {
      input,
      maxOutputBytes: 1024,
    });
    let received = 0;
    let digest = '';
    for await (const event of exec) {
      if (event.kind === 'stderr') received += event.data.length;
      else if (event.kind === 'stdout') digest += Buffer.from(event.data).toString();
      else expect.unreachable();
    }
    expect(received).toBe(size);
    expect(digest).toMatch(/^[0-9a-f]{64}\n$/);
    expect((await exec).exitCode).toBe(0);
  }, 60_000);

  test('what it uses and what runs in it can be seen', async () => {
    const exec = sandbox().exec(['sleep', '60']);
    const { pid } = await exec.started();
    const processes = await sandbox().processes();
    expect(processes.find((process) => process.pid === pid)?.command).toContain('sleep');
    expect((await sandbox().usage()).pids).toBeGreaterThanOrEqual(2);
    expect((await sandbox().execs()).some(({ state }) => state === 'running')).toBe(true);
    expect(await exec.kill('SIGTERM')).toBe(true);
    expect(await exec).toMatchObject({ signal: 15, exitCode: 143 });
    expect(await exec.kill()).toBe(false);
  });

  test('the SDK over fetch does the same', async () => {
    const { endpoint, adminKey } = server ?? expect.unreachable();
    await using client = new DSecClient({ endpoint, apiKey: adminKey, fetch: (url, init) => fetch(url, init) });
    const same = await client.getSandbox(sandbox().sandboxId);
    const result = await same.exec(['sh', '-c', 'cat; echo err >&2; exit 5'], { input: 'through fetch' });
    expect([result.exitCode, result.stdout, result.stderr]).toEqual([5, 'through fetch', 'err\n']);
    await same.files.write('/root/by-fetch', new Blob(['streamed']).stream());
    expect(await same.files.readText('/root/by-fetch')).toBe('streamed');
  });
});
