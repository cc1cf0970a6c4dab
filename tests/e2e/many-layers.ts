/** An installation with as many layers as a large one has: the suite takes a part of them, `make soak` all. */
import type { EnvironmentImage } from '@dsec/libdsec';
import { createHash } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { useServer } from './started-server.ts';
import { clock } from './wait-for.ts';

type Server = ReturnType<ReturnType<typeof useServer>>;

const AT_ONCE = 64;
const CREATES = 15;
/** A page of the list, however many there are: measured in tens of milliseconds. */
const PAGE_MS = 1000;

/** Of `count` creates one after another, in ms. */
async function medianCreateMs(server: Server): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < CREATES; i += 1) {
    const startedMs = clock.monotonicMs();
    await using sandbox = await server.sandbox();
    times.push(clock.monotonicMs() - startedMs);
    expect((await sandbox.exec(['true'])).exitCode).toBe(0);
  }
  return times.toSorted((left, right) => left - right)[CREATES >> 1] ?? Number.NaN;
}

async function inParallel(count: number, work: (index: number) => Promise<unknown>): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < count) {
      next += 1;
      await work(next - 1);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/** Registers `count` layers, a multiple of 1,000: a create must take what it took, and a page of the list no longer than ever. Returns how many are listed. */
export async function checkManyLayers(server: Server, count: number): Promise<number> {
  const { client, data, environment } = server;
  const { image } = await client.environments.get(environment);
  const layers = join(data, 'layers');
  const [digest = ''] = image.layers;
  const model = join(layers, digest.replace('sha256:', ''));
  const record = await readFile(join(model, 'layer.json'));
  const before = await medianCreateMs(server);

  await inParallel(count, async (index) => {
    const hex = createHash('sha256').update(String(index)).digest('hex');
    const made: EnvironmentImage = { ...image, layers: [`sha256:${hex}`] };
    await mkdir(join(layers, hex));
    await writeFile(join(layers, hex, 'layer.json'), record);
    await client.environments.put(`many/${String(index).padStart(6, '0')}`, made, { kind: 'base' });
  });

  const after = await medianCreateMs(server);
  expect(after).toBeLessThan(2 * before);

  let listed = 0;
  let slowestMs = 0;
  let last = '';
  let startedMs = clock.monotonicMs();
  for await (const page of client.environments.list({ prefix: 'many/', pageSize: 1000 }).pages()) {
    slowestMs = Math.max(slowestMs, clock.monotonicMs() - startedMs);
    expect(page).toHaveLength(1000);
    for (const { name } of page) {
      expect(name > last).toBe(true);
      last = name;
    }
    listed += page.length;
    startedMs = clock.monotonicMs();
  }
  expect(listed).toBe(count);
  expect(slowestMs).toBeLessThan(PAGE_MS);
  expect(await client.environments.list({ prefix: 'many/001', pageSize: 300 }).toArray()).toHaveLength(1000);
  expect(await client.environments.list({ prefix: 'many/', kind: 'toolkit' }).toArray()).toEqual([]);
  expect((await client.environments.list().toArray()).map(({ name }) => name)).toContain(environment);

  // A daemon that begins anew knows all of them.
  await server.kill('apiserver');
  expect((await client.environments.get('many/000000')).image.layers).toHaveLength(1);
  await using sandbox = await server.sandbox();
  expect((await sandbox.exec(['true'])).exitCode).toBe(0);
  return listed;
}
