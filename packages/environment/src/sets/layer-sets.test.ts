import { chmod, mkdir, readdir, readFile, rename, rm, stat, truncate, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { PlatformError, type EnvironmentImage } from '@dsec/contract';
import { ByteString, defaultMetadata, newDirectory } from '@dsec/erofs';
import { MemoryLogger } from '@dsec/kit';
import { describe, expect, it } from 'vitest';
import { clock, testPlace, type TestPlace } from '../build.fixture.ts';
import { buildLayer } from '../build-layer.ts';
import { layerDataPath, layerImagePath } from '../layer-store.ts';
import { LayerSets, type LayerSetsOptions, type SetPublisher } from './layer-sets.ts';
import { MergeThread, type SetMerger } from './merge-thread.ts';
import { SET_IMAGE_FILE, SET_RECORD_FILE, setDigest, setDirectory } from './set-record.ts';
import { ensureSet } from './write-set.ts';

const CONFIG = { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} };

async function* once(content: Buffer): AsyncGenerator<Buffer> {
  yield await Promise.resolve(content);
}

const layerOf = async ({ context }: TestPlace, name: string, sizeBytes = 10): Promise<string> => {
  const built: EnvironmentImage = await buildLayer(context, async ({ writer }) => {
    const root = newDirectory();
    const data = await writer.store(sizeBytes, once(Buffer.alloc(sizeBytes, name)));
    root.children.set(ByteString.fromText(name), { kind: 'file', metadata: defaultMetadata(0o644), data });
    return { root, config: CONFIG, architecture: 'amd64', source: { kind: 'recipe', name: 'test' } };
  });
  return built.layers[0] ?? '';
};

interface Bench extends AsyncDisposable {
  readonly place: TestPlace;
  readonly directory: string;
  readonly merger: SetMerger;
  /** How often the merger was asked. */
  readonly asked: number;
  readonly inUse: Set<string>;
  readonly letGone: string[];
  readonly logger: MemoryLogger;
  sets(options?: Partial<LayerSetsOptions>): Promise<LayerSets>;
  names(): Promise<string[]>;
}

const bench = async (): Promise<Bench> => {
  const place = await testPlace();
  const directory = join(place.path, 'sets');
  const draftsDirectory = join(place.path, 'drafts');
  const directories = { setsDirectory: directory, draftsDirectory, layersDirectory: place.context.layersDirectory };
  const logger = new MemoryLogger();
  const inUse = new Set<string>();
  const letGone: string[] = [];
  let asked = 0;
  const merger: SetMerger = {
    ensure: (layers, options = {}) => {
      asked += 1;
      return ensureSet(directories, layers, options);
    },
  };
  const publisher: SetPublisher = {
    publish: async (digest) => {
      await publisher.remove(digest);
      await rename(setDirectory(draftsDirectory, digest), setDirectory(directory, digest));
    },
    remove: (digest) => rm(setDirectory(directory, digest), { recursive: true, force: true }),
  };
  await mkdir(directory);
  return {
    place,
    directory,
    merger,
    get asked() {
      return asked;
    },
    inUse,
    letGone,
    logger,
    sets: async (options = {}) => {
      const letGo = (digest: string): Promise<boolean> => {
        letGone.push(digest);
        return Promise.resolve(!inUse.has(digest));
      };
      const sets = new LayerSets({ directory, draftsDirectory, merger, publisher, letGo, clock, logger, ...options });
      await sets.open();
      return sets;
    },
    names: async () => (await readdir(directory)).sort(),
    [Symbol.asyncDispose]: () => place[Symbol.asyncDispose](),
  };
};

const hexOf = (digest: string): string => digest.slice('sha256:'.length);

/** Acquires and lets go at once. */
const touch = async (sets: LayerSets, layers: readonly string[]): Promise<string> => {
  using held = await sets.acquire(layers);
  await sets.settled();
  return held.digest;
};

