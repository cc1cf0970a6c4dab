import { PlatformError } from '@dsec/contract';
import { SystemClock } from '@dsec/kit';
import { FrameType, INITIAL_WINDOW } from '@dsec/wire';
import { expect, test } from 'vitest';

import { type Link, link, socketPair } from '../../tests/link.ts';
import { quiet, RawPeer, until } from '../../tests/raw-peer.ts';
import { WireClient } from './client.ts';
import { relay, type RelayOptions, type RelayOutcome } from './relay.ts';
import type { WireHandler } from './server.ts';
import type { WireItem, WireStream } from './stream-api.ts';

interface Chain extends AsyncDisposable {
  /** client - relay */
  readonly near: Link;
  /** relay - server */
  readonly far: Link;
  readonly client: WireClient;
  readonly outcomes: RelayOutcome[];
}

interface ChainOptions extends RelayOptions {
  /** What happens between the arrival of a stream and its relay. */
  readonly before?: () => Promise<void>;
}

const chain = async (handler: WireHandler, options: ChainOptions = {}): Promise<Chain> => {
  const outcomes: RelayOutcome[] = [];
  const onClose = (outcome: RelayOutcome): void => void outcomes.push(outcome);
  const far = await link(handler);
  const near = await link((method, params, stream) => {
    const join = (): Promise<RelayOutcome> => relay(stream, far.client.open(method, params), { ...options, onClose });
    if (options.before === undefined) void join();
    else void options.before().then(join);
  });
  return {
    near,
    far,
    client: near.client,
    outcomes,
    async [Symbol.asyncDispose]() {
      await near[Symbol.asyncDispose]();
      await far[Symbol.asyncDispose]();
    },
  };
};

const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (PlatformError.is(error) ? error.code : error),
  );

const bytesOf = async (stream: AsyncIterable<WireItem>): Promise<Buffer> => {
  const chunks: Buffer[] = [];
  for await (const item of stream) if (item.type === 'data') chunks.push(item.bytes);
  return Buffer.concat(chunks);
};

const pattern = (length: number): Buffer => {
  const bytes = Buffer.alloc(length);
  for (let at = 0; at < length; at += 1) bytes[at] = (at * 17 + (at >> 9)) & 0xff;
  return bytes;
};

const echo: WireHandler = async (_method, params, stream) => {
  let total = 0;
  await stream.message({ started: params });
  for await (const item of stream) {
    if (item.type === 'end') break;
    if (item.type !== 'data') continue;
    total += item.bytes.length;
    await stream.write(item.bytes, item.channel + 1);
  }
  stream.end();
  return { total };
};

test('a relayed stream is what it would be without the relay', async () => {
  await using hop = await chain(echo);
  const stream = hop.client.open('echo', { a: 1 });
  await stream.write(Buffer.from('hello'), 4);
  stream.end();
  const items: WireItem[] = [];
  for await (const item of stream) items.push(item);
  expect(items).toEqual([
    { type: 'message', value: { started: { a: 1 } } },
    { type: 'data', channel: 5, bytes: Buffer.from('hello') },
    { type: 'end' },
  ]);
  await expect(stream.result).resolves.toEqual({ total: 5 });
  expect(hop.outcomes).toEqual([{ end: 'closed' }]);
  expect([hop.near, hop.far].map(({ client, server }) => client.liveStreams + server.liveStreams)).toEqual([0, 0]);
});

test('large transfers cross both ways, on many streams at once', async () => {
  await using hop = await chain(echo);
  const run = async (length: number): Promise<void> => {
    const stream = hop.client.open('echo', {});
    const sent = pattern(length);
    const received = bytesOf(stream);
    await stream.write(sent);
    stream.end();
    if (!(await received).equals(sent)) throw new Error(`other bytes of ${length}`);
  };
  await Promise.all(Array.from({ length: 20 }, (_, index) => run(1 + index * 123_457)));
  expect(hop.outcomes).toHaveLength(20);
});

test('errors cross as they are, and their code is told', async () => {
  await using hop = await chain(async () => {
    throw new PlatformError('exec_not_found', 'There is no exec e1.', { details: { execId: 'e1' } });
  });
  const error = await hop.client.call('exec.get', {}).catch((reason: unknown) => reason);
  expect(PlatformError.is(error) && error.toWire()).toEqual({
    code: 'exec_not_found',
    message: 'There is no exec e1.',
    details: { execId: 'e1' },
  });
  expect(hop.outcomes).toEqual([{ end: 'closed', code: 'exec_not_found' }]);
});

test('what came in before the two were joined goes first', async () => {
  const gate = Promise.withResolvers<void>();
  await using hop = await chain(echo, { before: () => gate.promise });
  const stream = hop.client.open('echo', {});
  const sent = pattern(200_000);
  await stream.write(sent);
  stream.end();
  await until(() => hop.near.server.liveStreams === 1, 'the stream arrives');
  await quiet();
  gate.resolve();
  expect((await bytesOf(stream)).equals(sent)).toBe(true);
});

