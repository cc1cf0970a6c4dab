import { lookup, Resolver } from 'node:dns/promises';
import { PlatformError } from '@dsec/contract';
import { SystemNetwork } from '@dsec/kit';
import { ResolverClient, type WireClient } from '@dsec/native-link';
import { decode, encode } from 'dns-packet';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  CROWDED_AT,
  EVENT_BURST,
  MAX_OUTSTANDING,
  MAX_OUTSTANDING_CROWDED,
  MAX_NAMES_PER_WILDCARD,
  MAX_TCP_CONNECTIONS_EACH,
  PIN_GRACE_S,
  QUERY_BURST,
} from './dns/bounds.ts';
import { zone, type Script } from './dns/name-server.fixture.ts';
import type { RefusalEvent } from './refusal.ts';
import { addressesOf, LOCAL, rcodeOf, startFixture, type ResolverFixture } from './resolver.fixture.ts';

const network = new SystemNetwork();
const records = {
  'a.test': ['192.0.2.1', '192.0.2.2', '2001:db8::1'],
  'x.a.test': ['192.0.2.3'],
  'b.test': ['192.0.2.1'],
  'alias.test': ['alias:a.test'],
  'inside.test': ['10.0.0.5', '192.0.2.4'],
  'rebinding.test': [
    '127.0.0.1',
    '169.254.169.254',
    '10.0.0.1',
    '198.51.100.7',
    '::ffff:10.0.0.1',
    '64:ff9b::a00:1',
    'fe80::1',
  ],
};
const names: Script = (query, transport) => {
  const name = query.questions?.[0]?.name.toLowerCase() ?? '';
  // Any name there has an address, as in the zone of one who collects what he is asked.
  if (name.endsWith('.wild.test')) return zone({ [name]: ['192.0.2.9'] })(query, transport);
  return zone(records)(query, transport);
};

let resolver: ResolverFixture;
beforeEach(async () => {
  resolver = await startFixture({ script: names });
});
afterEach(() => resolver[Symbol.asyncDispose]());

const allow = (...to: readonly string[]) => ({ rules: to.map((name) => ({ action: 'allow' as const, to: name })) });
const askedNames = (): readonly string[] => resolver.upstream.asked.map(({ name }) => name.toLowerCase());
const ranges = [
  ['tcp', 80, 80, true],
  ['tcp', 443, 443, true],
];

