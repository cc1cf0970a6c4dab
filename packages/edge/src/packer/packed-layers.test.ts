import { PlatformError } from '@dsec/contract';
import { type BuildContext, buildLayer } from '@dsec/environment';
import { ByteString, defaultMetadata, newDirectory } from '@dsec/erofs';
import { ManualClock, SystemNetwork, SystemRandom, type Listener } from '@dsec/kit';
import { DaemonLink, type JsonObject, PublisherClient, serve } from '@dsec/native-link';
import { cp, mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { PackedLayers } from './packed-layers.ts';

const CONFIG = { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} };

let directory = '';
let listener: Listener;
let calls: JsonObject[];
let answer: (params: JsonObject) => Promise<void>;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-packed-'));
  await mkdir(join(directory, 'layers'));
  calls = [];
  answer = publish;
  listener = await new SystemNetwork().listenUnix(join(directory, 'publisher.sock'), (connection) => {
    const handle = async (method: string, params: JsonObject): Promise<object> => {
      calls.push({ method, ...params });
      await answer(params);
      return {};
    };
    serve(connection, handle, {
      role: 'publisher',
      clock: new ManualClock(),
      onFault: (fault) => expect.unreachable(String(fault)),
    });
  });
});
afterEach(async () => {
  await listener.close();
  await rm(directory, { recursive: true });
});

const hexOf = (layer: unknown): string => String(layer).slice('sha256:'.length);

/** Copies, as the publisher does. */
const publish = async ({ layer }: JsonObject): Promise<void> => {
  const hex = hexOf(layer);
  await cp(join(directory, 'packed', hex), join(directory, 'layers', hex), { recursive: true });
};

async function packer(): Promise<BuildContext> {
  const parts = { clock: new ManualClock(), random: new SystemRandom(), network: new SystemNetwork() };
  const handover = new PackedLayers(
    join(directory, 'packed'),
    new DaemonLink({
      ...parts,
      socket: join(directory, 'publisher.sock'),
      name: 'publisher',
      role: 'packer',
      client: (wire) => new PublisherClient(wire),
    }),
  );
  await handover.prepare();
  return { ...parts, layersDirectory: join(directory, 'layers'), handover };
}

const build = async (context: BuildContext, text = 'content'): Promise<string> => {
  const image = await buildLayer(context, async ({ writer }) => {
    const root = newDirectory();
    const content = Buffer.from(text);
    const data = await writer.store(content.length, once(content));
    root.children.set(ByteString.fromText('file'), { kind: 'file', metadata: defaultMetadata(0o644), data });
    return { root, config: CONFIG, architecture: 'amd64', source: { kind: 'changes', name: 'test' } };
  });
  return image.layers[0] ?? '';
};

async function* once(content: Buffer): AsyncGenerator<Buffer> {
  yield await Promise.resolve(content);
}

test('a layer that is packed is handed to the publisher, and packed again handed to nobody', async () => {
  const context = await packer();
  const layer = await build(context);
  expect(calls).toEqual([{ method: 'layer.publish', layer, form: 'packed' }]);
  expect(await readdir(join(directory, 'layers', hexOf(layer)))).toEqual(['data', 'layer.json', 'rootfs.erofs']);
  expect(await readdir(join(directory, 'packed'))).toEqual([]);
  expect(await build(context)).toBe(layer);
  expect(calls).toHaveLength(1);
});

test('packs of the same at the same time hand over one', async () => {
  const context = await packer();
  const gate = Promise.withResolvers<undefined>();
  answer = async (params) => {
    await gate.promise;
    await publish(params);
  };
  const packs = [build(context), build(context), build(context)];
  await expect.poll(() => calls.length).toBe(1);
  gate.resolve(undefined);
  expect(new Set(await Promise.all(packs)).size).toBe(1);
  expect(calls).toHaveLength(1);
  expect(await readdir(join(directory, 'packed'))).toEqual([]);
});

test('what the publisher refuses is told, and leaves nothing', async () => {
  const context = await packer();
  answer = () => Promise.reject(new PlatformError('layer_corrupt', 'it is not the layer'));
  await expect(build(context)).rejects.toMatchObject({ code: 'layer_corrupt' });
  expect(await readdir(join(directory, 'packed'))).toEqual([]);
  answer = publish;
  await build(context);
});

test('who waits no longer leaves the handing over to its end', async () => {
  const controller = new AbortController();
  const context = { ...(await packer()), signal: controller.signal };
  const gate = Promise.withResolvers<undefined>();
  answer = async (params) => {
    await gate.promise;
    await publish(params);
  };
  const pack = build(context);
  await expect.poll(() => calls.length).toBe(1);
  controller.abort();
  await expect(pack).rejects.toMatchObject({ code: 'cancelled' });
  gate.resolve(undefined);
  await expect.poll(() => readdir(join(directory, 'packed'))).toEqual([]);
  expect(await readdir(join(directory, 'layers'))).toHaveLength(1);
});
