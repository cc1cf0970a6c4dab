import { PlatformError } from '@dsec/contract';
import { expect, test } from 'vitest';

import { link } from '../tests/link.ts';
import { EgressClient, type EgressPin, type EgressPolicy } from './egress-client.ts';

const pin: EgressPin = { address: '192.0.2.1', name: 'a.test', ttlMs: 1000, ranges: [['tcp', 443, 443, true]] };
const policy: EgressPolicy = {
  flags: { resolver: true, services: false, names: true, public: false },
  rules: [{ cidr: '192.0.2.0/24', ranges: [['udp', 1, 65_535, false]] }],
  pins: [pin],
  names: [{ pattern: '*.a.test', ports: [['tcp', 80, 80, true]] }],
};

const uplink = { interface: 'dsec0.1', address4: '198.18.0.3', address6: 'fd5d::3', generation: 4 };

const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (PlatformError.is(error) ? error.code : error),
  );

test('every method is asked as the protocol has it', async () => {
  const asked: unknown[] = [];
  const answers: Readonly<Record<string, unknown>> = {
    'node.info': {
      version: '0.1.0',
      network4: '198.18.0.0/20',
      network6: 'fd5d::/108',
      address4: '198.18.0.1',
      address6: 'fd5d::1',
      dnsPort: 53,
      servicePorts: [80, 80],
      mtu: 1500,
      sandboxes: 2,
      maxSandboxes: 4096,
      more: 'for people',
    },
    'uplink.open': uplink,
    'uplink.list': { uplinks: [{ id: 's1', ...uplink }] },
    'pins.add': { pins: 3 },
    'policy.set': { ...uplink, generation: 5, micros: 120 },
    counters: { sentPackets: 1, sentBytes: 2, receivedPackets: 3, receivedBytes: 4, denied: { rule: 5 } },
  };
  await using pair = await link(async (method, params) => {
    asked.push([method, params]);
    return answers[method] ?? {};
  });
  const client = new EgressClient(pair.client);
  expect((await client.nodeInfo()).sandboxes).toBe(2);
  expect((await client.uplinkOpen('s1')).address4).toBe('198.18.0.3');
  expect(await client.uplinkList()).toEqual([{ id: 's1', ...uplink }]);
  expect(await client.policySet('s1', policy)).toEqual({ ...uplink, generation: 5, micros: 120 });
  await client.policySet('s1', policy, { open: { waitMs: 9 } });
  expect(await client.pinsAdd('s1', 5, [pin])).toBe(3);
  expect((await client.counters('s1')).denied).toEqual({ rule: 5 });
  await client.uplinkClose('s1');
  await client.uplinkClose('s1', { isOver: true });
  expect(asked).toEqual([
    ['node.info', {}],
    ['uplink.open', { id: 's1' }],
    ['uplink.list', {}],
    ['policy.set', { id: 's1', ...policy }],
    ['policy.set', { id: 's1', open: { waitMs: 9 }, ...policy }],
    ['pins.add', { id: 's1', generation: 5, pins: [pin] }],
    ['counters', { id: 's1' }],
    ['uplink.close', { id: 's1' }],
    ['uplink.close', { id: 's1', isOver: true }],
  ]);
});

test('what does not match is a protocol error; errors of egressd are its own', async () => {
  await using pair = await link(async (method) => {
    if (method === 'uplink.open') return { ...uplink, interface: 'a name that no device has' };
    if (method === 'policy.set') return { generation: -1, micros: 0 };
    throw new PlatformError('policy_stale', 'The policy has changed.', { details: { version: 6 } });
  });
  const client = new EgressClient(pair.client);
  expect(await codeOf(client.uplinkOpen('s1'))).toBe('protocol_error');
  expect(await codeOf(client.policySet('s1', policy))).toBe('protocol_error');
  expect(await codeOf(client.pinsAdd('s1', 5, [pin]))).toBe('policy_stale');
});

test('a host without IPv6 gives no address of it', async () => {
  await using pair = await link(async () => ({ ...uplink, address6: null }));
  expect((await new EgressClient(pair.client).uplinkOpen('s1')).address6).toBeNull();
});

const process = { pid: 7, ancestors: [5, 1], session: 5, uid: 0, comm: 'curl', argv: ['curl', 'a.test'] };

test('what was refused comes as it happens, until it is reset', async () => {
  const sending = Promise.withResolvers<undefined>();
  const denied = { id: 's1', reason: 'rule', protocol: 'tcp', address: '192.0.2.9', port: 22, count: 3, process };
  const refused = { id: 's1', reason: 'name_missing', address: '192.0.2.9', port: 443, from: 4000, missed: 2, process };
  await using pair = await link(async (_method, _params, stream) => {
    await stream.message({ denied, lost: 4 });
    await stream.message({ refused });
    stream.signal.addEventListener('abort', () => sending.resolve(undefined));
    await sending.promise;
  });
  const events = new EgressClient(pair.client).events();
  expect((await events.next()).value).toEqual({ denied, lost: 4 });
  expect((await events.next()).value).toEqual({ refused });
  events.reset();
  await sending.promise;
  expect(await codeOf(events.next())).toBe('cancelled');
});

test('the process behind a socket is asked for, and may be nobody', async () => {
  const asked: unknown[] = [];
  await using pair = await link(async (method, params) => {
    asked.push([method, params]);
    return asked.length === 1 ? { process } : {};
  });
  const client = new EgressClient(pair.client);
  const asker = { address: '198.18.0.3', port: 4000, protocol: 'udp' } as const;
  expect(await client.owner('s1', asker)).toEqual(process);
  expect(await client.owner('s1', asker)).toBeUndefined();
  expect(asked[0]).toEqual(['owner', { id: 's1', ...asker }]);
});