describe('a name that is allowed', () => {
  test('is answered once its addresses are open', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    const answer = await resolver.ask(from, 'A.Test', 'A');
    expect(addressesOf(answer)).toEqual(['192.0.2.1', '192.0.2.2']);
    expect(answer?.questions).toMatchObject([{ name: 'A.Test', type: 'A' }]);
    const pin = { name: 'a.test', ttlMs: (60 + PIN_GRACE_S) * 1000, ranges };
    expect(resolver.egressd.pins).toEqual([
      {
        id: 's1',
        generation: 1,
        pins: [
          { address: '192.0.2.1', ...pin },
          { address: '192.0.2.2', ...pin },
        ],
      },
    ]);
    expect(addressesOf(await resolver.ask(from, 'a.test', 'AAAA'))).toEqual(['2001:db8::1']);
  });

  test('is not answered while its addresses cannot be opened', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    resolver.egressd.onCall = () => Promise.reject(new PlatformError('internal', 'no'));
    expect(rcodeOf(await resolver.ask(from, 'a.test', 'A'))).toBe('SERVFAIL');
    resolver.egressd.onCall = () => Promise.resolve();
    resolver.egressd.breakAll();
    await expect.poll(async () => addressesOf(await resolver.ask(from, 'a.test', 'A'))).toHaveLength(2);
  });

  test('is asked for once, and its addresses are opened once, however often it is asked for', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    for (let round = 0; round < 5; round++) await resolver.ask(from, 'a.test', 'A');
    expect(askedNames()).toEqual(['a.test']);
    expect(resolver.egressd.pins).toHaveLength(1);
  });

  test('shares an address with another, which then has the ports of both', async () => {
    const rules = [
      { action: 'allow' as const, to: 'a.test' },
      { action: 'allow' as const, to: 'b.test', ports: [22] },
    ];
    const from = await resolver.allow('s1', { rules });
    await resolver.ask(from, 'a.test', 'A');
    await resolver.ask(from, 'b.test', 'A');
    expect(resolver.egressd.pins[1]?.pins).toMatchObject([
      { address: '192.0.2.1', name: 'b.test', ranges: [['tcp', 22, 22, true], ...ranges] },
    ]);
  });

  test('hides its aliases', async () => {
    const from = await resolver.allow('s1', allow('alias.test'));
    const answer = await resolver.ask(from, 'alias.test', 'A');
    expect(answer?.answers).toMatchObject([{ name: 'alias.test' }, { name: 'alias.test' }]);
    expect(resolver.egressd.pins[0]?.pins[0]?.name).toBe('alias.test');
  });

  test('is found by its address again, and no other is', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    await resolver.ask(from, 'a.test', 'A');
    expect(addressesOf(await resolver.ask(from, '1.2.0.192.in-addr.arpa', 'PTR'))).toEqual(['a.test']);
    expect(rcodeOf(await resolver.ask(from, '8.8.8.8.in-addr.arpa', 'PTR'))).toBe('NXDOMAIN');
    expect(askedNames()).toEqual(['a.test']);
  });

  test('is resolved by programs: system resolver protocol over UDP and TCP', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    const client = new Resolver({ tries: 1, timeout: 2000 });
    client.setServers([`127.0.0.1:${resolver.dnsPort}`]);
    client.setLocalAddress(from);
    expect((await client.resolve4('a.test')).toSorted()).toEqual(['192.0.2.1', '192.0.2.2']);
    await expect(client.resolve4('evil.test')).rejects.toMatchObject({ code: 'ENOTFOUND' });
    await expect(client.resolveTxt('a.test')).rejects.toMatchObject({ code: 'EREFUSED' });
  });
});

describe('nothing leaves the node', () => {
  const secrets = ['secret.evil.test', 'a.test.evil.test', 'xa.test', 'test', 'evil', ''];
  test.each(['A', 'AAAA', 'TXT', 'NULL', 'ANY', 'CNAME', 'MX', 'UNKNOWN_65', 'NS'])(
    'of names that are not allowed, by %s',
    async (type) => {
      const from = await resolver.allow('s1', allow('a.test', '*.a.test'));
      for (const name of secrets) {
        const answer = await resolver.ask(from, name, type);
        expect([name, rcodeOf(answer)]).toEqual([name, name === 'test' ? 'NOERROR' : 'NXDOMAIN']);
        expect(addressesOf(answer)).toEqual([]);
      }
      expect(askedNames()).toEqual([]);
    },
  );

  test.each(['TXT', 'NULL', 'ANY', 'CNAME', 'MX', 'SRV', 'SOA', 'DNSKEY'])('of an allowed name by %s', async (type) => {
    const from = await resolver.allow('s1', allow('a.test'));
    expect(rcodeOf(await resolver.ask(from, 'a.test', type))).toBe('REFUSED');
    expect(askedNames()).toEqual([]);
  });

  test.each(['UNKNOWN_64', 'UNKNOWN_65'])('of an allowed name by %s, which has nothing', async (type) => {
    const from = await resolver.allow('s1', allow('a.test'));
    const answer = await resolver.ask(from, 'a.test', type);
    expect([rcodeOf(answer), addressesOf(answer)]).toEqual(['NOERROR', []]);
    expect(askedNames()).toEqual([]);
  });

  test('under a policy that allows addresses alone', async () => {
    const from = await resolver.allow('s1', allow('192.0.2.0/24'));
    expect(rcodeOf(await resolver.ask(from, 'a.test', 'A'))).toBe('NXDOMAIN');
    expect(askedNames()).toEqual([]);
  });

  test('of one whose policy is not here', async () => {
    expect(rcodeOf(await resolver.ask('127.0.0.77', 'a.test', 'A'))).toBe('SERVFAIL');
    const from = await resolver.allow('s1', allow('a.test'));
    await resolver.client.policyRemove('s1');
    expect(rcodeOf(await resolver.ask(from, 'a.test', 'A'))).toBe('SERVFAIL');
    expect(resolver.egressd.uplinks.size).toBe(0);
    expect(askedNames()).toEqual([]);
  });

  test('below a wildcard beyond a bounded number of names', async () => {
    const from = await resolver.allow('s1', allow('*.wild.test'));
    const secret = (index: number): string => `secret-${index}.wild.test`;
    for (let index = 0; index < MAX_NAMES_PER_WILDCARD; index++) await resolver.ask(from, secret(index), 'A');
    expect(rcodeOf(await resolver.ask(from, secret(MAX_NAMES_PER_WILDCARD), 'A'))).toBe('NXDOMAIN');
    expect(addressesOf(await resolver.ask(from, secret(0), 'A'))).toEqual(['192.0.2.9']);
    expect(new Set(askedNames()).size).toBe(MAX_NAMES_PER_WILDCARD);
    // Another policy with the same wildcard does not begin anew.
    await resolver.allow('s1', allow('*.wild.test', 'a.test'));
    expect(rcodeOf(await resolver.ask(from, secret(MAX_NAMES_PER_WILDCARD), 'A'))).toBe('NXDOMAIN');
  });
});

