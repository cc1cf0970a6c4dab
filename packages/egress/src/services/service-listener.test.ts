import { ManualClock, MemoryLogger, SystemNetwork } from '@dsec/kit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { HEAD_MS, MAX_REQUESTS_EACH } from './bounds.ts';
import { Events } from '../events.ts';
import { addressesOf, LOCAL, rcodeOf } from '../resolver.fixture.ts';
import { Sandboxes } from '../sandboxes.ts';
import { ServiceListener } from './service-listener.ts';
import { ServicesFixture, type Handler, type Upstream } from './services.fixture.ts';

let fixture: ServicesFixture;
let upstream: Upstream;
beforeEach(async () => {
  fixture = await ServicesFixture.create();
  ({ upstream } = fixture);
});
afterEach(() => fixture[Symbol.asyncDispose]());

describe('a service', () => {
  test('is found under its name by those who may use it', async () => {
    await fixture.start({ kind: 'generic', upstream: upstream.origin });
    const open = await fixture.resolver.allow('s1', { services: { generic: true } });
    const closed = await fixture.resolver.allow('s2', {
      services: { generic: false },
      rules: [{ action: 'allow', to: 'a.test' }],
    });
    expect(addressesOf(await fixture.resolver.ask(open, 'generic.mirror.internal', 'A'))).toEqual(['127.0.0.1']);
    expect(addressesOf(await fixture.resolver.ask(open, 'generic.mirror.internal', 'AAAA'))).toEqual([]);
    expect(rcodeOf(await fixture.resolver.ask(closed, 'generic.mirror.internal', 'A'))).toBe('NXDOMAIN');
    expect(rcodeOf(await fixture.resolver.ask(open, 'other.mirror.internal', 'A'))).toBe('NXDOMAIN');
  });

  test('passes requests on with the headers of the operator, which the sandbox can neither see nor replace', async () => {
    await fixture.start({
      kind: 'generic',
      upstream: `${upstream.origin}/base/`,
      headers: { Authorization: 'Bearer secret' },
    });
    upstream.pages.set('/base/thing?x=1', (asked, response) => {
      let body = '';
      asked.on('data', (chunk: Buffer) => {
        body += chunk.toString();
      });
      asked.once('end', () =>
        response.writeHead(201, { 'set-cookie': 'session=1', 'x-own': 'yes' }).end(`got ${body}`),
      );
    });
    const answer = await fixture.ask('generic', '/thing?x=1', {
      method: 'POST',
      body: 'hello',
      headers: { authorization: 'Bearer guessed', connection: 'x-hop', 'x-hop': '1', 'x-other': '2' },
    });
    expect(answer).toMatchObject({ status: 201, text: 'got hello', headers: { 'x-own': 'yes' } });
    expect(answer.headers['set-cookie']).toBeUndefined();
    const [asked] = upstream.asked;
    expect(asked?.headers).toMatchObject({
      authorization: 'Bearer secret',
      'x-other': '2',
      host: new URL(upstream.origin).host,
    });
    expect(asked?.headers['x-hop']).toBeUndefined();
    expect(JSON.stringify(answer)).not.toContain('secret');
  });

  test('rewrites redirects to itself, and refuses those that lead elsewhere', async () => {
    await fixture.start({ kind: 'generic', upstream: `${upstream.origin}/base` });
    const redirect =
      (location: string): Handler =>
      (_asked, response) =>
        void response.writeHead(302, { location }).end();
    upstream.pages.set('/base/absolute', redirect(`${upstream.origin}/base/there?y`));
    upstream.pages.set('/base/relative', redirect('there'));
    upstream.pages.set('/base/above', redirect('/elsewhere'));
    upstream.pages.set('/base/away', redirect('http://169.254.169.254/latest'));
    const place = 'http://generic.mirror.internal/there';
    expect((await fixture.ask('generic', '/absolute')).headers.location).toBe(`${place}?y`);
    expect((await fixture.ask('generic', '/relative')).headers.location).toBe(place);
    for (const path of ['/above', '/away']) {
      const answer = await fixture.ask('generic', path);
      expect([answer.status, answer.headers.location]).toEqual([502, undefined]);
    }
  });

  test.each([
    '/../secret',
    '/a/../../secret',
    '/%2e%2e/secret',
    '/a/%2E./b',
    '/a%2f..%2fb',
    '/a\\..\\b',
    '/%252e%252e/x',
    '//evil.test/',
    '/a%00b',
    '/%zz',
  ])('takes no path that leads out of its root: %s', async (path) => {
    await fixture.start({ kind: 'generic', upstream: `${upstream.origin}/base` });
    expect((await fixture.ask('generic', path)).status).toBe(400);
    expect(upstream.asked).toEqual([]);
  });

  test('is closed to those whose policy does not open it, and under no other name', async () => {
    await fixture.start({ kind: 'generic', upstream: upstream.origin });
    const stream = fixture.resolver.edge.open('events', {});
    expect((await fixture.ask('generic', '/', { host: 'evil.test' })).status).toBe(403);
    expect((await fixture.ask('generic', '/', { host: 'generic.mirror.internal.evil.test' })).status).toBe(403);
    expect((await fixture.ask('pypi', '/')).status).toBe(403);
    expect((await fixture.ask('generic', '/')).status).toBe(404);
    await fixture.resolver.allow(LOCAL, { rules: [{ action: 'allow', to: 'a.test' }] });
    expect((await fixture.ask('generic', '/')).status).toBe(403);
    const { value: first } = await stream.next();
    expect(first).toMatchObject({
      value: { event: { id: LOCAL, kind: 'service', name: 'evil.test/', reason: 'service', count: 1 } },
    });
    stream.reset();
    await fixture.resolver.client.policyRemove(LOCAL);
    expect((await fixture.ask('generic', '/')).status).toBe(503);
    expect(upstream.asked).toHaveLength(1);
  });

  test('says so when its server is away', async () => {
    await fixture.start({ kind: 'generic', upstream: 'http://127.0.0.1:1' });
    expect(await fixture.ask('generic', '/')).toMatchObject({
      status: 502,
      text: expect.stringContaining('does not answer') as string,
    });
  });

  test('answers no more requests at once than a bound, however few connections carry them', async () => {
    await fixture.start({ kind: 'generic', upstream: upstream.origin });
    const held: (() => void)[] = [];
    upstream.pages.set('/slow', (_asked, response) => void held.push(() => response.end('done')));
    const connection = await new SystemNetwork().connectTcp('127.0.0.1', fixture.resolver.servicePort);
    let text = '';
    connection.on('data', (chunk: Buffer) => {
      text += chunk.toString();
    });
    const one = 'GET /slow HTTP/1.1\r\nHost: generic.mirror.internal\r\n\r\n';
    connection.write(one.repeat(MAX_REQUESTS_EACH + 5));
    await expect.poll(() => held.length).toBe(MAX_REQUESTS_EACH);
    expect((await fixture.ask('generic', '/slow')).status).toBe(429);
    for (const release of held) release();
    await expect.poll(() => text.match(/done/g)?.length).toBe(MAX_REQUESTS_EACH);
    await expect.poll(() => connection.destroyed).toBe(true);
    expect(held).toHaveLength(MAX_REQUESTS_EACH);
  });

  test('streams what is larger than any buffer', async () => {
    await fixture.start({ kind: 'generic', upstream: upstream.origin });
    const block = Buffer.alloc(65_536, 'x');
    upstream.pages.set('/large', (_asked, response) => {
      let left = 512;
      const more = (): void => {
        while (left-- > 0) if (!response.write(block)) return void response.once('drain', more);
        response.end();
      };
      more();
    });
    expect((await fixture.ask('generic', '/large')).text.length).toBe(512 * 65_536);
  });
});

test('a connection that brings no request is ended in time, and so is one that brings no second', async () => {
  const clock = new ManualClock();
  const network = new SystemNetwork();
  await using listener = await ServiceListener.bind(
    { address: '127.0.0.1', port: 0 },
    { network, clock, logger: new MemoryLogger() },
  );
  const never = (): Promise<never> => Promise.reject(new Error('not in this test'));
  const sink = { open: never, set: never, close: never, list: never };
  const sandboxes = new Sandboxes({ sink, clock, services: new Set(), nodeNetworks: [] });
  listener.serve({ sandboxes, events: new Events(clock, { owner: never }), services: [], zone: 'mirror.internal' });
  const connect = async () => (await network.connectTcp('127.0.0.1', listener.port)).resume();
  const [silent, slow] = [await connect(), await connect()];
  slow.write('GET / HTTP/1.1\r\nHost: x');
  await expect.poll(() => clock.pendingTimers).toBeGreaterThanOrEqual(2);
  await clock.advance(HEAD_MS - 1);
  expect([silent.destroyed, slow.destroyed]).toEqual([false, false]);
  await clock.advance(1);
  await expect.poll(() => [silent.destroyed, slow.destroyed]).toEqual([true, true]);
});
