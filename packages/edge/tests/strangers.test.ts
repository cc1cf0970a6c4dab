/** Who asks an edge without being an apiserver: what it asked for is told, and what apiservers ask for is not. */
import { createHash } from 'node:crypto';
import type { StrangerOperation } from '@dsec/contract';
import { ManualClock, MemoryLogger } from '@dsec/kit';
import type { WireClient, WireStream } from '@dsec/native-link';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Strangers } from '../src/strangers.ts';
import { connectTo, create, EdgeFixture, TemporaryDirectory, waitFor } from './edge-fixture.ts';
import { LauncherDouble } from './launcher-double.ts';

const SECRET = 'of the apiserver alone';
const apiserverKeySha256 = createHash('sha256').update(SECRET).digest('hex');

describe('an edge that knows its apiserver', () => {
  let directory: TemporaryDirectory;
  let launcher: LauncherDouble;
  let fixture: EdgeFixture;
  let apiserver: WireClient;
  const told: StrangerOperation[] = [];

  beforeEach(async () => {
    told.length = 0;
    directory = await TemporaryDirectory.make();
    launcher = await new LauncherDouble(directory.path).start();
    fixture = await EdgeFixture.start({
      launcherSocket: launcher.socket,
      sandboxSockets: launcher.sandboxSockets,
      directory: directory.path,
      config: { apiserverKeySha256 },
    });
    apiserver = await connectTo(`${directory.path}/edge.sock`);
    await apiserver.call('edge.prove', { secret: SECRET });
  });
  afterEach(async () => {
    await apiserver.close();
    await fixture[Symbol.asyncDispose]();
    await launcher[Symbol.asyncDispose]();
    await directory[Symbol.asyncDispose]();
  });

  const listen = (): WireStream => {
    const stream = apiserver.open('edge.strangers', {});
    const read = async (): Promise<void> => {
      for await (const item of stream)
        if (item.type === 'message') told.push(item.value as unknown as StrangerOperation);
    };
    read().catch(() => undefined);
    return stream;
  };

  it('tells what was asked on a connection that proved nothing, with what it said of itself', async () => {
    // Before anybody listens, too.
    const { sandboxId } = await create(fixture.client, { keyId: 'admin' });
    listen();
    await fixture.client.call('file.stat', { sandboxId, path: '/etc/shadow' });
    await fixture.client.call('sandbox.fly', {}).catch(() => undefined);
    await waitFor(() => told.length === 3, 'three operations');
    expect(told).toMatchObject([
      { method: 'sandbox.create', claimedKeyId: 'admin', missed: 0 },
      { method: 'file.stat', sandboxId },
      { method: 'sandbox.fly' },
    ]);
    const logged = fixture.logger.records.filter(({ event }) => event === 'edge.stranger');
    expect(logged.map(({ level }) => level)).toEqual(['error', 'error', 'error']);
  });

  it('tells nothing of its apiserver', async () => {
    const stream = listen();
    const { sandboxId } = await create(apiserver);
    await apiserver.call('sandbox.stop', { sandboxId });
    // What came before it on the connection has been looked at.
    await fixture.client.call('edge.info', {});
    await waitFor(() => told.length > 0, 'the stranger');
    expect(told.map(({ method }) => method)).toEqual(['edge.info']);
    stream.reset();
  });

  it('refuses a wrong proof, tells of it, and lets strangers hear nothing', async () => {
    for (const secret of ['', 'x', apiserverKeySha256, `${SECRET} `]) {
      await expect(fixture.client.call('edge.prove', { secret })).rejects.toMatchObject({ code: 'permission_denied' });
    }
    await expect(fixture.client.call('edge.strangers', {})).rejects.toMatchObject({ code: 'permission_denied' });
    expect(fixture.logger.records.filter(({ event }) => event === 'edge.stranger').length).toBeGreaterThanOrEqual(4);
    listen();
    await fixture.client.call('edge.info', {});
    await waitFor(() => told.some(({ method }) => method === 'edge.info'), 'the stranger is still one');
  });
});

it('a stranger that asks without end is told within a rate, and counted', async () => {
  const clock = new ManualClock();
  const logger = new MemoryLogger();
  using strangers = new Strangers({ proofSha256: apiserverKeySha256, clock, logger });
  for (let index = 0; index < 1000; index++) strangers.note('x'.repeat(10_000), { sandboxId: 'y'.repeat(10_000) });
  expect(logger.records).toHaveLength(64);
  expect(JSON.stringify(logger.records).length).toBeLessThan(64 * 400);
  await clock.advance(60_000);
  expect(logger.records.at(-1)?.fields).toMatchObject({ method: 'more', missed: 1000 - 64 });
  expect(clock.pendingTimers).toBe(0);
  strangers.note('sandbox.stop', {});
  expect(logger.records.at(-1)?.fields).toMatchObject({ method: 'sandbox.stop', missed: 0 });
});