describe('addresses that a name may not have', () => {
  test('are dropped from answers', async () => {
    const from = await resolver.allow('s1', allow('rebinding.test', 'inside.test'));
    const answers = [
      await resolver.ask(from, 'rebinding.test', 'A'),
      await resolver.ask(from, 'rebinding.test', 'AAAA'),
    ];
    expect(answers.map(addressesOf)).toEqual([[], []]);
    expect(resolver.egressd.pins).toEqual([]);
    expect(addressesOf(await resolver.ask(from, 'inside.test', 'A'))).toEqual(['192.0.2.4']);
  });

  test('are given where a rule names them', async () => {
    const from = await resolver.allow('s1', allow('inside.test', 'rebinding.test', '10.0.0.0/24'));
    expect(addressesOf(await resolver.ask(from, 'inside.test', 'A'))).toEqual(['10.0.0.5', '192.0.2.4']);
    expect(addressesOf(await resolver.ask(from, 'rebinding.test', 'A'))).toEqual(['10.0.0.1']);
  });
});

describe('where everything is allowed', () => {
  test('every name is answered and none is pinned, but private addresses are dropped all the same', async () => {
    const from = await resolver.allow('s1', { default: 'allow' });
    expect(addressesOf(await resolver.ask(from, 'a.test', 'A'))).toEqual(['192.0.2.1', '192.0.2.2']);
    expect(addressesOf(await resolver.ask(from, 'rebinding.test', 'A'))).toEqual([]);
    expect(resolver.egressd.pins).toEqual([]);
  });
});