test('a far stream that ended before the two were joined ends the near one', async () => {
  await using far = await link(async (method, _params, stream) => {
    await stream.write(Buffer.from('early'));
    if (method === 'bad') throw new PlatformError('disk_full', 'No room.');
    return { early: true };
  });
  await using near = await link(async (method, params, stream) => {
    const opened = far.client.open(method, params);
    await opened.result.catch(() => undefined);
    await relay(stream, opened);
  });
  const good = near.client.open('good', {});
  expect((await bytesOf(good)).toString()).toBe('early');
  await expect(good.result).resolves.toEqual({ early: true });
  expect(await codeOf(near.client.call('bad', {}))).toBe('disk_full');
});

test('a slow reader behind a relay holds back the far writer, and the relay holds at most its window', async () => {
  let written = 0;
  const chunk = Buffer.alloc(10_000, 1);
  await using hop = await chain(async (method, _params, stream) => {
    if (method === 'quick') return {};
    for (;;) {
      await stream.write(chunk);
      written += chunk.length;
    }
  });
  const slow = hop.client.open('slow', {});
  await until(() => written >= INITIAL_WINDOW - chunk.length, 'the writer fills the window');
  for (let call = 0; call < 50; call += 1) await hop.client.call('quick', {});
  expect(written).toBeLessThanOrEqual(INITIAL_WINDOW);
  let taken = 0;
  while (taken < 2_000_000) {
    const { value } = await slow.next();
    if (value?.type === 'data') taken += value.bytes.length;
  }
  expect(written).toBeGreaterThan(taken - chunk.length);
  expect(written).toBeLessThanOrEqual(taken + INITIAL_WINDOW);
  slow.reset();
});

test('a slow far reader holds back the near writer', async () => {
  const gate = Promise.withResolvers<void>();
  await using hop = await chain(async (_method, _params, stream) => {
    await gate.promise;
    const bytes = await bytesOf(untilEnd(stream));
    return { total: bytes.length };
  });
  const stream = hop.client.open('m', {});
  let written = 0;
  const writing = (async () => {
    for (let chunks = 0; chunks < 100; chunks += 1) {
      await stream.write(Buffer.alloc(10_000));
      written += 10_000;
    }
    stream.end();
  })();
  await until(() => written >= INITIAL_WINDOW - 10_000, 'the window fills');
  await quiet();
  expect(written).toBeLessThanOrEqual(INITIAL_WINDOW);
  gate.resolve();
  await writing;
  await expect(stream.result).resolves.toEqual({ total: 1_000_000 });
});

async function* untilEnd(stream: AsyncIterable<WireItem>): AsyncGenerator<WireItem> {
  for await (const item of stream) {
    if (item.type === 'end') return;
    yield item;
  }
}

test('a reset goes through', async () => {
  let aborted = false;
  await using hop = await chain((_method, _params, stream) => {
    stream.signal.addEventListener('abort', () => {
      aborted = true;
    });
  });
  const stream = hop.client.open('m', {});
  await until(() => hop.far.server.liveStreams === 1, 'the stream arrives');
  stream.reset();
  await until(() => aborted, 'the far handler is told');
  expect(hop.outcomes).toEqual([{ end: 'reset' }]);
});

test('the death of the near client resets the far stream; others go on', async () => {
  await using hop = await chain(echo);
  hop.client.open('echo', {});
  await until(() => hop.far.server.liveStreams === 1, 'the stream arrives');
  hop.client.fail(new PlatformError('internal', 'dies'));
  await until(() => hop.far.server.liveStreams === 0, 'the far stream ends');
  expect(hop.outcomes).toEqual([{ end: 'reset' }]);
  expect(hop.far.client.isClosed).toBe(false);
});

test('the death of the far server is told as the relay says', async () => {
  await using hop = await chain(echo, {
    lost: (cause) => new PlatformError('sandbox_failed', 'The sandbox died.', { cause }),
  });
  const stream = hop.client.open('echo', {});
  await stream.next();
  hop.far.server.fail(new PlatformError('internal', 'dies'));
  expect(await codeOf(stream.result)).toBe('sandbox_failed');
  expect(hop.outcomes).toMatchObject([{ end: 'lost', error: { code: 'connection_lost' } }]);
  expect(hop.client.isClosed).toBe(false);
});

