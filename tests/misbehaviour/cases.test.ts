/** Public failure cases through a policy: the strictest profile, and a network that opens one name. Each is proved by itself in tests/e2e; here they hold together. */
import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { request } from 'node:http';
import { networkInterfaces } from 'node:os';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { failureOf } from '../e2e/failure-of.ts';
import { startPortService } from '../e2e/port-service.ts';
import { rawRequest } from '../e2e/raw-http.ts';
import { refusal } from '../e2e/refusal.ts';
import { useServer } from '../e2e/started-server.ts';
import { waitFor } from '../e2e/wait-for.ts';
import { expectUnharmed } from './attack.ts';

const server = useServer({ network: true }, ['egress']);

const PORT = 8000;
/** TEST-NET-1 (RFC 5737): it is nobody's. */
const NOBODY = '192.0.2.77';
const policy = {
  profile: 'strict',
  network: { rules: [{ action: 'allow', to: 'good.test' }], ipLiterals: false },
  phases: { solve: {} },
} as const;
const LIMITS = { memoryLimitMb: 128, pidsLimit: 64, diskLimitMb: 64, cpuCoresLimit: 1 } as const;

let sandbox: Sandbox;
let neighbour: Sandbox;
beforeAll(async () => {
  [sandbox, neighbour] = await Promise.all([
    server().sandbox({ ...LIMITS, policy }),
    server().sandbox({ policy: { network: { default: 'allow' } } }),
  ]);
  await startPortService(sandbox, PORT);
});
afterAll(async () => {
  await expectUnharmed(sandbox, neighbour);
  await Promise.all([sandbox.stop(), neighbour.stop()]);
});

const bearer = (): Readonly<Record<string, string>> => ({ authorization: `Bearer ${server().apiKey}` });

/** The status that an upgrade to a WebSocket is answered with. */
function upgraded(port: number, path: string, headers: Readonly<Record<string, string>>): Promise<number> {
  const key = randomBytes(16).toString('base64');
  const upgrade = {
    connection: 'Upgrade',
    upgrade: 'websocket',
    'sec-websocket-version': '13',
    'sec-websocket-key': key,
  };
  return new Promise((resolve, reject) => {
    const asked = request(`${sandbox.ports.url(port)}${path}`, { headers: { ...headers, ...upgrade } });
    asked.on('upgrade', ({ statusCode = 0 }, socket) => {
      socket.destroy();
      resolve(statusCode);
    });
    asked.on('response', (answer) => {
      answer.resume();
      resolve(answer.statusCode ?? 0);
    });
    asked.on('error', reject);
    asked.end();
  });
}

test('N11 an upgrade through the port of a sandbox is taken, by a token in the header and in the query, under the Host of a plain request', async () => {
  const { token } = await sandbox.ports.token(PORT);
  expect(await upgraded(PORT, 'ws', { 'x-dsec-port-token': token })).toBe(101);
  expect(await upgraded(PORT, `ws?dsec_token=${token}`, {})).toBe(101);
  expect(await upgraded(PORT, 'ws', {})).toBe(401);
  const noting = sandbox.exec(['python3', '-c', NOTING]);
  await waitFor('it to listen', async () => (await sandbox.ports.fetch(8001)).ok);
  expect(await upgraded(8001, '', bearer())).toBe(200);
  const hosts = JSON.parse(await sandbox.files.readText('/tmp/hosts')) as readonly string[];
  expect(hosts.length).toBeGreaterThan(1);
  expect(new Set(hosts)).toEqual(new Set([new URL(server().endpoint).host]));
  await noting.kill();
  await noting;
});

/** Notes the Host of each request, and answers 200. */
const NOTING = `
import http.server, json
hosts = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        hosts.append(self.headers['Host']); json.dump(hosts, open('/tmp/hosts', 'w'))
        self.send_response(200); self.send_header('Content-Length', '0'); self.end_headers()
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(('127.0.0.1', 8001), Handler).serve_forever()`;

