import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { SystemClock } from '@dsec/kit';
import { describe, expect, it } from 'vitest';
import { testPlace } from '../build.fixture.ts';
import { ociLayout, saveLayout } from '../oci/oci.fixture.ts';
import { tarOf } from '../tar/tar.fixture.ts';
import { pushImage } from './push-image.ts';
import { failure, HastyClock, ScriptedRegistry } from './registry.fixture.ts';
import { digestOf, first } from './faulty.fixture.ts';

describe('a push in trouble', () => {
  const large = tarOf({ name: 'large', content: randomBytes(20_000_000) });

  it('goes on with the chunk that broke, from what has arrived of it', async () => {
    await using place = await testPlace();
    const path = await saveLayout(ociLayout({ layers: [large], packing: 'plain' }), join(place.path, 'layout'));
    const stored = new Map<string, Buffer>();
    let upload: Buffer = Buffer.alloc(0);
    let patches = 0;
    await using registry = await ScriptedRegistry.start(new Map(), (request, response, url) => {
      const location = `/v2/app/blobs/uploads/1?state=${patches}`;
      const digest = url.searchParams.get('digest');
      const parts: Buffer[] = [];
      request.on('data', (chunk: Buffer) => parts.push(chunk));
      request.on('error', () => undefined);
      request.on('end', () => {
        const body = Buffer.concat(parts);
        if (request.method === 'HEAD') response.writeHead(404).end();
        else if (request.method === 'GET') {
          response.writeHead(204, { location, range: `0-${Math.max(0, upload.length - 1)}` }).end();
        } else if (request.method === 'POST') {
          upload = Buffer.alloc(0);
          response.writeHead(202, { location }).end();
        } else if (request.method === 'PATCH') {
          patches++;
          // Of the second chunk only the first part arrives.
          upload = Buffer.concat([upload, patches === 2 ? body.subarray(0, 1_000_000) : body]);
          if (patches === 2) response.destroy();
          else response.writeHead(202, { location }).end();
        } else {
          const name = digest ?? url.pathname;
          stored.set(name, upload.length > 0 && digest !== null ? Buffer.concat([upload, body]) : body);
          upload = Buffer.alloc(0);
          response.writeHead(201).end();
        }
      });
      return true;
    });
    const context = { ...place.context, clock: new HastyClock() };
    await pushImage(context, { path, reference: `${registry.host}/app:1` });
    expect(stored.get(digestOf(large))?.equals(large)).toBe(true);
    expect([...stored.keys()].at(-1)).toBe('/v2/app/manifests/1');
    expect(registry.requests.filter(({ method }) => method === 'POST')).toHaveLength(2);
  });

  it('never sends what the layout holds to where a registry should not send it', async () => {
    await using place = await testPlace();
    const path = await saveLayout(ociLayout({ layers: [first] }), join(place.path, 'layout'));
    await using registry = await ScriptedRegistry.start(new Map(), (request, response) => {
      if (request.method === 'POST') response.writeHead(202, { location: 'http://169.254.169.254/upload' }).end();
      else response.writeHead(404).end();
      return true;
    });
    const context = { clock: new SystemClock(), random: place.context.random };
    const error = await failure(pushImage(context, { path, reference: `${registry.host}/app:1` }));
    expect([error.code, error.details['reason']]).toEqual(['registry_unavailable', 'redirect']);
  });
});