test('a relay whose far stream is reset here, or whose near stream is answered here, ends both', async () => {
  const parts: { near: { fail(error: PlatformError): void }; far: WireStream; end: Promise<RelayOutcome> }[] = [];
  await using far = await link(echo);
  await using near = await link((method, params, stream) => {
    const opened = far.client.open(method, params);
    parts.push({ near: stream, far: opened, end: relay(stream, opened) });
  });
  const first = near.client.open('echo', {});
  const second = near.client.open('echo', {});
  await until(() => parts.length === 2, 'both arrive');
  parts[0]?.far.reset(new PlatformError('sandbox_ended', 'Stopped.'));
  expect(await codeOf(first.result)).toBe('sandbox_ended');
  parts[1]?.near.fail(new PlatformError('sandbox_ended', 'Stopped.'));
  expect(await codeOf(second.result)).toBe('sandbox_ended');
  expect((await Promise.all(parts.map(({ end }) => end))).map(({ end }) => end)).toEqual(['lost', 'reset']);
  await until(() => far.server.liveStreams === 0, 'both far streams end');
});

test('a stream that is in use cannot be relayed', async () => {
  const results: unknown[] = [];
  await using far = await link(echo);
  await using near = await link(async (method, params, stream) => {
    const opened = far.client.open(method, params);
    await opened.next();
    try {
      await relay(stream, opened);
    } catch (error) {
      results.push(PlatformError.is(error) ? error.code : error);
      opened.reset();
      throw error;
    }
  });
  expect(await codeOf(near.client.call('echo', {}))).toBe('internal');
  expect(results).toEqual(['internal']);
});

/** A relay between a good client and a far end that the test drives. */
const hostile = async (): Promise<
  { near: Link; peer: RawPeer; far: WireClient; outcomes: RelayOutcome[] } & AsyncDisposable
> => {
  const pair = await socketPair();
  const outcomes: RelayOutcome[] = [];
  const far = WireClient.connect(pair.near, { role: 'relay', clock: new SystemClock() });
  const peer = new RawPeer(pair.far);
  const near = await link((method, params, stream) => {
    void relay(stream, far.open(method, params), { onClose: (outcome) => outcomes.push(outcome) });
  });
  return {
    near,
    peer,
    far,
    outcomes,
    async [Symbol.asyncDispose]() {
      await near[Symbol.asyncDispose]();
      await far.close();
      await pair[Symbol.asyncDispose]();
    },
  };
};

test('JSON of a far server that does not parse ends its own stream at the client and nothing else', async () => {
  await using hop = await hostile();
  const streams = [1, 2, 3].map(() => hop.near.client.open('m', {}));
  await hop.peer.next(FrameType.open);
  await until(() => hop.far.liveStreams === 3, 'the streams arrive');
  hop.peer.send(FrameType.message, 1, '{"a":');
  hop.peer.send(FrameType.close, 2, '{"error":{"code":7}}');
  hop.peer.send(FrameType.close, 3, { ok: 3 });
  expect(await codeOf((async () => await streams[0]?.next())())).toBe('protocol_error');
  expect(await codeOf(streams[1]?.result ?? Promise.resolve())).toBe('protocol_error');
  await expect(streams[2]?.result).resolves.toBe(3);
  await until(() => hop.outcomes.length === 3, 'the relays end');
  expect(hop.outcomes).toContainEqual({ end: 'closed', code: 'protocol_error' });
  expect(hop.near.client.isClosed).toBe(false);
});

test('a far server that breaks the protocol loses its own connection only', async () => {
  for (const attack of [
    (peer: RawPeer) => {
      for (let frames = 0; frames < 5; frames += 1) peer.send(FrameType.data, 1, Buffer.alloc(65_536));
    },
    (peer: RawPeer) => {
      peer.send(FrameType.end, 1);
      peer.send(FrameType.data, 1, 'x');
    },
    (peer: RawPeer) => peer.send(FrameType.window, 1, Buffer.from('ffffffff', 'hex')),
    (peer: RawPeer) => peer.send(FrameType.data, 9, 'x'),
    (peer: RawPeer) => peer.send(77, 1, 'x'),
  ]) {
    await using hop = await hostile();
    const stream = hop.near.client.open('m', {});
    await hop.peer.next(FrameType.open);
    attack(hop.peer);
    expect(await codeOf(stream.result)).toBe('protocol_error');
    expect(hop.far.isClosed).toBe(true);
    expect(hop.near.client.isClosed).toBe(false);
    expect(hop.outcomes).toMatchObject([{ end: 'lost' }]);
  }
});

test('a far server cannot make the relay hold more than a window, whatever it grants', async () => {
  await using hop = await hostile();
  const stream = hop.near.client.open('m', {});
  await hop.peer.next(FrameType.open);
  const grant = Buffer.alloc(4);
  grant.writeUInt32LE(10_000_000);
  hop.peer.send(FrameType.window, 1, grant);
  hop.peer.socket.pause();
  let written = 0;
  const writing = (async () => {
    for (;;) {
      await stream.write(Buffer.alloc(10_000));
      written += 10_000;
    }
  })();
  const end = codeOf(writing);
  await until(() => written >= INITIAL_WINDOW - 10_000, 'the window fills');
  await quiet();
  expect(written).toBeLessThanOrEqual(INITIAL_WINDOW);
  stream.reset();
  expect(await end).toBe('cancelled');
  hop.peer.socket.resume();
});
