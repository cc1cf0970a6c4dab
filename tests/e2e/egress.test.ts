/** The network of sandboxes, over a real server, with a world in a network namespace: what root inside reaches is what the policy says, at all times. */
import type { NetworkPolicyRequest } from '@dsec/contract';
import { SystemNetwork } from '@dsec/kit';
import type { Sandbox } from '@dsec/libdsec';
import { EgressClient, ResolverClient, WireClient, type EgressCounters, type RefusedAct } from '@dsec/native-link';
import { leftOfNetwork, nodeNetworkOf, TestServer } from '@dsec/testkit';
import { copyFile, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { attempt, attempts, bringProbe, networked, openFlow, working, type Outcome } from './in-network.ts';
import { CACHE, ENVIRONMENT_FILE, useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';
import { EVIL, GOOD, GOOD6, HOST4, NAME_SERVER, OTHER, World } from './world.ts';

const SECRET = 'Bearer operator-secret';
/** No service ends sooner than a sandbox may keep a connection after a change. */
const CUT_MS = 50;
/** The environment is in the cache by then. */
const BUILD_MS = 120_000;
const ZONE = {
  'good.test': [GOOD, GOOD6],
  'other.test': [OTHER],
  'evil.test': [EVIL],
  '*.evil.test': [EVIL],
  'a.test': [OTHER],
  'x.a.test': [GOOD],
  'x.y.a.test': [GOOD],
  'xa.test': [OTHER],
  'private.good.test': ['10.1.2.3', '169.254.169.254', '127.0.0.1', '198.18.0.1'],
};

let directory = '';
let opened: World | undefined;
const world = (): World => {
  if (opened === undefined) throw new Error('there is no world yet');
  return opened;
};
afterAll(async () => {
  await opened?.[Symbol.asyncDispose]();
  if (directory !== '') await rm(directory, { recursive: true });
});
const server = useServer(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-egress-'));
  const services = join(directory, 'services.json');
  const upstream = `http://${OTHER}/base`;
  await writeFile(
    services,
    JSON.stringify([{ name: 'models', kind: 'generic', upstream, headers: { authorization: SECRET } }]),
    { mode: 0o600 },
  );
  opened = await World.start(ZONE);
  return { network: true, services, variables: { DSEC_RESOLVER_RESOLV_CONF: opened.resolvConf } };
}, ['egress']);

const allow = (...to: readonly string[]): NetworkPolicyRequest => ({
  rules: to.map((name) => ({ action: 'allow', to: name })),
});
const tls = (address: string, name: string, port = 443): string => `tls ${address} ${port} ${name}`;
const gateway = async (): Promise<string> =>
  (JSON.parse(await readFile(join(server().data, 'run/resolver.json'), 'utf8')) as { readonly address4: string })
    .address4;

async function egressd<T>(ask: (client: EgressClient) => Promise<T>): Promise<T> {
  const socket = await new SystemNetwork().connectUnix(join(server().data, 'run/egressd.sock'));
  await using wire = WireClient.connect(socket, { role: 'test', clock });
  return await ask(new EgressClient(wire));
}
const kindsOf = (left: readonly string[]): ReadonlySet<string | undefined> =>
  new Set(left.map((line) => line.split(':')[0]));
const counters = (sandbox: Sandbox): Promise<EgressCounters> => egressd((client) => client.counters(sandbox.sandboxId));

test('N01 no name that is not allowed leaves the node, whatever asks whom', { timeout: 120_000 }, async () => {
  await using closed = await networked(server(), {});
  await using open = await networked(server(), allow('good.test'));
  world().forget();
  const asks = ['resolve secret.evil.test', `dns secret.evil.test 16 ${NAME_SERVER}`];
  expect(await working(closed, ...asks, `udp ${EVIL} 9999`)).toEqual([]);
  expect((await closed.exec(['ls', '/sys/class/net'])).stdout).toBe('lo\n');
  const address = await gateway();
  const refused = await attempts(
    open,
    'resolve secret.evil.test',
    ...[1, 16, 28, 10, 65, 255].flatMap((type) => [
      `dns t${type}.evil.test ${type} ${address}`,
      `dns t${type}.evil.test ${type} ${address} tcp`,
    ]),
    ...[NAME_SERVER, '8.8.8.8'].flatMap((to) => [`dns direct.evil.test 1 ${to}`, `dns direct.evil.test 1 ${to} tcp`]),
    `dns secret.good.test 1 ${address}`,
    `dns good.test 16 ${address}`,
  );
  for (const { ok } of refused) if (ok !== undefined) expect(ok).toMatchObject({ answers: 0 });
  expect(world().asked).toEqual([]);
  expect(await attempt(open, 'resolve good.test')).toEqual({ ok: [GOOD6, GOOD].toSorted() });
  expect(new Set(world().asked.map(({ name }) => name))).toEqual(new Set(['good.test']));
});

test('N02 a name opens its own addresses and nothing else', { timeout: 120_000 }, async () => {
  await using sandbox = await networked(server(), allow('good.test', 'other.test'));
  expect(await attempt(sandbox, tls('good.test', 'good.test'))).toMatchObject({ ok: { at: `::ffff:${GOOD}` } });
  expect(await attempt(sandbox, 'http other.test 80 other.test')).toMatchObject({ ok: { host: 'other.test' } });
  world().forget();
  expect(
    await working(
      sandbox,
      tls(EVIL, 'good.test'),
      tls(EVIL, 'evil.test'),
      // Of an allowed address: another name, none, and a name of another address.
      tls(GOOD, 'evil.test'),
      `tls ${GOOD} 443 `,
      tls(GOOD, 'other.test'),
      `http ${GOOD} 80 evil.test`,
      `http ${GOOD} 80 other.test`,
      `http ${EVIL} 80 good.test`,
    ),
  ).toEqual([]);
  expect(world().connections).toEqual([]);
});

test('N03 what is not allowed is closed by every way', { timeout: 120_000 }, async () => {
  await using sandbox = await networked(server(), allow('good.test'));
  expect(await working(sandbox, 'resolve good.test', tls(GOOD, 'good.test'))).toHaveLength(2);
  world().forget();
  expect(
    await working(
      sandbox,
      'resolve other.test',
      tls(OTHER, 'other.test'),
      `tcp ${OTHER} 443`,
      `tcp ${EVIL} 80`,
      tls(GOOD, 'good.test', 8443),
      `echo ${GOOD} 7`,
      `udp ${GOOD} 443`,
      `udp ${GOOD} 9999`,
      'tcp 2001:db8:2::8 443',
      `tls ${GOOD6} 8443 good.test`,
    ),
  ).toEqual([]);
  expect([world().connections, world().datagrams]).toEqual([[], []]);
});

test('a server that speaks first is reached by name where the rule says so, and nowhere else', {
  timeout: 120_000,
}, async () => {
  const ssh = { action: 'allow', to: 'good.test', ports: [22] } as const;
  const rest = allow('other.test').rules ?? [];
  await using sandbox = await networked(server(), { rules: [ssh, ...rest] });
  const greeted = `greeted good.test 22`;
  world().forget();
  expect(await working(sandbox, 'resolve good.test', greeted)).toEqual(['resolve good.test']);
  expect(world().connections).toEqual([]);
  await sandbox.policy.set({ network: { rules: [{ ...ssh, anyProtocol: true }, ...rest] } });
  expect(await attempt(sandbox, greeted)).toEqual({ ok: { greeting: 'SSH-2.0-world', answer: 'SSH-2.0-probe' } });
  expect(
    await working(
      sandbox,
      'resolve other.test',
      // Another name's address, another port, what is checked, and an address of no name.
      `greeted ${OTHER} 22`,
      `echo ${GOOD} 7`,
      tls(GOOD, 'good.test'),
      `greeted ${EVIL} 22`,
    ),
  ).toEqual(['resolve other.test']);
  for (const [rule, field] of [
    [{ ...ssh, ports: [22, 443] }, 'ports'],
    [{ ...ssh, to: '*.good.test' }, 'anyProtocol'],
    [{ ...ssh, to: GOOD }, 'anyProtocol'],
    [{ ...ssh, protocol: 'udp' }, 'anyProtocol'],
    [{ action: 'allow', to: 'good.test' }, 'ports'],
  ] as const) {
    const refused = await failureOf(sandbox.policy.set({ network: { rules: [{ ...rule, anyProtocol: true }] } }));
    expect([refused.code, refused.details['field']]).toEqual(['invalid_argument', `policy.network.rules.0.${field}`]);
  }
  expect(await working(sandbox, greeted)).toEqual([greeted]);
});

test('N05 a wildcard is every depth below, without the apex and without names that only end alike', async () => {
  await using sandbox = await networked(server(), allow('*.a.test'));
  const names = ['a.test', 'x.a.test', 'x.y.a.test', 'X.A.TEST', 'x.a.test.', 'A.TEST.', 'xa.test', 'a.test.evil.test'];
  expect(await working(sandbox, ...names.map((name) => `resolve ${name}`))).toEqual(
    ['x.a.test', 'x.y.a.test', 'X.A.TEST', 'x.a.test.'].map((name) => `resolve ${name}`),
  );
  expect(await working(sandbox, tls(GOOD, 'x.a.test'), tls(GOOD, 'a.test'))).toEqual([tls(GOOD, 'x.a.test')]);
});

test('N06 the host, the platform and metadata are out of reach, in public mode too', { timeout: 120_000 }, async () => {
  const came: string[] = [];
  const listener = createServer((socket) => {
    came.push(socket.remoteAddress ?? '');
    socket.end('host');
  });
  await new Promise<void>((resolve) => listener.listen({ host: '::', port: 0 }, resolve));
  try {
    const bound = listener.address();
    const port = typeof bound === 'object' && bound !== null ? bound.port : 0;
    const api = new URL(server().endpoint).port;
    const own = Object.values(networkInterfaces())
      .flatMap((all) => all ?? [])
      .filter(({ address, internal, scopeid }) => !internal && (scopeid ?? 0) === 0 && !address.startsWith('198.18.'))
      .map(({ address }) => address);
    const hosts = [...new Set([...own, HOST4, await gateway()])];
    await using sandbox = await networked(server(), { default: 'allow' });
    expect(await working(sandbox, 'resolve good.test', tls(GOOD, 'good.test'), `udp ${GOOD} 9999`)).toHaveLength(3);
    const metadata = ['169.254.169.254', '2852039166', '0xa9fea9fe', '0251.0376.0251.0376', 'fd00:ec2::254'];
    const denied = (await counters(sandbox)).denied['never'] ?? 0;
    expect(
      await working(
        sandbox,
        ...hosts.flatMap((host) => [
          `tcp ${host} ${port}`,
          `tcp ${host} ${api}`,
          `tcp ${host} 22`,
          `udp ${host} ${port}`,
        ]),
        ...metadata.map((host) => `tcp ${host} 80`),
        'tcp 168.63.129.16 80',
        'tcp 169.254.0.1 80',
        'tcp ::ffff:169.254.169.254 80',
        'resolve private.good.test',
      ),
    ).toEqual([]);
    expect((await counters(sandbox)).denied['never'] ?? 0).toBeGreaterThanOrEqual(denied + metadata.length);
    expect(came).toEqual([]);
    // Loopback is the sandbox's own.
    expect(await working(sandbox, `tcp 127.0.0.1 ${api}`, `tcp 127.0.0.1 ${port}`)).toEqual([]);
  } finally {
    await new Promise((resolve) => listener.close(resolve));
  }
});

test('N08 a phase cuts open flows at once, and new ones are blocked', { timeout: 120_000 }, async () => {
  const open = { rules: [...(allow('good.test').rules ?? []), { action: 'allow', to: OTHER }] } as const;
  await using sandbox = await networked(server(), open, { solve: {} });
  expect(await attempt(sandbox, 'resolve good.test')).toMatchObject({ ok: expect.any(Array) as unknown });
  const flows = [await openFlow(sandbox, 'tls', GOOD, 'good.test'), await openFlow(sandbox, 'echo', OTHER)];
  await sandbox.policy.phase('solve');
  const answeredMs = clock.now();
  const after = await working(sandbox, tls(GOOD, 'good.test'), `echo ${OTHER} 7`, 'resolve good.test');
  expect(after).toEqual([]);
  for (const { ended } of flows) {
    const { lastMs, why } = await ended;
    expect(lastMs).toBeLessThan(answeredMs + CUT_MS);
    expect(why).not.toBe('told');
  }
  await sandbox.policy.phase(null);
  expect(await working(sandbox, 'resolve good.test', tls(GOOD, 'good.test'), `echo ${OTHER} 7`)).toHaveLength(3);
});

test('bad policies are refused one by one, and the good one stays in force, for open flows too', {
  timeout: 120_000,
}, async () => {
  const others = (count: number) =>
    Array.from(
      { length: count },
      (_, index) => ({ action: 'deny', to: `10.${index >> 8}.${index & 255}.0/24` }) as const,
    );
  const both = allow(OTHER, GOOD).rules ?? [];
  await using sandbox = await networked(server(), { rules: both });
  const flow = await openFlow(sandbox, 'echo', OTHER);
  for (const [network, code, field] of [
    [{ rules: [{ action: 'deny', to: 'good.test' }] }, 'invalid_argument', 'policy.network.rules.0.to'],
    [{ rules: [{ action: 'allow', to: OTHER, ports: ['9-8'] }] }, 'invalid_argument', 'policy.network.rules.0.ports'],
    [{ rules: [{ action: 'allow', to: '169.254.169.254' }] }, 'invalid_argument', 'policy.network.rules.0.to'],
    [{ rules: others(8193) }, 'invalid_argument', undefined],
    [{ services: { cran: true } }, 'service_unknown', undefined],
  ] as const) {
    const refused = await failureOf(sandbox.policy.set({ network }));
    expect(refused.code).toBe(code);
    if (field !== undefined) expect(refused.details['field']).toBe(field);
  }
  const agent = server().connect({ apiKey: (await server().client.keys.create('agent')).key });
  const asAgent = await agent.getSandbox(sandbox.sandboxId);
  expect((await failureOf(asAgent.policy.set({}))).code).toBe('permission_denied');
  expect(await sandbox.policy.get()).toMatchObject({ version: 1, network: { rules: both.map(({ to }) => ({ to })) } });
  expect(await working(sandbox, `echo ${OTHER} 7`, `echo ${GOOD} 7`)).toHaveLength(2);
  // As many as there may be.
  await sandbox.policy.set({ network: { rules: [...others(8190), ...both] } });
  expect(await working(sandbox, `echo ${OTHER} 7`, `echo ${GOOD} 7`)).toHaveLength(2);
  const beforeMs = clock.now();
  await sandbox.policy.set({ network: { rules: [...both, ...others(8189), { action: 'deny', to: OTHER }] } });
  const answeredMs = clock.now();
  expect(await working(sandbox, `echo ${OTHER} 7`, `echo ${GOOD} 7`)).toEqual([`echo ${GOOD} 7`]);
  const { lastMs } = await flow.ended;
  expect(lastMs).toBeGreaterThan(beforeMs - 1000);
  expect(lastMs).toBeLessThan(answeredMs + CUT_MS);
});

test('N08, N19 policies outlive each daemon, and can be changed after', { timeout: 180_000 }, async () => {
  const open = { rules: [...(allow('good.test').rules ?? []), { action: 'allow', to: OTHER }] } as const;
  await using sandbox = await networked(server(), open, { solve: {} });
  expect(await working(sandbox, 'resolve good.test')).toHaveLength(1);
  const flows = [await openFlow(sandbox, 'tls', GOOD, 'good.test'), await openFlow(sandbox, 'echo', OTHER)];
  const blocked = [tls(EVIL, 'good.test'), tls(GOOD, 'evil.test'), `tcp ${EVIL} 80`, 'resolve evil.test'];
  for (const name of ['edge', 'resolver', 'egressd'] as const) {
    await server().kill(name);
    // The kernel and the gate have what was allowed, whoever is away.
    expect(await working(sandbox, ...blocked, `echo ${OTHER} 7`)).toEqual([`echo ${OTHER} 7`]);
    await waitFor(
      `names after the ${name}`,
      async () => (await attempt(sandbox, 'resolve good.test')).ok !== undefined,
    );
    expect(await working(sandbox, tls(GOOD, 'good.test'))).toHaveLength(1);
  }
  // All that goes by name goes through the gate, which is the one that cannot be without loss.
  const gate = JSON.parse(await readFile(join(server().data, 'run/egress/gate.json'), 'utf8')) as {
    readonly pid: number;
  };
  process.kill(gate.pid, 'SIGKILL');
  expect(await working(sandbox, ...blocked)).toEqual([]);
  await waitFor('another gate', async () => (await attempt(sandbox, tls('good.test', 'good.test'))).ok !== undefined);
  const again = await openFlow(sandbox, 'tls', GOOD, 'good.test');
  await Promise.all((['edge', 'resolver', 'egressd'] as const).map((name) => server().kill(name)));
  await sandbox.policy.phase('solve');
  const answeredMs = clock.now();
  expect(await working(sandbox, tls(GOOD, 'good.test'), `echo ${OTHER} 7`, 'resolve good.test')).toEqual([]);
  const ends = await Promise.all([...flows, again].map(({ ended }) => ended));
  for (const { lastMs } of ends) expect(lastMs).toBeLessThan(answeredMs + CUT_MS);
});

test('N10 a name is found at once', async () => {
  await using sandbox = await networked(server(), allow('good.test'));
  const { ok } = await attempt(sandbox, 'getent good.test');
  expect(ok).toMatchObject({ code: 0 });
  expect((ok as { readonly bestMs: number }).bestMs).toBeLessThan(100);
  const missing = (await attempt(sandbox, 'getent missing.test')).ok as {
    readonly code: number;
    readonly bestMs: number;
  };
  expect(missing.code).not.toBe(0);
  expect(missing.bestMs).toBeLessThan(100);
});

test('N17 a hundred at once have addresses of their own, and do not reach each other', {
  timeout: 300_000,
}, async () => {
  const sandboxes = await Promise.all(Array.from({ length: 100 }, () => networked(server(), { default: 'allow' })));
  try {
    const addresses = await Promise.all(
      sandboxes.map(async (sandbox) => {
        const { stdout } = await sandbox.exec(['ip', '-4', '-o', 'address', 'show', 'dev', 'eth0']);
        return /inet ([0-9.]+)/.exec(stdout)?.[1];
      }),
    );
    expect(new Set(addresses).size).toBe(100);
    const uplinks = new Map((await egressd((client) => client.uplinkList())).map(({ id, address4 }) => [id, address4]));
    expect(sandboxes.map(({ sandboxId }) => uplinks.get(sandboxId))).toEqual(addresses);
    const [one, two] = sandboxes;
    if (one === undefined || two === undefined) throw new Error('there are none');
    const serving = two.exec(['python3', '-m', 'http.server', '8000'], { cwd: '/etc' });
    await waitFor('its server', async () => (await attempt(two, `tcp ${addresses[1]} 8000`)).ok !== undefined);
    expect(await working(one, `tcp ${addresses[1]} 8000`, `udp ${addresses[1]} 8000`)).toEqual([]);
    // Nor does anybody take an address that is another's.
    const taking = await one.runShell(`ip address add ${addresses[1]}/32 dev eth0`);
    expect([taking.exitCode, taking.stderr]).toEqual([2, expect.stringContaining('Operation not permitted')]);
    expect(await working(one, `udp ${GOOD} 9999`)).toHaveLength(1);
    expect(await working(two, `udp ${GOOD} 9999`)).toHaveLength(1);
    await serving.kill();
    await serving;
  } finally {
    await Promise.all(sandboxes.map((sandbox) => sandbox.stop()));
  }
  expect((await egressd((client) => client.uplinkList())).map(({ id }) => id)).toEqual([]);
});

test('N20 uploads pass a way with a smaller MTU', { timeout: 120_000 }, async () => {
  await world().setMtu(1400);
  try {
    await using sandbox = await networked(server(), {
      rules: [
        { action: 'allow', to: 'good.test' },
        { action: 'allow', to: OTHER },
      ],
    });
    expect(await working(sandbox, 'resolve good.test')).toHaveLength(1);
    const size = 10 * 1024 * 1024;
    for (const words of [`tls ${GOOD} 443 good.test good.test ${size}`, `http ${OTHER} 80 other.test ${size}`]) {
      expect(await attempt(sandbox, words)).toMatchObject({ ok: { bodyBytes: size } });
    }
  } finally {
    await world().setMtu(1500);
  }
});

test('mirror services have the credentials of the operator, and nobody else has them', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await networked(server(), { services: { models: true } });
  await using closed = await networked(server(), allow('good.test'));
  const words = 'http models.mirror.internal 7300 models.mirror.internal';
  expect(await attempt(sandbox, words)).toMatchObject({ ok: { path: '/base/', authorization: SECRET } });
  expect((await attempt(closed, words)).ok).toBeUndefined();
  expect((await failureOf(server().sandbox({ networkRules: { pypi: true } }))).code).toBe('service_unknown');
  const kept = await stat(join(server().data, 'keys/services.json'));
  expect([kept.mode & 0o777, kept.uid]).toEqual([0o600, 0]);
  const argv = await readFile(`/proc/${await server().pid('resolver')}/cmdline`, 'utf8');
  expect(argv).not.toContain('secret');
});

