import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ServicesFixture, type Upstream } from './services.fixture.ts';

let fixture: ServicesFixture;
let upstream: Upstream;
beforeEach(async () => {
  fixture = await ServicesFixture.create();
  ({ upstream } = fixture);
});
afterEach(() => fixture[Symbol.asyncDispose]());

describe('an npm registry', () => {
  const manifest = (version: string) => ({
    name: '@a/b',
    version,
    dist: { tarball: `${upstream.origin}/@a/b/-/b-${version}.tgz`, integrity: 'x' },
  });
  beforeEach(() => {
    const versions = ['1.0.0', '1.2.0', '2.0.0', '1.3.0-rc.1'];
    const document = {
      name: '@a/b',
      readme: 'now with 2.0.0',
      'dist-tags': { latest: '2.0.0', old: '1.0.0' },
      versions: Object.fromEntries(versions.map((version) => [version, manifest(version)])),
      time: {
        created: '2020-01-01T00:00:00Z',
        modified: '2024-09-01T00:00:00Z',
        '1.0.0': '2023-01-01T00:00:00Z',
        '1.2.0': '2024-01-01T00:00:00Z',
        '1.3.0-rc.1': '2024-02-01T00:00:00Z',
        '2.0.0': '2024-09-01T00:00:00Z',
      },
    };
    upstream.page('/@a%2fb', 'application/json', JSON.stringify(document));
    for (const version of versions)
      upstream.page(`/@a/b/-/b-${version}.tgz`, 'application/gzip', `tarball of ${version}`);
  });

  test('with a date hides what is newer, and names the latest of the rest', async () => {
    await fixture.start({ kind: 'npm', upstream: upstream.origin, pins: { before: '2024-06-01' } });
    for (const path of ['/@a%2fb', '/@a/b', '/@a%2Fb']) {
      const answer = await fixture.ask('npm', path);
      const document = JSON.parse(answer.text) as { versions: Record<string, { dist: { tarball: string } }> };
      expect(Object.keys(document.versions)).toEqual(['1.0.0', '1.2.0', '1.3.0-rc.1']);
      expect(document).toMatchObject({ 'dist-tags': { latest: '1.2.0', old: '1.0.0' } });
      expect(document.versions['1.2.0']?.dist.tarball).toBe('http://npm.mirror.internal/@a/b/-/b-1.2.0.tgz');
      expect(answer.text).not.toContain('2.0.0"');
    }
    expect(JSON.parse((await fixture.ask('npm', '/@a/b/latest')).text)).toMatchObject({ version: '1.2.0' });
    expect((await fixture.ask('npm', '/@a/b/2.0.0')).status).toBe(404);
  });

  test('with a date hands out no tarball that is newer', async () => {
    await fixture.start({ kind: 'npm', upstream: upstream.origin, pins: { before: '2024-06-01' } });
    expect((await fixture.ask('npm', '/@a/b/-/b-2.0.0.tgz')).status).toBe(403);
    expect((await fixture.ask('npm', '/@a/b/-/b-1.2.0.tgz?version=2.0.0')).status).toBe(403);
    expect((await fixture.ask('npm', '/@a/b/-/b-1.2.0.tgz')).text).toBe('tarball of 1.2.0');
    expect((await fixture.ask('npm', '/-/v1/search?text=b')).status).toBe(404);
    expect((await fixture.ask('npm', '/@a/b', { method: 'PUT', body: '{}' })).status).toBe(405);
  });

  test('without pins serves all, with its tarballs', async () => {
    await fixture.start({ kind: 'npm', upstream: upstream.origin });
    const document = JSON.parse((await fixture.ask('npm', '/@a/b')).text) as { versions: object };
    expect(document).toMatchObject({ 'dist-tags': { latest: '2.0.0' } });
    expect((await fixture.ask('npm', '/@a/b/-/b-2.0.0.tgz')).text).toBe('tarball of 2.0.0');
  });
});
