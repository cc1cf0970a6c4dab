import type { ServerResponse } from 'node:http';
import { createHash, randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import { testPlace, type TestPlace } from '../build.fixture.ts';
import { ociLayout } from '../oci/oci.fixture.ts';
import { tarOf } from '../tar/tar.fixture.ts';
import { type ImagePull, pullImage } from './pull-image.ts';
import { type Fault, HastyClock } from './registry.fixture.ts';

export const layers = [1, 2, 3, 4, 5, 6].map((index) =>
  tarOf(
    { name: `f${index}`, content: Buffer.alloc(100_000, `${index}`) },
    { name: 'n', content: randomBytes(200_000) },
  ),
);
export const files = ociLayout({ layers, packing: 'plain', name: 'app:1' });

export const digestOf = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
export const [first = Buffer.alloc(0)] = layers;
export const firstDigest = digestOf(first);

interface Attempt {
  readonly place: TestPlace;
  readonly clock: HastyClock;
  pull(change?: Partial<ImagePull>): ReturnType<typeof pullImage>;
}

/** A place to pull into, on a clock on which retries take no time. */
export const attempt = async (registry: { readonly host: string }): Promise<Attempt & AsyncDisposable> => {
  const place = await testPlace();
  const clock = new HastyClock();
  return {
    place,
    clock,
    pull: (change = {}) => pullImage({ ...place.context, clock }, { reference: `${registry.host}/app:1`, ...change }),
    [Symbol.asyncDispose]: async () => {
      // Whatever happened, nothing is half registered.
      expect((await place.layers()).filter((name) => name.startsWith('.'))).toEqual([]);
      await place[Symbol.asyncDispose]();
    },
  };
};

/** Applies to the first `times` requests whose path has `part` in it. */
export const faulty = (part: string, times: number, fault: Fault): Fault => {
  let left = times;
  return (request, response, url) => {
    if (!url.pathname.includes(part) || left === 0) return undefined;
    left--;
    return fault(request, response, url);
  };
};

/** Sends a part of a body, and then breaks the connection. */
export const breakAfter = (response: ServerResponse, bytes: Uint8Array, total: number, from = 0): true => {
  const range = from === 0 ? {} : { 'content-range': `bytes ${from}-${from + total - 1}/${from + total}` };
  response.writeHead(from === 0 ? 200 : 206, { 'content-length': total, ...range });
  response.write(bytes, () => response.destroy());
  return true;
};