/** Sends an echo request by the socket that programs without rights have for it. */
const PING = `import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); s.sendto(b'\\x08' + bytes(7), ('${EVIL}', 0))`;
type Told = RefusedAct['event'];

/** What the resolver tells of a sandbox meanwhile. */
async function listening(sandbox: Sandbox, work: (told: readonly Told[]) => Promise<void>): Promise<void> {
  const socket = await new SystemNetwork().connectUnix(join(server().data, 'run/resolver/resolver.sock'));
  await using wire = WireClient.connect(socket, { role: 'test', clock });
  const told: Told[] = [];
  const events = new ResolverClient(wire).events();
  const reading = (async () => {
    for await (const { event } of events) if (event.id === sandbox.sandboxId) told.push(event);
  })();
  reading.catch(() => undefined);
  await new ResolverClient(wire).info();
  await work(told);
}

test('what is refused names the process that asked, after a restart of egressd too', { timeout: 120_000 }, async () => {
  await using sandbox = await networked(server(), { ...allow('good.test'), services: { models: true } });
  const probe = (words: string): string => `python3 /probe.py ${words}`;
  const connect = { kind: 'connect', reason: 'default' } as const;
  const service = { kind: 'service', name: 'pypi.mirror.internal/' } as const;
  const cases: readonly (readonly [string, Partial<Told>])[] = [
    [probe(`tcp ${EVIL} 80`), { ...connect, protocol: 'tcp', address: EVIL, port: 80 }],
    [probe(`udp ${EVIL} 9999`), { ...connect, protocol: 'udp', address: EVIL, port: 9999 }],
    [`python3 -c "${PING}"`, { ...connect, protocol: 'icmp', address: EVIL }],
    [probe('resolve evil.test'), { kind: 'name', name: 'evil.test', reason: 'name' }],
    [probe(tls(GOOD, 'evil.test')), { kind: 'connect', reason: 'name_not_allowed', name: 'evil.test', address: GOOD }],
    [probe('http models.mirror.internal 7300 pypi.mirror.internal'), service],
  ];
  for (const turn of ['before', 'after']) {
    expect(await working(sandbox, 'resolve good.test')).toHaveLength(1);
    await listening(sandbox, async (told) => {
      // What is refused before the resolver listens to a new egressd is told to nobody.
      await waitFor('what is refused to be told', async () => {
        await sandbox.runShell(probe(`tcp ${EVIL} 81`));
        return told.some(({ port }) => port === 81);
      });
      for (const [script, is] of cases) {
        // A shell, and its child, which becomes the program.
        const { stdout } = await sandbox.runShell(`echo $$; sh -c 'echo $$; exec "$@"' sh ${script}; true`);
        const [shell, pid] = stdout.split('\n').map(Number);
        const by = (): readonly Told['process'][] =>
          told
            .filter((event) => Object.entries(is).every(([name, value]) => event[name as keyof typeof is] === value))
            .map(({ process: caused }) => caused);
        await waitFor(`an event of ${script}, ${turn}`, () => by().length > 0);
        for (const caused of by()) {
          expect(caused).toMatchObject({ pid, uid: 0, comm: 'python3' });
          expect([caused?.ancestors[0], caused?.ancestors.at(-1)]).toEqual([shell, 1]);
        }
      }
    });
    if (turn === 'after') return;
    await server().kill('egressd');
    await waitFor('names', async () => (await attempt(sandbox, 'resolve good.test')).ok !== undefined);
  }
});

