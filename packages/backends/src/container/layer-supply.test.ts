import { DirectoryStore, LayerUploader, putTrace, type ObjectStore, type UploadedLayer } from '@dsec/blob';
import { PlatformError } from '@dsec/contract';
import { layerDigest } from '@dsec/environment';
import { ManualClock, MemoryLogger, SystemNetwork, SystemRandom, type Listener } from '@dsec/kit';
import { DaemonLink, LayerdClient, PublisherClient, serve } from '@dsec/native-link';
import { cpSync, writeFileSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { LayerSupply } from './layer-supply.ts';

const HOUR_MS = 3_600_000;
const layer = (number: number): string => `sha256:${String(number).padStart(64, '0')}`;

/** A layerd with room for so many layers, and the publisher beside it. */
class LayerdDouble {
  readonly open = new Set<string>();
  readonly mounted = new Set<string>();
  readonly calls: string[] = [];
  room = 3;

  /** What was asked for ahead. */
  readonly prefetches: Readonly<Record<string, unknown>>[] = [];

  answer(method: string, params: Readonly<Record<string, unknown>>): object {
    const name = String(params['layer']);
    if (method === 'layer.prefetch') {
      this.prefetches.push(params);
      return { chunks: 1 };
    }
    this.calls.push(`${method} ${Number(name.slice(-8))}`);
    switch (method) {
      case 'layer.open':
        if (!this.open.has(name) && this.open.size >= this.room)
          throw new PlatformError('too_many_requests', `${this.room} layers are open`);
        this.open.add(name);
        return { dataBytes: 1, chunks: 1, packs: 1 };
      case 'layer.close':
        if (this.mounted.has(name)) throw new PlatformError('layer_in_use', 'it is mounted');
        this.open.delete(name);
        return {};
      case 'layer.trace':
        return {
          chunks: [1, 0],
          isCut: false,
          dataBytes: 524_288,
          touchedChunks: 2,
          touchedBytes: 300_000,
          presentBytes: 400_000,
        };
      case 'layer.publish': {
        const hex = name.slice('sha256:'.length);
        const place = join(directory, 'layers', hex);
        cpSync(join(directory, 'fetched', hex), place, { recursive: true });
        writeFileSync(join(place, 'data'), '');
        return {};
      }
      default:
        throw new PlatformError('layer_corrupt', 'it is not the layer');
    }
  }
}

let directory = '';
let clock: ManualClock;
let layerd: LayerdDouble;
let listener: Listener;
let forgotten: string[];
/** What the launcher does when it is to let go. */
let onForget: () => Promise<void>;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-supply-'));
  await mkdir(join(directory, 'layers'));
  await mkdir(join(directory, 'store'));
  clock = new ManualClock();
  layerd = new LayerdDouble();
  forgotten = [];
  onForget = () => Promise.resolve();
  listener = await new SystemNetwork().listenUnix(join(directory, 'layerd.sock'), (connection) => {
    serve(connection, (method, params) => Promise.resolve().then(() => layerd.answer(method, params)), {
      role: 'layerd',
      clock,
      onFault: (fault) => expect.unreachable(String(fault)),
    });
  });
});
afterEach(async () => {
  await listener.close();
  await rm(directory, { recursive: true });
});

function supply(store: ObjectStore = storeOf()): LayerSupply {
  const parts = { clock, random: new SystemRandom(), network: new SystemNetwork(), logger: new MemoryLogger() };
  const link = { ...parts, name: 'layerd', role: 'edge', socket: join(directory, 'layerd.sock') };
  return new LayerSupply({
    ...parts,
    layerd: new DaemonLink({ ...link, client: (wire) => new LayerdClient(wire) }),
    publisher: new DaemonLink({ ...link, client: (wire) => new PublisherClient(wire) }),
    forget: (name) => {
      forgotten.push(name);
      return onForget();
    },
    layersDirectory: join(directory, 'layers'),
    fetchDirectory: join(directory, 'fetched'),
    store,
  });
}

const storeOf = (): DirectoryStore =>
  new DirectoryStore({ root: join(directory, 'store'), random: new SystemRandom() });

/** Puts a layer of two chunks into the store. */
async function stored(store: ObjectStore): Promise<UploadedLayer> {
  const [metadataPath, dataPath] = [join(directory, 'rootfs.erofs'), join(directory, 'data')];
  await writeFile(metadataPath, 'metadata');
  await writeFile(dataPath, Buffer.alloc(524_288, 'data'));
  return await new LayerUploader({ store, clock }).upload({ metadataPath, dataPath, record: Buffer.from('{}') });
}

async function present(number: number, names: readonly string[] = ['layer.json', 'chunks', 'data']): Promise<void> {
  const path = join(directory, 'layers', layer(number).slice('sha256:'.length));
  await mkdir(path);
  for (const name of names) await writeFile(join(path, name), '');
}

