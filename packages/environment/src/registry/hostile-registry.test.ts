import type { ServerResponse } from 'node:http';
import { PlatformError } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { testPlace } from '../build.fixture.ts';
import type { LayoutFiles } from '../oci/oci.fixture.ts';
import { pullImage } from './pull-image.ts';
import { failure, ScriptedRegistry } from './registry.fixture.ts';
import { files, digestOf, first, firstDigest, attempt, faulty } from './faulty.fixture.ts';

describe('a registry that is hostile', () => {
  const redirects: [string, (host: string, path: string) => string | undefined][] = [
    ['in a circle', (host, path) => `http://${host}${path}`],
    ['to another host by plain HTTP', () => 'http://169.254.169.254/latest/meta-data'],
    ['to a file', () => 'file:///etc/passwd'],
    ['to an address with a password', (host) => `http://a:b@${host}/`],
    ['to nonsense', () => 'http://[/'],
    ['to nowhere', () => undefined],
  ];
  it.each(redirects)('redirects %s', async (_, location) => {
    await using registry = await ScriptedRegistry.start(files, (_request, response, url) => {
      const to = location(registry.host, url.pathname);
      response.writeHead(302, to === undefined ? {} : { location: to }).end();
      return true;
    });
    await using at = await attempt(registry);
    const error = await failure(at.pull());
    expect([error.code, error.details['reason']]).toEqual(['registry_unavailable', 'redirect']);
    expect(registry.requests.length).toBeLessThanOrEqual(6);
  });

  /** Writes until the other side goes. */
  const endless = (response: ServerResponse, chunk: Buffer): true => {
    const more = (): void => {
      while (!response.destroyed && response.write(chunk));
    };
    response.on('drain', more);
    more();
    return true;
  };

  it('sends a manifest without an end', async () => {
    let sent = 0;
    await using registry = await ScriptedRegistry.start(files, (_, response) => {
      response.once('close', () => {
        sent = response.socket?.bytesWritten ?? 0;
      });
      return endless(response, Buffer.alloc(65_536, ' '));
    });
    await using at = await attempt(registry);
    const error = await failure(at.pull());
    expect([error.code, error.details['reason']]).toEqual(['image_corrupt', 'document_size']);
    expect(sent).toBeLessThan(64 * 1024 * 1024);
  });

  it('sends a layer without an end: no more than it should be is kept', async () => {
    await using registry = await ScriptedRegistry.start(
      files,
      faulty(firstDigest, 9, (_, response) => endless(response, Buffer.alloc(65_536, 'x'))),
    );
    await using at = await attempt(registry);
    const error = await failure(at.pull());
    expect([error.code, error.details['layer'], error.details['reason']]).toEqual([
      'image_corrupt',
      firstDigest,
      'too_long',
    ]);
    expect(Number(error.details['offset'])).toBeLessThanOrEqual(first.length);
  });

  it.each([
    ['with other bytes', 'digest_mismatch', first.length, Buffer.from(first).fill('x', 600, 601)],
    ['without its end', 'truncated', 1000, first.subarray(0, 1000)],
    ['with no bytes', 'truncated', 0, Buffer.alloc(0)],
  ] as const)('sends a layer %s', async (_, reason, offset, bytes) => {
    await using registry = await ScriptedRegistry.start(
      files,
      faulty(firstDigest, 9, (_request, response) => {
        response.end(bytes);
        return true;
      }),
    );
    await using at = await attempt(registry);
    const error = await failure(at.pull());
    expect(error.code).toBe('image_corrupt');
    expect(error.details).toEqual({ layer: firstDigest, offset, reason });
    expect(registry.seen(firstDigest)).toHaveLength(1);
    expect(await at.place.layers()).toEqual([]);
  });

  it('lacks a layer', async () => {
    await using registry = await ScriptedRegistry.start(
      files,
      faulty(firstDigest, 9, (_, response) => {
        response.writeHead(404).end();
        return true;
      }),
    );
    await using at = await attempt(registry);
    const error = await failure(at.pull());
    expect(error.details).toEqual({ layer: firstDigest, offset: 0, reason: 'missing' });
  });

  it('is a mirror: what it sends wrong comes from the registry instead', async () => {
    await using mirror = await ScriptedRegistry.start(
      files,
      faulty(firstDigest, 9, (_, response) => {
        response.end(Buffer.from(first).fill('x', 600, 601));
        return true;
      }),
    );
    await using registry = await ScriptedRegistry.start(files);
    await using at = await attempt(registry);
    const built = await at.pull({ mirrors: { [registry.host]: [mirror.host] } });
    expect(built.layers).toHaveLength(1);
    expect(registry.requests.map(({ path }) => path)).toEqual([`/v2/app/blobs/${firstDigest}`]);
  });

  it('sends another manifest than was asked for', async () => {
    await using registry = await ScriptedRegistry.start(files);
    await using at = await attempt(registry);
    registry.fault = (_, response) => {
      response.end('{}');
      return true;
    };
    const digest = `sha256:${'5'.repeat(64)}`;
    const error = await failure(at.pull({ reference: `${registry.host}/app@${digest}` }));
    expect(error.details).toEqual({ layer: digest, offset: 2, reason: 'digest_mismatch' });
  });

  /** The layout with another manifest for its only image. */
  const withManifest = (
    change: (manifest: { layers: { size: number }[]; config: unknown }) => unknown,
  ): LayoutFiles => {
    const copy = new Map(files);
    const index = JSON.parse(String(copy.get('index.json'))) as { manifests: { digest: string; size: number }[] };
    const [top] = index.manifests;
    if (top === undefined) throw new Error('the layout has no manifest');
    const manifest = JSON.parse(String(copy.get(`blobs/sha256/${top.digest.slice(7)}`))) as Parameters<
      typeof change
    >[0];
    const bytes = Buffer.from(JSON.stringify(change(manifest)));
    top.digest = digestOf(bytes);
    top.size = bytes.length;
    copy.set(`blobs/sha256/${top.digest.slice(7)}`, bytes);
    copy.set('index.json', Buffer.from(JSON.stringify(index)));
    return copy;
  };

  it.each([
    ['more than is taken', 100 * 2 ** 30, 'image_unsupported'],
    ['more than the disk has', 2 ** 50, 'disk_full'],
    ['more than a number holds', 2 ** 60, 'image_corrupt'],
  ] as const)('promises layers of %s: not one of them is asked for', async (_, size, code) => {
    const lying = withManifest((manifest) => ({
      ...manifest,
      layers: manifest.layers.map((layer) => ({ ...layer, size })),
    }));
    await using registry = await ScriptedRegistry.start(lying);
    await using place = await testPlace();
    const context = { ...place.context, ...(code === 'disk_full' ? { maxSizeBytes: 2 ** 53 } : {}) };
    const error = await failure(pullImage(context, { reference: `${registry.host}/app:1` }));
    expect(error.code).toBe(code);
    expect(registry.seen(firstDigest)).toEqual([]);
    expect(await place.layers()).toEqual([]);
  });

  it('has an image of a form that is not known', async () => {
    await using registry = await ScriptedRegistry.start(files, (_, response) => {
      response.setHeader('content-type', 'application/vnd.docker.distribution.manifest.v1+prettyjws');
      response.end('{"schemaVersion": 1}');
      return true;
    });
    await using at = await attempt(registry);
    expect((await failure(at.pull())).code).toBe('image_unsupported');
  });

  it('is refused with a typed error or believed, whatever it answers (fuzz)', { timeout: 60_000 }, async () => {
    await using registry = await ScriptedRegistry.start(files);
    await using at = await attempt(registry);
    const answer = fc.record({
      status: fc.constantFrom(200, 201, 204, 206, 301, 401, 403, 404, 416, 418, 429, 500),
      header: fc.constantFrom(
        'location',
        'www-authenticate',
        'content-type',
        'content-range',
        'retry-after',
        'docker-content-digest',
      ),
      value: fc.oneof(
        fc.string({ maxLength: 40 }).map((text) => text.replaceAll(/[^\x20-\x7e]/g, '')),
        fc.constantFrom('bytes 0-1/2', 'Bearer realm="http://127.0.0.1:1/x"', 'Basic', '/', '3', 'sha256:0'),
      ),
      body: fc.oneof(
        fc.json(),
        fc.constantFrom('', '{"manifests":[{}]}', '{"token":"x"}', '{"config":{},"layers":[]}'),
      ),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(answer, { minLength: 1, maxLength: 5 }), fc.boolean(), async (answers, isSkipping) => {
        const left = [...answers];
        let isFirst = isSkipping;
        registry.fault = (_, response) => {
          const isPassed = isFirst;
          isFirst = false;
          const next = isPassed ? undefined : left.shift();
          if (next === undefined) return undefined;
          response.writeHead(next.status, { [next.header]: next.value }).end(next.body);
          return true;
        };
        try {
          await at.pull({ attempts: 2 });
        } catch (error) {
          if (!PlatformError.is(error) || error.code === 'internal') throw error;
        }
        expect((await at.place.layers()).filter((name) => name.startsWith('.'))).toEqual([]);
      }),
      { numRuns: 60 },
    );
  });
});