describe('a change of the policy', () => {
  test('takes over the pins that still hold, and only those', async () => {
    const from = await resolver.allow('s1', allow('a.test', 'x.a.test'));
    await resolver.ask(from, 'a.test', 'A');
    await resolver.ask(from, 'x.a.test', 'A');
    await resolver.allow('s1', allow('a.test'));
    const pins = resolver.egressd.policies.at(-1)?.pins ?? [];
    expect(pins.map(({ address, name }) => [address, name])).toEqual([
      ['192.0.2.1', 'a.test'],
      ['192.0.2.2', 'a.test'],
    ]);
    for (const { ttlMs } of pins) expect(ttlMs).toBeLessThanOrEqual((60 + PIN_GRACE_S) * 1000);
    expect(rcodeOf(await resolver.ask(from, 'x.a.test', 'A'))).toBe('NXDOMAIN');
    expect(addressesOf(await resolver.ask(from, 'a.test', 'A'))).toHaveLength(2);
    expect(resolver.egressd.pins).toHaveLength(2);
  });

  test('while a name is being resolved decides about the answer', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    const held = Promise.withResolvers<undefined>();
    const reached = Promise.withResolvers<undefined>();
    resolver.egressd.onCall = async (method) => {
      if (method !== 'policy.set') return;
      reached.resolve(undefined);
      await held.promise;
    };
    const changing = resolver.allow('s1', allow('b.test'));
    await reached.promise;
    const asking = resolver.ask(from, 'a.test', 'A');
    await expect.poll(() => askedNames()).toEqual(['a.test']);
    held.resolve(undefined);
    await changing;
    expect(rcodeOf(await asking)).toBe('NXDOMAIN');
    expect(resolver.egressd.pins).toEqual([]);
  });

  test('that fails leaves the one before in force', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    const refused = [
      { rules: [{ action: 'deny', to: 'a.test' }] },
      { services: { cran: true } },
      { rules: [{ action: 'allow', to: '169.254.169.254' }] },
      { rules: [], more: 1 },
    ];
    for (const policy of refused) {
      const error: unknown = await resolver.edge
        .call('policy.set', { sandbox: 's1', policy })
        .catch((thrown: unknown) => thrown);
      expect(PlatformError.is(error) ? error.code : error).toMatch(/^(?:invalid_argument|service_unknown)$/);
    }
    resolver.egressd.onCall = () => Promise.reject(new PlatformError('internal', 'no'));
    await expect(resolver.allow('s1', allow('b.test'))).rejects.toMatchObject({ code: 'internal' });
    resolver.egressd.onCall = () => Promise.resolve();
    expect(addressesOf(await resolver.ask(from, 'a.test', 'A'))).toHaveLength(2);
    expect(rcodeOf(await resolver.ask(from, 'b.test', 'A'))).toBe('NXDOMAIN');
  });

  test('is refused for a sandbox that is not there, and taken for one that only this resolver does not know', async () => {
    await expect(resolver.allow('gone', allow('a.test'))).rejects.toMatchObject({ code: 'sandbox_not_found' });
    expect(await resolver.client.policyList()).toEqual([]);
    resolver.egressd.uplinks.set('s2', { address4: '127.0.0.9', address6: 'fd00::9', generation: 3 });
    expect(await resolver.client.policyList()).toEqual(['s2']);
    expect(await resolver.allow('s2', allow('a.test'))).toBe('127.0.0.9');
    expect(addressesOf(await resolver.ask('127.0.0.9', 'a.test', 'A'))).toHaveLength(2);
    resolver.egressd.uplinks.set('s3', { address4: '127.0.0.10', address6: 'fd00::10', generation: 3 });
    await resolver.client.policyRemove('s3');
    expect(await resolver.client.policyList()).toEqual(['s2']);
  });

  test('of a sandbox that has the address of another, which is gone, leaves nothing of that one', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    resolver.egressd.uplinks.delete('s1');
    expect(await resolver.allow('s2', allow('b.test'))).toBe(from);
    expect(rcodeOf(await resolver.ask(from, 'a.test', 'A'))).toBe('NXDOMAIN');
    expect(await resolver.client.info()).toMatchObject({ address4: '127.0.0.1', sandboxes: 1, services: [] });
  });
});