test('the steps of a build reach what it is told, and what it makes reaches nothing', {
  timeout: 180_000,
}, async () => {
  const context = join(directory, 'app');
  await mkdir(context);
  await copyFile(join(import.meta.dirname, 'network-probe.py'), join(context, 'probe.py'));
  const words = [tls('good.test', 'good.test'), tls('other.test', 'other.test')];
  const probe = `python3 /probe.py many ${words.map((text) => `'${text}'`).join(' ')}`;
  const lines = [`FROM ${server().environment}`, 'COPY probe.py /', `RUN ${probe} > /found`];
  await writeFile(join(context, 'Dockerfile'), `${lines.join('\n')}\n`);
  const { exitCode, stderrTail } = await server().cli(['env', 'build', context, '-t', 'found', '--allow', 'good.test']);
  expect(exitCode, stderrTail).toBe(0);
  const args = { containerImage: 'found', memoryLimitMb: 256 } as const;
  await using sandbox = await server().client.runContainer(args);
  const { stdout } = await sandbox.exec(['cat', '/found']);
  const { ok } = JSON.parse(stdout) as { readonly ok: readonly Outcome[] };
  expect(ok[0]).toMatchObject({ ok: { at: `::ffff:${GOOD}` } });
  expect(ok[1]).toMatchObject({ error: 'name' });
  expect(await working(sandbox, ...words)).toEqual([]);
});