test('what was built here needs nobody, and what is filled on demand is opened once', async () => {
  await present(1, ['layer.json', 'data']);
  await present(2);
  // Without contents there is nothing to fill.
  await present(3, ['layer.json', 'chunks']);
  const layers = supply();
  await Promise.all([layers.provide([layer(1), layer(2)]), layers.provide([layer(2), layer(3)])]);
  expect(layerd.calls).toEqual(['layer.open 2']);
  expect(layers.provide([layer(1), layer(2), layer(3)])).toBeUndefined();
  layers.doubt([layer(1), layer(2)]);
  await layers.provide([layer(1), layer(2)]);
  expect(layerd.calls).toEqual(['layer.open 2', 'layer.open 2']);
  // What the opening before has read comes ahead of who reads it now.
  const ahead = { layer: layer(2), recorded: true };
  await expect.poll(() => layerd.prefetches).toEqual([ahead, ahead]);
});

test('layers that nobody has used for long make room, the oldest first, and mounted ones stay', async () => {
  for (const number of [1, 2, 3, 4, 5, 6]) await present(number);
  const layers = supply();
  for (const number of [1, 2, 3]) await layers.provide([layer(number)]);
  // All of them may be about to be mounted.
  await expect(layers.provide([layer(4)])).rejects.toMatchObject({ code: 'too_many_requests' });
  await clock.advance(HOUR_MS);
  expect(layers.provide([layer(3)])).toBeUndefined();
  layerd.mounted.add(layer(2));
  await layers.provide([layer(4)]);
  expect(layerd.open).toEqual(new Set([layer(2), layer(3), layer(4)]));
  expect(forgotten.slice(-2).toSorted()).toEqual([layer(1), layer(2)]);
  // What was closed is opened again.
  layerd.room = 4;
  await layers.provide([layer(1)]);
  expect(layerd.open.has(layer(1))).toBe(true);
});

test('what an edge before has opened makes room', async () => {
  for (const number of [1, 2, 3, 4]) await present(number);
  for (const number of [1, 2, 3]) layerd.open.add(layer(number));
  await supply().provide([layer(4)]);
  expect(layerd.open).toEqual(new Set([layer(4)]));
});

test('what an edge before has opened is found among many layers that are not open, and none is closed twice', async () => {
  for (let number = 1; number <= 200; number++) await present(number);
  const [wanted = '', other = '', ...names] = (await readdir(join(directory, 'layers'))).map(
    (name) => `sha256:${name}`,
  );
  for (const name of names.slice(-layerd.room)) layerd.open.add(name);
  const layers = supply();
  await layers.provide([wanted]);
  expect(layerd.open.has(wanted)).toBe(true);
  layerd.room = layerd.open.size;
  await expect(layers.provide([other])).rejects.toMatchObject({ code: 'too_many_requests' });
  const closed = layerd.calls.filter((call) => call.startsWith('layer.close'));
  expect(closed).toHaveLength(new Set(closed).size);
});

test('what other nodes have read of a layer comes ahead, and the create does not wait for the store to say it', async () => {
  const store = storeOf();
  const { layer: digest, map } = await stored(store);
  await putTrace(store, digest, { map, trace: [1, 0] });
  const asked = Promise.withResolvers<undefined>();
  const answered = Promise.withResolvers<undefined>();
  const slow: ObjectStore = Object.create(store, {
    name: { value: store.name },
    get: {
      value: async (...[key, options]: Parameters<ObjectStore['get']>) => {
        if (key.endsWith('/trace')) {
          asked.resolve(undefined);
          await answered.promise;
        }
        return await store.get(key, options);
      },
    },
  }) as ObjectStore;
  const layers = supply(slow);
  await layers.prepare();
  const name = `sha256:${digest}`;
  await layers.provide([name]);
  expect(layerd.open).toEqual(new Set([name]));
  await asked.promise;
  expect(layerd.prefetches).toEqual([]);
  answered.resolve(undefined);
  await expect.poll(() => layerd.prefetches).toEqual([{ layer: name, trace: [1, 0] }]);
});

test('what cannot be had is told to all who asked, and leaves nothing', async () => {
  const layers = supply();
  await layers.prepare();
  const asked = await Promise.allSettled([layers.provide([layer(9)]), layers.provide([layer(9)])]);
  for (const { status, reason } of asked as readonly PromiseRejectedResult[]) {
    expect(status).toBe('rejected');
    expect(reason).toMatchObject({ code: 'layer_not_found', details: { layer: layer(9) } });
  }
  await rm(join(directory, 'store'), { recursive: true });
  await expect(layers.provide([layer(9)])).rejects.toMatchObject({
    code: 'blob_unavailable',
    details: { layer: layer(9) },
  });
  expect(await readdir(join(directory, 'fetched'))).toEqual([]);
  await mkdir(join(directory, 'store'));
});