test('N12, N13 a service on 127.0.0.1 is reached, and what it sends comes when it is sent', async () => {
  await sandbox.exec(['rm', '-f', '/tmp/go']);
  const events = (await sandbox.ports.fetch(PORT, '/events')).body?.getReader();
  expect(Buffer.from((await events?.read())?.value ?? []).toString()).toBe('data: one\n\n');
  await sandbox.files.write('/tmp/go', '');
  expect(Buffer.from((await events?.read())?.value ?? []).toString()).toBe('data: two\n\n');
  expect((await events?.read())?.done).toBe(true);
  const answer = await sandbox.ports.fetch(PORT, '/x', { method: 'POST', body: 'ping' });
  expect(await answer.text()).toBe(`POST /x ${new URL(server().endpoint).host} - ping`);
  expect(await refusal(sandbox.ports.fetch(8002))).toBe('port_closed');
});

test('N15 the token of a port opens that port of that sandbox, and nothing else', async () => {
  const { token } = await sandbox.ports.token(PORT);
  const headers = { 'x-dsec-port-token': token };
  expect((await fetch(sandbox.ports.url(PORT), { headers })).status).toBe(200);
  const elsewhere = [
    ...[8001, 22, 1, 49_983].map((port) => sandbox.ports.url(port)),
    neighbour.ports.url(PORT),
    `${server().endpoint}/v1/sandboxes`,
    `${server().endpoint}/v1/sandboxes/${sandbox.sandboxId}/policy`,
  ];
  for (const url of elsewhere)
    expect([url, [401, 403].includes((await fetch(url, { headers })).status)]).toEqual([url, true]);
});

test('A02 who runs commands in a sandbox is not spoken to from inside, from a neighbour, from the host or without a key', async () => {
  for (const user of ['root', 'user']) {
    const { stdout } = await sandbox.exec(
      ['cat', '/proc/net/tcp', '/proc/net/tcp6', '/proc/net/udp', '/proc/net/unix'],
      { user },
    );
    const open = stdout
      .split('\n')
      .filter((line) => / 0A /.test(line))
      .map((line) => Number.parseInt(line.split(/\s+/)[2]?.split(':')[1] ?? '', 16));
    expect(open).toEqual([PORT]);
    expect(stdout).not.toMatch(/[/@]\S*(aether|dsec|sock)/);
  }
  // A service that listens on every address is reached by its port through the platform, and by nobody else.
  const wide = sandbox.exec(['python3', '-m', 'http.server', '9000', '--bind', '0.0.0.0'], { cwd: '/etc' });
  await waitFor('the service', async () => (await sandbox.ports.fetch(9000)).ok);
  const { stdout } = await sandbox.exec(['ip', '-4', '-o', 'address', 'show', 'dev', 'eth0']);
  const address = /inet ([0-9.]+)/.exec(stdout)?.[1] ?? '';
  expect(address).toMatch(/^198\.1[89]\./);
  expect(await reaches(address, 9000)).toBe(false);
  const fromNeighbour = await neighbour.exec([
    'python3',
    '-c',
    `import socket; print(socket.socket().connect_ex(('${address}', 9000)) == 0)`,
  ]);
  expect(fromNeighbour.stdout).toBe('False\n');
  await wide.kill();
  await wide;
  const port = Number(new URL(server().endpoint).port);
  const elsewhere = Object.values(networkInterfaces())
    .flatMap((all) => all ?? [])
    .filter(({ internal, family }) => !internal && family === 'IPv4');
  for (const { address: own } of elsewhere) expect([own, await reaches(own, port)]).toEqual([own, false]);
  const paths = [
    '',
    '/execs',
    '/processes',
    '/files?path=/etc/passwd',
    '/files/tree?path=/',
    '/policy',
    '/usage',
    '/sessions',
  ];
  for (const path of paths) {
    for (const authorization of ['', 'Bearer x', `Bearer ${server().apiKey.slice(0, -1)}`, 'Basic cm9vdDpyb290']) {
      const answer = await rawRequest(server(), `/sandboxes/${sandbox.sandboxId}${path}`, {
        headers: { authorization },
      });
      expect([path, authorization, answer.status]).toEqual([path, authorization, 401]);
    }
  }
});

const reaches = (host: string, port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect({ host, port, timeout: 500 });
    const tell = (isReached: boolean) => () => {
      socket.destroy();
      resolve(isReached);
    };
    socket.once('connect', tell(true)).once('error', tell(false)).once('timeout', tell(false));
  });

