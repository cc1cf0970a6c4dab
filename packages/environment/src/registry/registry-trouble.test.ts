import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { testPlace } from '../build.fixture.ts';
import { pullImage } from './pull-image.ts';
import { deafPort, failure, type Fault, ScriptedRegistry, selfSigned } from './registry.fixture.ts';
import { layers, files, digestOf, first, firstDigest, attempt, faulty, breakAfter } from './faulty.fixture.ts';

describe('a registry in trouble', () => {
  it('that breaks connections is asked for the rest', async () => {
    let broken = 0;
    await using registry = await ScriptedRegistry.start(files, (request, response, url) => {
      if (!url.pathname.endsWith(firstDigest) || broken === 3) return undefined;
      broken++;
      const start = Number(/\d+/.exec(request.headers.range ?? '')?.[0] ?? 0);
      return breakAfter(response, first.subarray(start, start + 90_000), first.length - start, start);
    });
    await using at = await attempt(registry);
    const built = await at.pull();
    expect(built.layers).toHaveLength(1);
    const ranges = registry.seen(firstDigest).map(({ range }) => range);
    expect(ranges).toHaveLength(4);
    expect(ranges.slice(1).every((range) => /^bytes=\d+-$/.test(range ?? ''))).toBe(true);
    expect(at.clock.waits).toHaveLength(3);
  });

  it('that knows no ranges begins anew, and nothing is stored twice', async () => {
    await using registry = await ScriptedRegistry.start(files);
    let broken = 0;
    registry.fault = (_, response, url) => {
      if (!url.pathname.includes('/blobs/')) return undefined;
      if (url.pathname.endsWith(firstDigest) && broken++ < 2)
        return breakAfter(response, first.subarray(0, 70_000), first.length);
      response.end(files.get(`blobs/sha256/${url.pathname.split(':').at(-1)}`));
      return true;
    };
    await using at = await attempt(registry);
    const built = await at.pull();
    await using other = await ScriptedRegistry.start(files);
    await using clean = await attempt(other);
    expect(built).toEqual(await clean.pull());
  });

  it.each([500, 502, 503, 504, 408])('that answers %i is asked again', async (status) => {
    await using registry = await ScriptedRegistry.start(
      files,
      faulty('/', 2, (_, response) => {
        response.writeHead(status).end('internal: panic at db.go:17');
        return true;
      }),
    );
    await using at = await attempt(registry);
    expect((await at.pull()).layers).toHaveLength(1);
    expect(at.clock.waits).toHaveLength(2);
  });

  it('that goes on answering 500 is given up with its status, and nothing else of what it said', async () => {
    await using registry = await ScriptedRegistry.start(files, (_, response) => {
      response.writeHead(500).end('internal: panic at db.go:17');
      return true;
    });
    await using at = await attempt(registry);
    const error = await failure(at.pull({ attempts: 4 }));
    expect([error.code, error.retryable, error.infrastructure]).toEqual(['registry_unavailable', true, true]);
    expect(error.details).toEqual({ registry: registry.host, reason: 'status 500' });
    expect(JSON.stringify(error.toWire())).not.toContain('panic');
    expect(registry.requests).toHaveLength(4);
    const [one = 0, two = 0, three = 0] = at.clock.waits;
    expect([one <= 500, two >= 500, two <= 1000, three >= 1000, three <= 2000]).not.toContain(false);
  });

  it('that says when to come back is not asked before', async () => {
    await using registry = await ScriptedRegistry.start(
      files,
      faulty('/manifests/', 2, (_, response) => {
        const date = new Date(Date.UTC(2100, 0, 1)).toUTCString();
        response.writeHead(429, { 'retry-after': registry.requests.length === 1 ? '7' : '0' }).end(date);
        return true;
      }),
    );
    await using at = await attempt(registry);
    expect((await at.pull()).layers).toHaveLength(1);
    expect(at.clock.waits[0]).toBeGreaterThanOrEqual(7000);
    expect(at.clock.waits[0]).toBeLessThanOrEqual(7500);
  });

  it('I07: that wants more patience than there is says so at once', async () => {
    const answers = ['3600', new Date(Date.UTC(2100, 0, 1)).toUTCString(), undefined];
    for (const header of answers) {
      await using registry = await ScriptedRegistry.start(files, (_, response) => {
        response.writeHead(429, header === undefined ? {} : { 'retry-after': header }).end();
        return true;
      });
      await using at = await attempt(registry);
      const error = await failure(at.pull());
      expect([error.code, error.retryable, error.status]).toEqual(['registry_rate_limited', true, 429]);
      expect(error.details['retryAfterMs']).toBe(
        header === undefined ? null : header === '3600' ? 3_600_000 : 7 * 24 * 3_600_000,
      );
      expect(registry.requests).toHaveLength(header === undefined ? 6 : 1);
    }
  });

  it('that does not listen, or has no address', async () => {
    for (const [host, reason] of [
      [`127.0.0.1:${await deafPort()}`, 'refused'],
      ['nothing.invalid', 'name'],
    ] as const) {
      await using at = await attempt({ host });
      const error = await failure(at.pull({ attempts: 2 }));
      expect([error.code, error.details]).toEqual(['registry_unavailable', { registry: host, reason }]);
    }
  });

  it('whose certificate nobody vouches for is asked once, and never by plain HTTP', async () => {
    await using place = await testPlace();
    const { certificate, key } = await selfSigned(place);
    let requests = 0;
    const server = createTlsServer({ cert: await readFile(certificate), key: await readFile(key) }, () => requests++);
    await new Promise<void>((resolve) => server.listen(0, '0.0.0.0', resolve));
    try {
      // The wildcard address reaches this machine without being its loopback.
      const host = `0.0.0.0:${(server.address() as AddressInfo).port}`;
      await using at = await attempt({ host });
      const error = await failure(at.pull());
      expect([error.code, error.details['reason']]).toEqual(['registry_unavailable', 'tls']);
      expect([requests, at.clock.waits]).toEqual([0, []]);
    } finally {
      await new Promise((resolve) => server.close(resolve));
    }
  });

  it('of another machine is spoken to by plain HTTP only when it is listed', async () => {
    await using registry = await ScriptedRegistry.start(files);
    const host = `0.0.0.0:${registry.port}`;
    await using at = await attempt({ host });
    expect((await failure(at.pull())).details['reason']).toBe('tls');
    expect(registry.requests).toEqual([]);
    expect((await at.pull({ insecure: [host] })).layers).toHaveLength(1);
  });

  it.each([
    ['never answers', () => true],
    [
      'falls silent in a manifest',
      (_, response) => {
        response.write('{');
        return true;
      },
    ],
  ] as [string, Fault][])('that %s', async (_, fault) => {
    await using registry = await ScriptedRegistry.start(files, fault);
    await using at = await attempt(registry);
    const error = await failure(at.pull({ answerTimeoutMs: 50, silenceTimeoutMs: 50, attempts: 2 }));
    expect([error.code, error.details['reason']]).toEqual(['registry_unavailable', 'timeout']);
    expect(registry.requests).toHaveLength(2);
  });

  it('that falls silent in a layer is asked for the rest', async () => {
    await using registry = await ScriptedRegistry.start(
      files,
      faulty(firstDigest, 1, (_, response) => {
        response.write(first.subarray(0, 1000));
        return true;
      }),
    );
    await using at = await attempt(registry);
    expect((await at.pull({ silenceTimeoutMs: 50 })).layers).toHaveLength(1);
    expect(registry.seen(firstDigest).map(({ range }) => range)).toEqual([undefined, 'bytes=1000-']);
  });

  it('I06: that is too slow for the time of a pull, which is not that of a create', async () => {
    await using registry = await ScriptedRegistry.start(
      files,
      faulty(firstDigest, 100, (_, response) => {
        response.write(first.subarray(0, 1000));
        return true;
      }),
    );
    await using at = await attempt(registry);
    const error = await failure(at.pull({ timeoutMs: 300 }));
    expect([error.code, error.details['timeoutMs']]).toEqual(['timeout', 300]);
    expect(error.message).toContain('app:1');
  });

  it('that is waited for until the time of a pull is over: the error says why', async () => {
    const host = `127.0.0.1:${await deafPort()}`;
    await using place = await testPlace();
    const error = await failure(pullImage(place.context, { reference: `${host}/app:1`, timeoutMs: 100 }));
    expect([error.code, error.cause]).toMatchObject(['timeout', { code: 'registry_unavailable' }]);
  });

  it('is left when the caller gives up', async () => {
    const controller = new AbortController();
    await using registry = await ScriptedRegistry.start(
      files,
      faulty(firstDigest, 100, (_, response) => {
        response.write(first.subarray(0, 1000), () => controller.abort());
        return true;
      }),
    );
    await using place = await testPlace();
    const context = { ...place.context, signal: controller.signal };
    const error = await failure(pullImage(context, { reference: `${registry.host}/app:1` }));
    expect(error.code).toBe('cancelled');
    expect(await place.layers()).toEqual([]);
  });

  it('gives only so many layers at once', async () => {
    let open = 0;
    let most = 0;
    const waiting: (() => void)[] = [];
    await using registry = await ScriptedRegistry.start(files);
    registry.fault = (request, response, url) => {
      const isLayer = layers.some((layer) => url.pathname.endsWith(digestOf(layer)));
      if (!isLayer) return undefined;
      open++;
      most = Math.max(most, open);
      waiting.push(() => {
        open--;
        registry.serve(request, response, url);
      });
      // Answers when as many wait as may, or when only the last ones are left.
      if (open === 3) for (const answer of waiting.splice(0)) answer();
      return true;
    };
    await using at = await attempt(registry);
    expect((await at.pull()).layers).toHaveLength(1);
    expect(most).toBe(3);
  });
});
