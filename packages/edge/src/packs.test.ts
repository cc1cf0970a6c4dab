import type { Backend } from '@dsec/backends';
import { type Connection, SystemClock, SystemNetwork } from '@dsec/kit';
import { expect, test } from 'vitest';
import { aRecord, anImage } from '../tests/records.ts';
import { type PackCall, Packs } from './packs.ts';
import { Sandbox } from './sandbox.ts';

/** Connections to a packer that come or fail when the test says so. */
class HeldNetwork extends SystemNetwork {
  readonly asked: PromiseWithResolvers<Connection>[] = [];

  override connectUnix(): Promise<Connection> {
    const asked = Promise.withResolvers<Connection>();
    this.asked.push(asked);
    return asked.promise;
  }
}

const callOf = (key: string): PackCall => ({
  sandbox: new Sandbox(aRecord('s')),
  principal: { keyId: 'k', project: 'p' },
  request: { name: 'made' },
  config: anImage.config,
  architecture: 'amd64',
  idempotency: { key, fingerprint: 'f' },
});

test('the failure of a pack whose key was forgotten leaves the newer pack of that key to be found', async () => {
  const network = new HeldNetwork();
  const { signal } = new AbortController();
  // No pack gets as far as the backend here.
  const backend: Partial<Backend> = {};
  const packs = new Packs({
    backend: backend as Backend,
    network,
    clock: new SystemClock(),
    packerSocket: 'packer.sock',
    signal,
  });
  const failed = new Error('no packer');
  const begun: Promise<unknown>[] = [];
  const pack = (key: string): Promise<unknown> => {
    const done = packs.pack(callOf(key), () => undefined, signal).catch((error: unknown) => error);
    begun.push(done);
    return done;
  };

  const first = pack('again');
  for (let index = 0; index < 256; index++) void pack(`other-${index}`);
  void pack('again');
  expect(network.asked).toHaveLength(258);
  network.asked[0]?.reject(failed);
  await expect(first).resolves.toBe(failed);
  void pack('again');
  expect(network.asked).toHaveLength(258);

  for (const asked of network.asked) asked.reject(failed);
  await Promise.all(begun);
  void pack('again');
  expect(network.asked).toHaveLength(259);
  network.asked[258]?.reject(failed);
  await begun.at(-1);
});