describe('sets of layers', () => {
  it('are named by their layers in their order', async () => {
    await using own = await bench();
    const [a, b] = [await layerOf(own.place, 'a'), await layerOf(own.place, 'b')];
    const sets = await own.sets();
    const digests = [await touch(sets, [a, b]), await touch(sets, [b, a])];
    expect(digests).toEqual([setDigest([a, b]), setDigest([b, a])]);
    expect(await own.names()).toEqual(digests.map(hexOf).sort());
    const directory = setDirectory(own.directory, setDigest([a, b]));
    expect(JSON.parse(await readFile(join(directory, SET_RECORD_FILE), 'utf8'))).toMatchObject({ layers: [a, b] });
    expect((await stat(directory)).mode & 0o777).toBe(0o755);
    expect((await stat(join(directory, SET_IMAGE_FILE))).mode & 0o777).toBe(0o644);
  });

  it('are merged once, however many want them at once, and found again by the next process', async () => {
    await using own = await bench();
    const layers = [await layerOf(own.place, 'a'), await layerOf(own.place, 'b')];
    const sets = await own.sets();
    expect(sets.has(layers)).toBe(false);
    await Promise.all(Array.from({ length: 20 }, () => touch(sets, layers)));
    expect([own.asked, sets.has(layers)]).toEqual([1, true]);
    const image = join(setDirectory(own.directory, setDigest(layers)), SET_IMAGE_FILE);
    const { ino } = await stat(image);
    const next = await own.sets();
    expect(next.size).toEqual({ sets: 1, bytes: (await stat(image)).size });
    await touch(next, layers);
    expect((await stat(image)).ino).toBe(ino);
  });

  it('go with a layer that they stand on, and are made again by whoever wants them after all', async () => {
    await using own = await bench();
    const [a, b, c] = [await layerOf(own.place, 'a'), await layerOf(own.place, 'b'), await layerOf(own.place, 'c')];
    const first = await own.sets();
    const [one, other] = [await touch(first, [a, b]), await touch(first, [c, b])];
    // A later process knows of them too.
    const sets = await own.sets();
    const { size: sizeBytes } = await stat(join(setDirectory(own.directory, one), SET_IMAGE_FILE));
    expect(sets.on(a)).toEqual([{ set: one, sizeBytes }]);
    expect(sets.on(b).map(({ set }) => set)).toEqual([one, other]);
    expect(await sets.leave(a)).toBe(true);
    expect(await own.names()).toEqual([hexOf(other)]);
    expect([sets.on(a), sets.has([a, b])]).toEqual([[], false]);
    expect(await touch(sets, [a, b])).toBe(one);
    {
      using _held = await sets.acquire([c, b]);
      expect(await sets.leave(c)).toBe(false);
    }
    own.inUse.add(other);
    expect(await sets.leave(c)).toBe(false);
    expect(await own.names()).toHaveLength(2);
    own.inUse.clear();
    const [left, again] = await Promise.all([sets.leave(b), touch(sets, [a, b])]);
    // One of them was wanted meanwhile: it is there, whichever came first.
    expect([typeof left, again]).toEqual(['boolean', one]);
    expect(await own.names()).toContain(hexOf(one));
  });

  it('are equal bytes wherever they are made', async () => {
    const made: Buffer[] = [];
    for (let turn = 0; turn < 2; turn++) {
      await using own = await bench();
      const layers = [await layerOf(own.place, 'a', 9000), await layerOf(own.place, 'b', 300_000)];
      await touch(await own.sets(), layers);
      made.push(await readFile(join(setDirectory(own.directory, setDigest(layers)), SET_IMAGE_FILE)));
    }
    expect(made[0]?.equals(made[1] ?? Buffer.alloc(0))).toBe(true);
  });

  it('need nothing of the data of their layers', async () => {
    await using own = await bench();
    const layers = [await layerOf(own.place, 'a', 9000), await layerOf(own.place, 'b', 300_000)];
    for (const layer of layers) {
      // Of full length, and nothing filled yet.
      const path = layerDataPath(own.place.context.layersDirectory, layer);
      const { size } = await stat(path);
      await truncate(path, 0);
      await truncate(path, size);
      await chmod(path, 0);
    }
    await touch(await own.sets(), layers);
    expect(await own.names()).toHaveLength(1);
  });

  const damages: Readonly<Record<string, (directory: string) => Promise<void>>> = {
    'without an image': (directory) => rm(join(directory, SET_IMAGE_FILE)),
    'with a byte of its image changed': async (directory) => {
      const path = join(directory, SET_IMAGE_FILE);
      const bytes = await readFile(path);
      bytes.writeUInt8(bytes.readUInt8(bytes.length - 20) ^ 1, bytes.length - 20);
      await writeFile(path, bytes);
    },
    'with a short image': (directory) => truncate(join(directory, SET_IMAGE_FILE), 4096),
    'without a record': (directory) => rm(join(directory, SET_RECORD_FILE)),
    'with half a record': (directory) => truncate(join(directory, SET_RECORD_FILE), 20),
    'of another version': (directory) => writeFile(join(directory, SET_RECORD_FILE), '{"version":0}'),
    'that is a file': async (directory) => {
      await rm(directory, { recursive: true });
      await writeFile(directory, '');
    },
    'that is gone': (directory) => rm(directory, { recursive: true }),
  };
  it.each(Object.entries(damages))('%s are made anew by the next process', async (_, damage) => {
    await using own = await bench();
    const layers = [await layerOf(own.place, 'a'), await layerOf(own.place, 'b')];
    const digest = await touch(await own.sets(), layers);
    const directory = setDirectory(own.directory, digest);
    const image = await readFile(join(directory, SET_IMAGE_FILE));
    await damage(directory);
    await touch(await own.sets(), layers);
    expect((await readFile(join(directory, SET_IMAGE_FILE))).equals(image)).toBe(true);
    expect(await own.names()).toEqual([hexOf(digest)]);
  });

  it('that turn out to be unusable are made anew once, for all who hold them', async () => {
    await using own = await bench();
    const layers = [await layerOf(own.place, 'a'), await layerOf(own.place, 'b')];
    const sets = await own.sets();
    const held = await Promise.all([sets.acquire(layers), sets.acquire(layers), sets.acquire(layers)]);
    const image = join(setDirectory(own.directory, setDigest(layers)), SET_IMAGE_FILE);
    await writeFile(image, 'nothing');
    await Promise.all(held.map((each) => each.renew()));
    expect(own.asked).toBe(2);
    expect((await stat(image)).size).toBeGreaterThan(4096);
    for (const each of held) each[Symbol.dispose]();
  });

  it('that nobody uses give way to new ones, the longest unused first', async () => {
    await using own = await bench();
    const layers = await Promise.all(Array.from({ length: 5 }, (_, index) => layerOf(own.place, `${index}`)));
    const pair = (one: number, other: number): string[] => [layers[one] ?? '', layers[other] ?? ''];
    const sets = await own.sets({ maxSets: 3 });
    const digests = [await touch(sets, pair(0, 1)), await touch(sets, pair(0, 2)), await touch(sets, pair(0, 3))];
    await touch(sets, pair(0, 1));
    const last = await touch(sets, pair(0, 4));
    expect(own.letGone).toEqual([digests[1]]);
    expect(await own.names()).toEqual([digests[0] ?? '', digests[2] ?? '', last].map(hexOf).sort());
    // What sandboxes stand on stays, and so does what is held by a create.
    own.inUse.add(digests[0] ?? '').add(last);
    using held = await sets.acquire(pair(0, 3));
    const more = await touch(sets, pair(1, 2));
    expect(await own.names()).toHaveLength(4);
    own.inUse.clear();
    await touch(sets, pair(1, 3));
    expect(await own.names()).toEqual([held.digest, more, setDigest(pair(1, 3))].map(hexOf).sort());
    expect(sets.size.sets).toBe(3);
  });

  it('keep to a number of bytes', async () => {
    await using own = await bench();
    const layers = await Promise.all(Array.from({ length: 4 }, (_, index) => layerOf(own.place, `${index}`)));
    const sets = await own.sets({ maxBytes: 20_000 });
    for (const [index, layer] of layers.entries()) await touch(sets, [layer, layers[(index + 1) % 4] ?? '']);
    expect(sets.size.bytes).toBeLessThanOrEqual(20_000);
    expect(sets.size.sets).toBeGreaterThan(0);
  });

  it('are put aside in the order of their making by the next process', async () => {
    await using own = await bench();
    const layers = await Promise.all(Array.from({ length: 4 }, (_, index) => layerOf(own.place, `${index}`)));
    const sets = await own.sets();
    const digests: string[] = [];
    for (const [index, layer] of layers.entries()) {
      const digest = await touch(sets, [layer, layers[(index + 1) % 4] ?? '']);
      await utimes(join(setDirectory(own.directory, digest), SET_RECORD_FILE), 9 - index, 9 - index);
      digests.push(digest);
    }
    await touch(await own.sets({ maxSets: 3 }), [layers[0] ?? '', layers[2] ?? '']);
    expect(own.letGone).toEqual([digests[3], digests[2]]);
  });

  it('are wanted again while they leave, and come back', async () => {
    await using own = await bench();
    const [a, b, c] = await Promise.all(['a', 'b', 'c'].map((name) => layerOf(own.place, name)));
    const gate = Promise.withResolvers<boolean>();
    const sets = await own.sets({ maxSets: 1, letGo: () => gate.promise });
    const first = [a ?? '', b ?? ''];
    using _first = await sets.acquire(first);
    _first[Symbol.dispose]();
    using _other = await sets.acquire([b ?? '', c ?? '']);
    const again = sets.acquire(first);
    gate.resolve(true);
    using held = await again;
    await sets.settled();
    expect((await stat(join(setDirectory(own.directory, held.digest), SET_IMAGE_FILE))).size).toBeGreaterThan(0);
  });

  it('whose layers are missing or damaged are refused by the name of the layer, and leave nothing', async () => {
    await using own = await bench();
    const { layersDirectory } = own.place.context;
    const good = await layerOf(own.place, 'a');
    const missing = `sha256:${'e'.repeat(64)}`;
    const damaged = await layerOf(own.place, 'b');
    const bytes = await readFile(layerImagePath(layersDirectory, damaged));
    bytes.writeUInt8(bytes.readUInt8(5000) ^ 0xff, 5000);
    await writeFile(layerImagePath(layersDirectory, damaged), bytes);
    const short = await layerOf(own.place, 'c');
    await truncate(layerImagePath(layersDirectory, short), 4096);
    const sets = await own.sets();
    for (const layer of [missing, damaged, short]) {
      for (let turn = 0; turn < 2; turn++) {
        await expect(sets.acquire([layer, good])).rejects.toMatchObject({
          code: 'environment_broken',
          details: { layer },
        });
      }
    }
    expect(await own.names()).toEqual([]);
    expect(sets.size.sets).toBe(0);
  });

  it('are left by those who wait no longer, and made all the same', async () => {
    await using own = await bench();
    const layers = [await layerOf(own.place, 'a'), await layerOf(own.place, 'b')];
    const sets = await own.sets();
    const controller = new AbortController();
    const left = sets.acquire(layers, controller.signal);
    const other = sets.acquire(layers);
    controller.abort();
    await expect(left).rejects.toMatchObject({ code: 'cancelled' });
    using held = await other;
    expect(await own.names()).toEqual([hexOf(held.digest)]);
    expect(own.asked).toBe(1);
  });

  it('are counted when they are there, also when nobody waits for them while others give way', async () => {
    await using own = await bench();
    const [a = '', b = '', c = ''] = await Promise.all(['a', 'b', 'c'].map((name) => layerOf(own.place, name)));
    const gate = Promise.withResolvers<undefined>();
    const slow = [a, b];
    const merger: SetMerger = {
      ensure: async (layers, options) => {
        if (layers === slow) await gate.promise;
        return await own.merger.ensure(layers, options);
      },
    };
    const sets = await own.sets({ maxSets: 1, merger });
    const controller = new AbortController();
    const left = sets.acquire(slow, controller.signal);
    controller.abort();
    await expect(left).rejects.toMatchObject({ code: 'cancelled' });
    await touch(sets, [b, c]);
    gate.resolve(undefined);
    using held = await sets.acquire(slow);
    await sets.settled();
    expect(await own.names()).toEqual([hexOf(held.digest)]);
    expect([own.asked, sets.size.sets]).toEqual([2, 1]);
  });

  it('are counted as long as they are there, also when they are damaged and cannot be made anew', async () => {
    await using own = await bench();
    const layers = [await layerOf(own.place, 'a'), await layerOf(own.place, 'b')];
    const digest = await touch(await own.sets(), layers);
    await truncate(join(setDirectory(own.directory, digest), SET_IMAGE_FILE), 4096);
    const path = layerImagePath(own.place.context.layersDirectory, layers[0] ?? '');
    const whole = await readFile(path);
    await truncate(path, 4096);
    const sets = await own.sets();
    await expect(sets.acquire(layers)).rejects.toMatchObject({ code: 'environment_broken' });
    expect([await own.names(), sets.size.sets, sets.has(layers)]).toEqual([[hexOf(digest)], 1, false]);
    await writeFile(path, whole);
    await touch(sets, layers);
    expect([sets.size.sets, sets.has(layers)]).toEqual([1, true]);
  });
});

