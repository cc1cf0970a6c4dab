import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { LOCAL } from '../resolver.fixture.ts';
import { ServicesFixture, type Upstream } from './services.fixture.ts';

let fixture: ServicesFixture;
let upstream: Upstream;
beforeEach(async () => {
  fixture = await ServicesFixture.create();
  ({ upstream } = fixture);
});
afterEach(() => fixture[Symbol.asyncDispose]());

describe('a proxy of Go modules with a date', () => {
  const info = (version: string, time: string): string =>
    JSON.stringify({ Version: version, Time: time, Origin: { Ref: 'x' } });
  const pins = { before: '2024-06-01' };
  beforeEach(() => {
    upstream.page('/m.test/!a/@v/list', 'text/plain', 'v1.0.0\nv1.2.0\nv1.10.0\nv1.9.0\nv2.0.0-rc.1\nnonsense\n');
    const times = {
      'v1.0.0': '2023-01-01',
      'v1.2.0': '2024-01-01',
      'v1.9.0': '2024-05-31',
      'v1.10.0': '2024-06-02',
      'v2.0.0-rc.1': '2024-02-01',
    };
    for (const [version, day] of Object.entries(times)) {
      upstream.page(`/m.test/!a/@v/${version}.info`, 'application/json', info(version, `${day}T00:00:00Z`));
      upstream.page(`/m.test/!a/@v/${version}.zip`, 'application/zip', `zip of ${version}`);
      upstream.page(`/m.test/!a/@v/${version}.mod`, 'text/plain', `module m.test/A`);
    }
    upstream.page('/m.test/!a/@latest', 'application/json', info('v1.10.0', '2024-06-02T00:00:00Z'));
    upstream.page(
      '/m.test/!a/@v/master.info',
      'application/json',
      info('v1.10.1-0.20240701000000-abcdefabcdef', '2024-07-01T00:00:00Z'),
    );
    upstream.page('/old.test/@v/list', 'text/plain', '');
    upstream.page(
      '/old.test/@latest',
      'application/json',
      info('v0.0.0-20200101000000-abcdefabcdef', '2020-01-01T00:00:00Z'),
    );
    upstream.page('/new.test/@v/list', 'text/plain', '');
    upstream.page(
      '/new.test/@latest',
      'application/json',
      info('v0.0.0-20250101000000-abcdefabcdef', '2025-01-01T00:00:00Z'),
    );
  });

  test('hides what is newer from lists, and works out the latest of the rest', async () => {
    await fixture.start({ kind: 'goproxy', upstream: upstream.origin, pins });
    const list = (await fixture.ask('goproxy', '/m.test/!a/@v/list')).text;
    expect(list.split('\n').filter(Boolean)).toEqual(['v1.0.0', 'v1.2.0', 'v1.9.0', 'v2.0.0-rc.1']);
    const latest = await fixture.ask('goproxy', '/m.test/!a/@latest');
    expect(JSON.parse(latest.text)).toEqual({ Version: 'v1.9.0', Time: '2024-05-31T00:00:00Z' });
    expect((await fixture.ask('goproxy', '/old.test/@latest')).status).toBe(200);
    expect((await fixture.ask('goproxy', '/new.test/@latest')).status).toBe(404);
  });

  test('refuses files that are newer, whoever guesses them', async () => {
    await fixture.start({ kind: 'goproxy', upstream: upstream.origin, pins });
    const status = async (file: string): Promise<number> =>
      (await fixture.ask('goproxy', `/m.test/!a/@v/${file}`)).status;
    for (const suffix of ['info', 'mod', 'zip']) {
      expect([await status(`v1.9.0.${suffix}`), await status(`v1.10.0.${suffix}`)]).toEqual([200, 403]);
    }
    expect([await status('master.info'), await status('master.zip'), await status('v9.9.9.zip')]).toEqual([
      403, 404, 403,
    ]);
    expect(upstream.asked.filter(({ url }) => url.includes('v1.10.0.zip'))).toEqual([]);
    expect((await fixture.ask('goproxy', '/m.test/!a/@v/v1.9.0.zip')).text).toBe('zip of v1.9.0');
    for (const path of [
      '/m.test/%21a/@v/v1.10.0.zip',
      '/',
      '/m.test',
      '/m.test/!a/@v/',
      '/m.test/!a/@v/list/x',
      '/m.test/!a/@v/v1.9.0.zip?v=v1.10.0',
    ]) {
      expect([path, (await fixture.ask('goproxy', path)).status]).toEqual([path, 404]);
    }
    expect((await fixture.ask('goproxy', '/m.test/!a/@v/list', { method: 'POST', body: 'x' })).status).toBe(405);
  });

  test('tells that, with the process that has asked', async () => {
    await fixture.start({ kind: 'goproxy', upstream: upstream.origin, pins });
    const process = { pid: 7, ancestors: [1], session: 7, uid: 0, comm: 'go', argv: ['go', 'get', 'm.test/A'] };
    const stream = fixture.resolver.edge.open('events', {});
    fixture.resolver.egressd.ownerOf = ({ protocol, address, port }) =>
      protocol === 'tcp' && address === '127.0.0.1' && port > 0 ? process : undefined;
    expect((await fixture.ask('goproxy', '/m.test/!a/@v/v1.10.0.zip')).status).toBe(403);
    const name = 'goproxy.mirror.internal/m.test/!a/@v/v1.10.0.zip';
    expect((await stream.next()).value).toMatchObject({
      value: { event: { id: LOCAL, kind: 'service', name, reason: 'service', count: 1, process } },
    });
    stream.reset();
  });

  test('shows what is on the list alone', async () => {
    await fixture.start({
      kind: 'goproxy',
      upstream: upstream.origin,
      pins: { allow: ['m.test/A@v1.2.0', 'm.test/A@v1.10.0', 'old.test'] },
    });
    expect((await fixture.ask('goproxy', '/m.test/!a/@v/list')).text).toBe('v1.2.0\nv1.10.0\n');
    expect((await fixture.ask('goproxy', '/m.test/!a/@v/v1.9.0.zip')).status).toBe(403);
    expect((await fixture.ask('goproxy', '/m.test/!a/@v/v1.10.0.zip')).status).toBe(200);
    expect((await fixture.ask('goproxy', '/old.test/@latest')).status).toBe(200);
    expect((await fixture.ask('goproxy', '/new.test/@latest')).status).toBe(404);
  });

  test('without pins passes everything on, and is read only', async () => {
    await fixture.start({ kind: 'goproxy', upstream: upstream.origin });
    expect((await fixture.ask('goproxy', '/m.test/!a/@v/v1.10.0.zip')).text).toBe('zip of v1.10.0');
    expect((await fixture.ask('goproxy', '/m.test/!a/@v/list', { method: 'PUT', body: 'x' })).status).toBe(405);
  });
});