describe('one who asks too much', () => {
  test('is not answered any more, and the others are', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    const other = await resolver.allow('s2', allow('a.test'));
    let answers = 0;
    const peer = { address: '127.0.0.1', port: resolver.dnsPort };
    await using socket = await network.bindUdp(from, 0, () => void answers++, { peer });
    const query = encode({ type: 'query', id: 1, questions: [{ name: 'evil.test', type: 'A' }] });
    const sent = QUERY_BURST * 3;
    for (let index = 0; index < sent; index++) {
      socket.send(query);
      if (index % 50 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    // What the kernel had no room for is asked again, as by any program.
    await expect
      .poll(async () => addressesOf(await resolver.ask(other, 'a.test', 'A')), { timeout: 15_000 })
      .toHaveLength(2);
    expect(answers).toBeLessThan(sent);
    expect(askedNames()).toEqual(['a.test']);
  });

  test('of a zone that does not answer keeps nobody else from an answer', async () => {
    const slow: Script = (query, transport) =>
      query.questions?.[0]?.name.toLowerCase().endsWith('.wild.test') === true ? undefined : names(query, transport);
    resolver.upstream.script = slow;
    const peer = { address: '127.0.0.1', port: resolver.dnsPort };
    await using sockets = new AsyncDisposableStack();
    for (let index = 0; index <= CROWDED_AT / MAX_OUTSTANDING; index++) {
      const from = await resolver.allow(`s${index}`, allow('*.wild.test'));
      const socket = sockets.use(await network.bindUdp(from, 0, () => undefined, { peer }));
      for (let id = 0; id < 2 * MAX_OUTSTANDING; id++) {
        const questions = [{ name: `q${id}-${index}.wild.test`, type: 'A' as const }];
        socket.send(encode({ type: 'query', id, questions }));
        if (id % 16 === 0) await new Promise((resolve) => setImmediate(resolve));
      }
    }
    const other = await resolver.allow('other', allow('a.test', '*.wild.test'));
    await expect
      .poll(async () => addressesOf(await resolver.ask(other, 'a.test', 'A')), { timeout: 15_000 })
      .toHaveLength(2);
    const asked = new Set(askedNames()).size;
    expect(asked).toBeGreaterThanOrEqual(CROWDED_AT / 2);
    expect(asked).toBeLessThanOrEqual(CROWDED_AT + MAX_OUTSTANDING_CROWDED + 1);
  });

  test('over TCP gets no more than its connections', async () => {
    const from = await resolver.allow('s1', allow('a.test'));
    const connections = await Promise.all(
      Array.from({ length: MAX_TCP_CONNECTIONS_EACH + 4 }, () => network.connectTcp('127.0.0.1', resolver.dnsPort)),
    );
    // All of them come from this machine's first address, which is no sandbox.
    await expect.poll(() => connections.filter(({ destroyed }) => destroyed).length).toBe(4);
    for (const connection of connections) connection.destroy();
    expect(addressesOf(await resolver.ask(from, 'a.test', 'A'))).toHaveLength(2);
  });
});

test('questions over TCP are answered, several on one connection, and nonsense ends it', async () => {
  await resolver.allow(LOCAL, allow('a.test'));
  const connection = await network.connectTcp('127.0.0.1', resolver.dnsPort);
  let have: Buffer = Buffer.alloc(0);
  connection.on('data', (chunk: Buffer) => {
    have = Buffer.concat([have, chunk]);
  });
  const framed = (id: number): Buffer => {
    const query = encode({ type: 'query', id, questions: [{ name: 'a.test', type: 'A' }] });
    const length = Buffer.alloc(2);
    length.writeUInt16BE(query.length);
    return Buffer.concat([length, query]);
  };
  const bytes = Buffer.concat([framed(1), framed(2), framed(3)]);
  connection.write(bytes.subarray(0, 5));
  connection.write(bytes.subarray(5));
  const answers = (): number[] => {
    const ids: number[] = [];
    for (let at = 0; at + 2 <= have.length; ) {
      const length = have.readUInt16BE(at);
      if (at + 2 + length > have.length) break;
      ids.push(decode(have.subarray(at + 2, at + 2 + length)).id ?? 0);
      at += 2 + length;
    }
    return ids.toSorted((a, b) => a - b);
  };
  await expect.poll(answers).toEqual([1, 2, 3]);
  connection.write(Buffer.from('ffff', 'hex'));
  await expect.poll(() => connection.destroyed).toBe(true);
});

/** For what goes through several processes of a machine that has others to run. */
const PATIENT = { timeout: 5000 };

/** What the edge is told, in its order. */
function listen(edge = resolver.edge): { readonly told: RefusalEvent[]; end: () => Promise<void> } {
  const told: RefusalEvent[] = [];
  const stream = edge.open('events', {});
  const reading = (async () => {
    for await (const item of stream) {
      if (item.type === 'message') told.push((item.value as { event: RefusalEvent }).event);
    }
  })();
  reading.catch(() => undefined);
  return {
    told,
    end: async () => {
      stream.reset();
      await expect(reading).rejects.toMatchObject({ code: 'cancelled' });
    },
  };
}

test('refusals are told to who listens, within a budget, with a count of the others', async () => {
  const from = await resolver.allow('s1', allow('a.test', 'rebinding.test'));
  const { told: events, end } = listen();
  await expect.poll(async () => (await resolver.ask(from, 'evil.test', 'A'), events.length)).toBeGreaterThan(0);
  await resolver.ask(from, 'a.test', 'TXT');
  await resolver.ask(from, 'rebinding.test', 'A');
  const reasons = () => new Set(events.map((event) => event.reason));
  await expect.poll(reasons).toEqual(new Set(['name', 'type', 'address']));
  expect(events[0]).toMatchObject({ id: 's1', kind: 'name', name: 'evil.test', type: 1, reason: 'name', count: 1 });
  for (let index = 0; index < EVENT_BURST + 50; index++) await resolver.ask(from, 'evil.test', 'A');
  const info = (await resolver.edge.call('resolver.info', {})) as { refused: number };
  expect(info.refused).toBeGreaterThan(EVENT_BURST + 50);
  expect(events.length).toBeLessThan(info.refused);
  await end();
});

const process = { pid: 7, ancestors: [5, 1], session: 5, uid: 0, comm: 'curl', argv: ['curl', 'evil.test'] };

test('a refused name is told with the process that egressd knows by the socket', async () => {
  const from = await resolver.allow('s1', allow('a.test'));
  const { told, end } = listen();
  await using socket = await network.bindUdp(from, 0, () => undefined, {
    peer: { address: '127.0.0.1', port: resolver.dnsPort },
  });
  resolver.egressd.ownerOf = ({ protocol, address, port }) =>
    protocol === 'udp' && address === from && port === socket.port ? process : undefined;
  await expect
    .poll(() => {
      socket.send(encode({ type: 'query', id: 1, flags: 0, questions: [{ name: 'evil.test', type: 'AAAA' }] }));
      return told.length;
    })
    .toBeGreaterThan(0);
  expect(told[0]).toMatchObject({ id: 's1', kind: 'name', name: 'evil.test', type: 28, process });
  await end();
});

test('what egressd and the gate refuse comes the same way, and does so again when egressd was away', async () => {
  const denied = { id: 's1', reason: 'rule', protocol: 'icmp', address: '192.0.2.9', port: 0, count: 3, process };
  const refused = { id: 's1', reason: 'name_not_allowed', name: 'b.test', address: '192.0.2.9', port: 443, missed: 4 };
  const unread = { id: 's1', reason: 'not-ip', protocol: null, address: null, port: 0, count: 1 };
  const hear = async (edge: WireClient): Promise<void> => {
    // The resolver comes to egressd when it is asked something.
    await new ResolverClient(edge).policyList();
    await expect.poll(() => resolver.egressd.listeners.size, PATIENT).toBe(1);
    const { told, end } = listen(edge);
    await edge.call('resolver.info', {});
    await resolver.egressd.tell({ denied });
    await resolver.egressd.tell({ refused });
    await resolver.egressd.tell({ denied: unread });
    await expect.poll(() => told.length, PATIENT).toBe(3);
    const { name, address, port } = refused;
    expect(told.map(({ atMs: _atMs, ...rest }) => rest)).toEqual([
      { id: 's1', kind: 'connect', reason: 'rule', protocol: 'icmp', address, count: 3, process },
      { id: 's1', kind: 'connect', reason: 'name_not_allowed', name, protocol: 'tcp', address, port, count: 5 },
      { id: 's1', kind: 'connect', reason: 'not-ip', count: 1 },
    ]);
    await end();
  };
  await hear(resolver.edge);
  resolver.egressd.breakAll();
  await resolver.edge.closed;
  await using again = await resolver.connect();
  await hear(again);
});

test('the resolver never asks the machine itself, whatever the name', async () => {
  const from = await resolver.allow('s1', { default: 'allow' });
  expect(rcodeOf(await resolver.ask(from, 'localhost', 'A'))).toBe('NXDOMAIN');
  expect((await lookup('localhost')).address).toMatch(/^(?:127|::1)/);
});

test('an egressd that is lost has the edge told so, which then gives all policies anew; names go on being answered', async () => {
  const from = await resolver.allow('s1', allow('a.test'));
  resolver.egressd.breakAll();
  await resolver.edge.closed;
  await expect(resolver.edge.call('resolver.info', {})).rejects.toMatchObject({ code: 'connection_lost' });
  expect(rcodeOf(await resolver.ask(from, 'a.test', 'A'))).toBe('NOERROR');
});