test('F04, F14 a link leads inside, and a signed link to its one file', async () => {
  await sandbox.runShell(
    'mkdir -p /w && ln -sf /etc/hostname /w/in && ln -sfn ../../../../../../../../var/lib /w/up && echo kept > /w/f',
  );
  expect(await sandbox.files.readText('/w/in')).toBe((await sandbox.exec(['cat', '/etc/hostname'])).stdout);
  const inside = (await sandbox.exec(['ls', '/var/lib'])).stdout.trim().split('\n');
  expect((await sandbox.files.list('/w/up')).entries.map(({ name }) => name).toSorted()).toEqual(inside.toSorted());
  const { url } = await sandbox.files.signedUrl('/w/f', { expiresInSeconds: 60 });
  expect(await (await fetch(url)).text()).toBe('kept\n');
  for (const altered of [
    url.replace(/f(?=&|$)/, 'in'),
    url.replace(sandbox.sandboxId, neighbour.sandboxId),
    `${url}&user=user`,
    url.slice(0, -1),
  ]) {
    expect([400, 401, 403]).toContain((await fetch(altered)).status);
  }
});

test('X29, X30, X32, I10 what a sandbox has is what it was given, and using it up is told as that', {
  timeout: 90_000,
}, async () => {
  await using full = await server().sandbox({ ...LIMITS, policy });
  const told = await full.runShell(
    "nproc; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; python3 -c 'import os; print(len(os.sched_getaffinity(0)))'",
  );
  const [cores, memory, affinity] = told.stdout.trim().split('\n').map(Number);
  expect([cores, affinity]).toEqual([1, 1]);
  expect((memory ?? 0) / 1024 ** 2).toBeLessThan(LIMITS.memoryLimitMb + 8);
  const hog = await full.exec(['python3', '-c', 'x = bytearray(400 << 20)']);
  expect([hog.isOomKilled, hog.exitCode]).toEqual([true, 137]);
  const filled = await full.runShell('head -c 200M /dev/zero > /root/fill; echo $?; sync; rm /root/fill');
  expect([filled.stdout, filled.stderr]).toEqual(['1\n', expect.stringMatching(/quota|space/i)]);
  const bomb = full.exec(['python3', '-c', 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'], {
    timeoutMs: 4000,
  });
  await waitFor('it to be full', async () => (await full.usage()).pids >= 60, 20_000);
  await expectUnharmed(neighbour);
  expect((await bomb).isTimedOut).toBe(true);
  expect((await full.info()).state).toBe('running');
  await waitFor('room', async () => (await full.exec(['true'])).exitCode === 0);
});

test('N17 sandboxes that are made one after another have their network from the first command on', async () => {
  for (let i = 0; i < 12; i += 1) {
    await using made = await server().sandbox({ ...LIMITS, policy });
    const { stdout } = await made.exec(['sh', '-c', 'ip -o link | cut -d: -f2 | cut -d@ -f1; cat /etc/resolv.conf']);
    expect(stdout).toMatch(/^ lo\n eth0\n[^]*nameserver \d/);
  }
});

test('L06 a command keeps a sandbox from its idle timeout, and its policy holds until its end', async () => {
  const busy = await server().sandbox({ ...LIMITS, policy, ttlRunningStop: 1 });
  const ended = await busy.exec(
    ['sh', '-c', 'sleep 2; ip -o link | cut -d: -f2 | cut -d@ -f1; unshare -U true; echo $?'],
    {
      timeoutMs: 20_000,
    },
  );
  expect(ended.stdout).toMatch(/^ lo\n eth0\n[1-9]\d*\n$/);
  const info = await waitFor('its end', async () => {
    const found = await busy.info();
    return found.state === 'stopped' && found;
  });
  expect(info.cause?.kind).toBe('idle');
  expect((await failureOf(busy.policy.phase('solve'))).code).toBe('sandbox_ended');
});

test('N03 an address is not reached where names alone are allowed, whoever has it', async () => {
  const { stdout } = await sandbox.exec(
    ['python3', '-c', `import socket; print(socket.socket().connect_ex(('${NOBODY}', 443)) != 0)`],
    { timeoutMs: 20_000 },
  );
  expect(stdout).toBe('True\n');
  const refused = sandbox.policy.set({ network: { rules: [{ action: 'deny', to: 'evil.test' }] } });
  expect((await failureOf(refused)).code).toBe('invalid_argument');
  expect((await sandbox.policy.get()).network).toMatchObject({ ipLiterals: false });
});