describe('the thread that merges', () => {
  it('makes sets, and passes on what is wrong', async () => {
    await using own = await bench();
    const { layersDirectory } = own.place.context;
    const setsDirectory = own.directory;
    await using thread = await MergeThread.start({ setsDirectory, draftsDirectory: setsDirectory, layersDirectory });
    const layers = [await layerOf(own.place, 'a'), await layerOf(own.place, 'b')];
    const [made, again] = await Promise.all([thread.ensure(layers), thread.ensure(layers)]);
    expect(again).toEqual({ record: made.record, isNew: false });
    expect(made.isNew).toBe(true);
    expect(made.record.digest).toBe(setDigest(layers));
    const missing = `sha256:${'e'.repeat(64)}`;
    const failure: unknown = await thread.ensure([missing, ...layers]).catch((error: unknown) => error);
    expect(PlatformError.is(failure) && [failure.code, failure.details['layer']]).toEqual([
      'environment_broken',
      missing,
    ]);
  });

  it('is started again when it has died, and says so when it cannot be', async () => {
    await using own = await bench();
    // One that dies of every merge.
    const path = join(own.place.path, 'worker.mjs');
    const source = `
      import { parentPort } from 'node:worker_threads';
      parentPort.on('message', () => process.exit(1));
      parentPort.postMessage({ type: 'ready' });
    `;
    await writeFile(path, source);
    let lost = 0;
    await using thread = await MergeThread.start(
      {
        setsDirectory: own.directory,
        draftsDirectory: own.directory,
        layersDirectory: own.place.context.layersDirectory,
      },
      { module: pathToFileURL(path), onLost: () => (lost += 1) },
    );
    for (let turn = 0; turn < 2; turn++) await expect(thread.ensure([])).rejects.toMatchObject({ code: 'internal' });
    expect(lost).toBe(0);
    await rm(path);
    await expect(thread.ensure([])).rejects.toMatchObject({ code: 'internal' });
    expect(lost).toBe(1);
  });
});
