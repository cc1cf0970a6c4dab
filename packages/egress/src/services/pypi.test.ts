import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ServicesFixture, type Answer, type Upstream } from './services.fixture.ts';

let fixture: ServicesFixture;
let upstream: Upstream;
beforeEach(async () => {
  fixture = await ServicesFixture.create();
  ({ upstream } = fixture);
});
afterEach(() => fixture[Symbol.asyncDispose]());

describe('a package index', () => {
  const JSON_TYPE = 'application/vnd.pypi.simple.v1+json';
  const file = (filename: string, day: string | undefined, origin: string) => ({
    filename,
    url: `${origin}/packages/ab/${filename}`,
    hashes: { sha256: 'ab12' },
    'requires-python': '>=3.8',
    ...(day === undefined ? {} : { 'upload-time': `${day}T10:00:00.000000Z` }),
    'core-metadata': { sha256: 'cd34' },
    yanked: false,
  });
  const serve = (origin: string): void => {
    const page = {
      meta: { 'api-version': '1.1' },
      name: 'my-thing',
      versions: ['1.0', '2.0', '3.0'],
      files: [
        file('my_thing-1.0.tar.gz', '2023-01-01', origin),
        file('my_thing-2.0-py3-none-any.whl', '2024-05-01', origin),
        file('my_thing-3.0-py3-none-any.whl', '2024-07-01', origin),
        file('my_thing-4.0-py3-none-any.whl', undefined, origin),
        file('other-1.0.tar.gz', '2023-01-01', origin),
        {
          filename: 'my_thing-0.9.tar.gz',
          url: 'http://elsewhere.test/my_thing-0.9.tar.gz',
          'upload-time': '2022-01-01T00:00:00Z',
        },
      ],
    };
    upstream.page('/simple/my-thing/', JSON_TYPE, JSON.stringify(page));
    for (const { filename } of page.files) {
      for (const suffix of ['', '.metadata']) {
        for (const server of [upstream, fixture.files])
          server.page(`/packages/ab/${filename}${suffix}`, 'application/octet-stream', `${filename}${suffix}`);
      }
    }
  };
  const names = (answer: Answer): readonly string[] =>
    (JSON.parse(answer.text) as { files: { filename: string }[] }).files.map(({ filename }) => filename);
  const asJson = { headers: { accept: JSON_TYPE } };
  const old = ['my_thing-1.0.tar.gz', 'my_thing-2.0-py3-none-any.whl'];

  test('with a date hides what is newer, or of unknown age, in JSON and in HTML', async () => {
    serve(upstream.origin);
    await fixture.start({ kind: 'pypi', upstream: upstream.origin, pins: { before: '2024-06-01' } });
    const page = await fixture.ask('pypi', '/simple/My.Thing/', asJson);
    expect(page.headers['content-type']).toBe(JSON_TYPE);
    expect(names(page)).toEqual(old);
    expect(JSON.parse(page.text)).toMatchObject({
      name: 'my-thing',
      versions: ['1.0', '2.0'],
      files: [
        {
          url: 'http://pypi.mirror.internal/packages/ab/my_thing-1.0.tar.gz',
          hashes: { sha256: 'ab12' },
          'requires-python': '>=3.8',
        },
        {},
      ],
    });
    const html = await fixture.ask('pypi', '/simple/my-thing/', { headers: { accept: 'text/html' } });
    expect(html.headers['content-type']).toContain('text/html');
    expect([...html.text.matchAll(/<a href="([^"]+)"/g)].map(([, href]) => href)).toEqual(
      old.map((name) => `http://pypi.mirror.internal/packages/ab/${name}#sha256=ab12`),
    );
    expect(html.text).toContain('data-requires-python="&gt;=3.8"');
    expect(html.text).not.toContain('3.0');
    expect((await fixture.ask('pypi', '/simple/nothing/', asJson)).status).toBe(404);
  });

  test('with a date hands out no file that is newer, nor what tells of it', async () => {
    serve(upstream.origin);
    await fixture.start({ kind: 'pypi', upstream: upstream.origin, pins: { before: '2024-06-01' } });
    const get = async (path: string): Promise<number> => (await fixture.ask('pypi', path)).status;
    // Without having seen the page.
    expect(await get('/packages/ab/my_thing-2.0-py3-none-any.whl')).toBe(200);
    expect(await get('/packages/ab/my_thing-2.0-py3-none-any.whl.metadata')).toBe(200);
    for (const version of ['3.0', '4.0']) {
      expect(await get(`/packages/ab/my_thing-${version}-py3-none-any.whl`)).toBe(403);
      expect(await get(`/packages/ab/my_thing-${version}-py3-none-any.whl.metadata`)).toBe(403);
    }
    expect(await get('/packages/ab/other-1.0.tar.gz')).toBe(403);
    expect(await get('/pypi/my-thing/json')).toBe(404);
    expect(await get('/packages/ab/my_thing-2.0-py3-none-any.whl?file=my_thing-3.0-py3-none-any.whl')).toBe(403);
    expect(upstream.asked.filter(({ url }) => /3\.0|4\.0|json/.test(url))).toEqual([]);
    expect((await fixture.ask('pypi', '/simple/my-thing/', { method: 'DELETE' })).status).toBe(405);
  });

  test('with a list shows what is on it', async () => {
    serve(upstream.origin);
    await fixture.start({ kind: 'pypi', upstream: upstream.origin, pins: { allow: ['My_Thing@1.0', 'my-thing@4.0'] } });
    expect(names(await fixture.ask('pypi', '/simple/my-thing/', asJson))).toEqual([
      'my_thing-1.0.tar.gz',
      'my_thing-4.0-py3-none-any.whl',
    ]);
    expect((await fixture.ask('pypi', '/packages/ab/my_thing-2.0-py3-none-any.whl')).status).toBe(403);
  });

  test('may have its files on another server, which hears nothing of the credential', async () => {
    serve(fixture.files.origin);
    await fixture.start({
      kind: 'pypi',
      upstream: upstream.origin,
      files: fixture.files.origin,
      headers: { authorization: 'Basic secret' },
      pins: { before: '2024-06-01' },
    });
    const page = JSON.parse((await fixture.ask('pypi', '/simple/my-thing/', asJson)).text) as {
      files: { url: string }[];
    };
    const path = new URL(page.files[0]?.url ?? '').pathname;
    expect(path).toBe('/+files/packages/ab/my_thing-1.0.tar.gz');
    expect((await fixture.ask('pypi', path)).text).toBe('my_thing-1.0.tar.gz');
    expect((await fixture.ask('pypi', '/+files/packages/ab/my_thing-3.0-py3-none-any.whl')).status).toBe(403);
    expect(upstream.asked.every(({ headers }) => headers.authorization === 'Basic secret')).toBe(true);
    expect(fixture.files.asked.map(({ headers }) => headers.authorization)).toEqual([undefined]);
  });

  test('that knows no times shows nothing where a date is set, and all where a list has it', async () => {
    const html =
      '<html><body><a href="../../packages/ab/my_thing-1.0.tar.gz#sha256=ab12" data-requires-python="&gt;=3.8">my_thing-1.0.tar.gz</a></body></html>';
    upstream.page('/simple/my-thing/', 'text/html', html);
    upstream.page('/packages/ab/my_thing-1.0.tar.gz', 'application/gzip', 'bytes');
    await fixture.start({ kind: 'pypi', upstream: upstream.origin, pins: { before: '2030-01-01' } });
    expect(names(await fixture.ask('pypi', '/simple/my-thing/', asJson))).toEqual([]);
    await fixture.start({ kind: 'pypi', upstream: upstream.origin, pins: { allow: ['my-thing'] } });
    const page = await fixture.ask('pypi', '/simple/my-thing/', asJson);
    expect(JSON.parse(page.text)).toMatchObject({
      files: [{ hashes: { sha256: 'ab12' }, 'requires-python': '>=3.8' }],
    });
    expect((await fixture.ask('pypi', '/packages/ab/my_thing-1.0.tar.gz')).text).toBe('bytes');
  });
});