test('servers of one host share nothing; one that stops leaves its network to live sandboxes, and to nobody else', async () => {
  const first = await nodeNetworkOf(server().data);
  const options = { network: true, environments: [], volumeSize: '2G', poolBlanks: 1 } as const;
  await using leftovers = new AsyncDisposableStack();
  const other = leftovers.use(await TestServer.start(options));
  const network = await nodeNetworkOf(other.data);
  if (first === undefined || network === undefined) throw new Error('a server has no network');
  expect(network.number).not.toBe(first.number);
  expect(network.address4).not.toBe(first.address4);
  await other.cli(['env', 'build', ENVIRONMENT_FILE, '--reuse', CACHE], { timeoutMs: BUILD_MS });
  const policy = { network: allow(OTHER) };
  const sandbox = await other.client.runContainer({ containerImage: 'e2e', memoryLimitMb: 128, policy });
  await bringProbe(sandbox);
  world().forget();
  const { execId } = await sandbox.execDetached(['python3', '/probe.py', 'flow', 'echo', OTHER, '7', '']);
  await waitFor('the flow', () => world().connections.some(({ address, port }) => address === OTHER && port === 7));
  await other.stopDaemons();
  expect(kindsOf(await leftOfNetwork(network))).toEqual(new Set(['table', 'rule', 'address', 'device', 'route']));
  await using next = await TestServer.start({ ...options, data: other.data });
  // From here on it is the next one's to take down.
  leftovers.move();
  expect(await nodeNetworkOf(next.data)).toEqual(network);
  const same = await next.client.getSandbox(sandbox.sandboxId);
  await waitFor('the sandbox is adopted', async () => (await same.info()).state === 'running');
  // It is the same flow that is cut.
  expect((await same.execs()).find((exec) => exec.execId === execId)?.state).toBe('running');
  await same.policy.set({});
  expect((await same.attach(execId)).stdout).toMatch(/lastMs.*(?:Reset|Refused|Error)/);
  expect(world().connections).toHaveLength(1);
  await same.stop();
  await next.stopDaemons();
  expect(await leftOfNetwork(network)).toEqual([]);
  expect(kindsOf(await leftOfNetwork(first))).toContain('table');
}, 180_000);