test('says how much of a layer is here: all that was built here, what layerd says of others, nothing of what is not here', async () => {
  const zeros = layer(0);
  const sizeBytes = 524_288;
  /** A layer with a record; two of them differ in what their metadata are said to be. */
  const whole = async (number: number, names: readonly string[]): Promise<string> => {
    const metadata = layer(number);
    const digest = layerDigest(metadata.slice('sha256:'.length), zeros.slice('sha256:'.length));
    const path = join(directory, 'layers', digest.slice('sha256:'.length));
    await mkdir(path);
    for (const name of ['rootfs.erofs', ...names]) await writeFile(join(path, name), '');
    await truncate(join(path, 'data'), sizeBytes);
    const record = {
      version: 2,
      digest,
      sizeBytes,
      metadata: { digest: metadata, sizeBytes: 0 },
      data: { digest: zeros, sizeBytes },
      createdAtMs: 0,
      architecture: 'amd64',
      source: { kind: 'recipe', name: 'x' },
      config: { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} },
    };
    await writeFile(join(path, 'layer.json'), JSON.stringify(record));
    return digest;
  };
  const built = await whole(1, ['data']);
  const filled = await whole(2, ['data', 'chunks']);
  const stateOfFilled = { dataBytes: sizeBytes, presentBytes: 400_000, touchedBytes: 300_000 };
  expect(await supply().states([filled, layer(3), built, filled])).toEqual([
    stateOfFilled,
    { dataBytes: undefined, presentBytes: 0, touchedBytes: undefined },
    { dataBytes: sizeBytes, presentBytes: sizeBytes, touchedBytes: undefined },
    stateOfFilled,
  ]);
  expect(layerd.calls).toHaveLength(1);
  expect(await supply().states([])).toEqual([]);
});

/** What a promise is worth, while time passes. */
async function passing<T>(promise: Promise<T>): Promise<T> {
  let isOver = false;
  const over = (): void => void (isOver = true);
  promise.then(over, over);
  await expect
    .poll(
      async () => {
        await clock.advance(50);
        return isOver;
      },
      { interval: 2, timeout: 10_000 },
    )
    .toBe(true);
  return await promise;
}

test('lets go of a layer for good, and whoever comes meanwhile waits and looks for it anew', async () => {
  await present(1);
  await present(2, ['layer.json', 'data']);
  const layers = supply();
  await layers.provide([layer(1), layer(2)]);
  const letting = Promise.withResolvers<undefined>();
  onForget = () => letting.promise;
  const released = [layers.release(layer(1)), layers.release(layer(2))];
  const again = layers.provide([layer(1), layer(2)]);
  expect(again).toBeDefined();
  // Somebody waits for it: it is not to be let go again.
  expect(await layers.release(layer(1))).toBe(false);
  expect(layerd.calls).toEqual(['layer.open 1']);
  letting.resolve(undefined);
  expect(await Promise.all(released)).toEqual([true, true]);
  await again;
  // Nobody fills the other.
  expect(layerd.calls).toEqual(['layer.open 1', 'layer.close 1', 'layer.open 1']);
  expect(forgotten).toEqual([layer(1), layer(2)]);
});

test('closes what was opened although its files are gone, and keeps what somebody stands on', async () => {
  for (const number of [1, 2, 3]) await present(number);
  const layers = supply();
  await layers.provide([layer(1), layer(2), layer(3)]);
  await rm(join(directory, 'layers', layer(1).slice('sha256:'.length)), { recursive: true });
  expect(await layers.release(layer(1))).toBe(true);
  expect(layerd.open).toEqual(new Set([layer(2), layer(3)]));
  layerd.mounted.add(layer(2));
  expect(await passing(layers.release(layer(2)))).toBe(false);
  layerd.mounted.delete(layer(2));
  await layers.provide([layer(2)]);
  // The kernel takes a moment to let go of what the launcher has let go of.
  layerd.mounted.add(layer(2));
  const before = layerd.calls.length;
  const settling = layers.release(layer(2));
  await expect.poll(() => layerd.calls.length).toBeGreaterThan(before);
  layerd.mounted.delete(layer(2));
  expect(await passing(settling)).toBe(true);
  onForget = () => Promise.reject(new PlatformError('layer_in_use', 'a sandbox stands on it'));
  expect(await layers.release(layer(3))).toBe(false);
  expect(layerd.open).toEqual(new Set([layer(3)]));
  await layers.provide([layer(2), layer(3)]);
  // What the launcher cannot be asked is told to whoever lets go, and to no create.
  onForget = () => Promise.reject(new PlatformError('unavailable', 'the launcher is away'));
  const failing = layers.release(layer(3));
  const waiting = layers.provide([layer(3)]);
  await expect(failing).rejects.toMatchObject({ code: 'unavailable' });
  await waiting;
});
