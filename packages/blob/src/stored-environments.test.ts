import type { EnvironmentPut } from '@dsec/contract';
import { ManualClock, SystemRandom } from '@dsec/kit';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { DirectoryStore } from './directory-store.ts';
import { StoredEnvironments } from './stored-environments.ts';

let root = '';
let clock: ManualClock;
let stored: StoredEnvironments;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'dsec-stored-'));
  clock = new ManualClock();
  stored = new StoredEnvironments(new DirectoryStore({ root, random: new SystemRandom() }), clock);
});
afterEach(() => rm(root, { recursive: true }));

const named = (name: string, digit = '1'): EnvironmentPut => ({
  name,
  kind: 'base',
  image: {
    layers: [`sha256:${digit.repeat(64)}`],
    config: { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} },
    architecture: 'amd64',
    sizeBytes: 1,
  },
});

test('a name means what was uploaded last, and its versions stay', async () => {
  const names = ['python:3.12', 'python', 'python/3.12', `a${'/b:c'.repeat(63)}`];
  for (const name of names) await stored.put(named(name));
  const first = await stored.put(named('python', '2'));
  // The clock stands still, and goes back: the order is that of the uploads.
  const second = await stored.put(named('python', '3'));
  expect(second.uploadedAtMs).toBe(first.uploadedAtMs + 1);
  expect(await stored.get('python')).toEqual(second);
  expect(await stored.get('python', { version: first.version })).toEqual(first);
  expect(await stored.versions('python')).toHaveLength(3);
  expect((await stored.list()).map(({ environment }) => environment.name)).toEqual(names.toSorted());
  expect((await stored.list()).find(({ environment }) => environment.name === 'python')).toEqual(second);
});

test('the same again is not another version', async () => {
  const first = await stored.put(named('python'));
  expect(await stored.put(named('python'))).toEqual(first);
  expect(await stored.versions('python')).toEqual([first.version]);
});

test('what is not there, or damaged, is refused by its name', async () => {
  await expect(stored.get('python')).rejects.toMatchObject({ code: 'environment_not_found' });
  const { version } = await stored.put(named('python'));
  for (const other of ['', 'x', '../x', version.replace(/.$/, 'g'), version.replace(/^0/, '1')]) {
    await expect(stored.get('python', { version: other }), other).rejects.toMatchObject({
      code: 'environment_not_found',
    });
  }
  const [folder = ''] = await readdir(join(root, 'environments'));
  const path = join(root, 'environments', folder, version);
  const document = await readFile(path);
  for (const bad of ['', '{}', 'x'.repeat(2 * 1024 * 1024), document.subarray(0, -1)]) {
    await writeFile(path, bad);
    await expect(stored.get('python')).rejects.toMatchObject({ code: 'environment_broken' });
    await expect(stored.list()).rejects.toMatchObject({ code: 'environment_broken' });
  }
  await writeFile(path, document);
  await expect(stored.get('python')).resolves.toMatchObject({ version });
});

test('what is damaged is written again by the next upload, and hides nothing else that is listed', async () => {
  const put = await stored.put(named('python'));
  const [folder = ''] = await readdir(join(root, 'environments'));
  const other = await stored.put(named('node'));
  await writeFile(join(root, 'environments', folder, put.version), '{}');
  const damaged: string[] = [];
  expect(await stored.list({ onDamaged: ({ message }) => damaged.push(message) })).toEqual([other]);
  expect(damaged).toEqual([expect.stringContaining(`${folder}/${put.version}`)]);
  expect(await stored.put(named('python'))).toEqual(put);
  expect(await stored.get('python')).toEqual(put);
  expect(await stored.list()).toEqual([other, put]);
});

test('a configuration that is too long is refused', async () => {
  const { image } = named('python');
  const config = { ...image.config, labels: { long: 'x'.repeat(1024 * 1024) } };
  await expect(stored.put({ ...named('python'), image: { ...image, config } })).rejects.toMatchObject({
    code: 'invalid_argument',
    details: { environment: 'python' },
  });
  expect(await stored.list()).toEqual([]);
});

test('retains the versions that are to be kept, and of damaged ones none', async () => {
  await stored.put(named('kept', '1'));
  await stored.put(named('kept', '2'));
  await stored.put(named('dropped', '1'));
  const { version } = await stored.put(named('damaged', '1'));
  const folders = await readdir(join(root, 'environments'));
  const holders = await Promise.all(folders.map((folder) => readdir(join(root, 'environments', folder))));
  const damaged = folders[holders.findIndex((versions) => versions.includes(version))] ?? '';
  await writeFile(join(root, 'environments', damaged, version), '{}');
  const isKept = ({ name, image }: EnvironmentPut): boolean =>
    name !== 'dropped' && image.layers[0]?.startsWith('sha256:1') === true;
  expect(await stored.retain(isKept)).toBe(3);
  expect((await stored.list()).map(({ environment }) => environment)).toEqual([named('kept', '1')]);
  expect(await stored.retain(isKept)).toBe(0);
});

test('knows the layers of all versions, and forgets those that were replaced long ago', async () => {
  const HOUR_MS = 3_600_000;
  for (const digit of ['1', '2', '3']) {
    await stored.put(named('python', digit));
    await clock.advance(HOUR_MS);
  }
  await stored.put(named('node', '4'));
  const layers = async (): Promise<Set<string | undefined>> =>
    new Set([...(await stored.layers())].map((layer) => layer.at(-1)));
  expect(await layers()).toEqual(new Set('1234'));
  // The first was replaced two hours ago, the second one hour ago.
  expect(await stored.expire(1, clock.now() - 2.5 * HOUR_MS)).toBe(0);
  expect(await stored.expire(2, clock.now())).toBe(1);
  expect(await layers()).toEqual(new Set('234'));
  expect(await stored.expire(1, clock.now() - 1.5 * HOUR_MS)).toBe(0);
  expect(await stored.expire(0, clock.now())).toBe(1);
  expect(await layers()).toEqual(new Set('34'));
  expect((await stored.get('python')).environment).toEqual(named('python', '3'));
});
