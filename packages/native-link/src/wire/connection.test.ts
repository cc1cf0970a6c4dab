import { PlatformError } from '@dsec/contract';
import { connectionPair, ManualClock } from '@dsec/kit';
import { INITIAL_WINDOW, MAX_DATA } from '@dsec/wire';
import { expect, test } from 'vitest';

import { link } from '../../tests/link.ts';
import { until } from '../../tests/raw-peer.ts';
import { WireClient } from './client.ts';
import type { WireHandler } from './server.ts';
import type { WireItem, WireServerStream } from './stream-api.ts';

const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (PlatformError.is(error) ? error.code : error),
  );

const collect = async (stream: AsyncIterable<WireItem>): Promise<WireItem[]> => {
  const items: WireItem[] = [];
  for await (const item of stream) items.push(item);
  return items;
};

const bytesOf = async (stream: AsyncIterable<WireItem>): Promise<Buffer> => {
  const chunks: Buffer[] = [];
  for await (const item of stream) if (item.type === 'data') chunks.push(item.bytes);
  return Buffer.concat(chunks);
};

/** Sends back what comes in, on channel 1. */
const echo: WireHandler = async (_method, _params, stream) => {
  let total = 0;
  for await (const item of stream) {
    if (item.type === 'end') break;
    if (item.type === 'message') await stream.message(item.value);
    if (item.type === 'data') {
      total += item.bytes.length;
      await stream.write(item.bytes, 1);
    }
  }
  return { total };
};

test('a call gives the result that the handler returns', async () => {
  await using pair = await link(async (method, params) => ({ method, params }));
  await expect(pair.client.call('info', { a: [1, 'é'] })).resolves.toEqual({ method: 'info', params: { a: [1, 'é'] } });
  expect(pair.client.peerRole).toBe('server');
  expect(pair.server.peerRole).toBe('client');
  expect(pair.client.liveStreams + pair.server.liveStreams).toBe(0);
});

test('an error crosses with code, message and details; a fault crosses as internal and is told', async () => {
  await using pair = await link(async (method) => {
    if (method === 'fault') throw new TypeError('secret');
    throw new PlatformError('file_not_found', 'There is no /x.', { details: { path: '/x', tried: ['a', 'b'] } });
  });
  const error = await pair.client.call('file.stat', {}).catch((reason: unknown) => reason);
  expect(PlatformError.is(error) && error.toWire()).toEqual({
    code: 'file_not_found',
    message: 'There is no /x.',
    details: { path: '/x', tried: ['a', 'b'] },
  });
  const fault = await pair.client.call('fault', {}).catch((reason: unknown) => reason);
  expect(PlatformError.is(fault) && fault.code).toBe('internal');
  expect(String(fault)).not.toContain('secret');
  expect(pair.faults).toEqual([new TypeError('secret')]);
});

test('a large result crosses; one that is larger than a frame may be is internal', async () => {
  await using pair = await link(async (method) => 'x'.repeat(method === 'large' ? 4_000_000 : 5_000_000));
  expect((await pair.client.call('large', {})) as string).toHaveLength(4_000_000);
  expect(await codeOf(pair.client.call('larger', {}))).toBe('internal');
  expect(await codeOf(pair.client.call('large', { text: 'x'.repeat(5_000_000) }))).toBe('request_too_large');
});

test('data, messages and end cross in order, both ways', async () => {
  await using pair = await link(echo);
  const stream = pair.client.open('echo', {});
  await stream.message({ first: 1 });
  await stream.write(Buffer.from('one'), 0);
  await stream.message({ second: 2 });
  await stream.write(Buffer.from('two'), 7);
  stream.end();
  expect(await collect(stream)).toEqual([
    { type: 'message', value: { first: 1 } },
    { type: 'data', channel: 1, bytes: Buffer.from('one') },
    { type: 'message', value: { second: 2 } },
    { type: 'data', channel: 1, bytes: Buffer.from('two') },
  ]);
  await expect(stream.result).resolves.toEqual({ total: 6 });
});

test('a large transfer arrives whole, through the credit of both sides', async () => {
  await using pair = await link(echo);
  const stream = pair.client.open('echo', {});
  const sent = Buffer.alloc(7_654_321);
  for (let at = 0; at < sent.length; at += 1) sent[at] = (at * 31 + (at >> 11)) & 0xff;
  const received = bytesOf(stream);
  await stream.write(sent);
  stream.end();
  expect((await received).equals(sent)).toBe(true);
  await expect(stream.result).resolves.toEqual({ total: sent.length });
});

test('a reader that takes nothing holds back the writer of its stream and nobody else', async () => {
  let written = 0;
  const chunk = Buffer.alloc(10_000, 1);
  await using pair = await link(async (method, _params, stream) => {
    if (method === 'quick') return {};
    for (;;) {
      await stream.write(chunk);
      written += chunk.length;
    }
  });
  const slow = pair.client.open('slow', {});
  await until(() => written >= INITIAL_WINDOW - chunk.length, 'the writer fills the window');
  for (let call = 0; call < 100; call += 1) await pair.client.call('quick', {});
  expect(written).toBeLessThanOrEqual(INITIAL_WINDOW);
  const before = written;
  let taken = 0;
  while (taken < INITIAL_WINDOW / 2) {
    const { value } = await slow.next();
    if (value?.type === 'data') taken += value.bytes.length;
  }
  await until(() => written >= before + INITIAL_WINDOW / 2 - 2 * chunk.length, 'the writer goes on');
  expect(written).toBeLessThanOrEqual(taken + INITIAL_WINDOW);
  slow.reset();
  await until(() => pair.server.liveStreams === 0, 'the server drops the stream');
});

test('many tiny frames cost credit too', async () => {
  let written = 0;
  await using pair = await link(async (method, _params, stream) => {
    if (method === 'quick') return {};
    for (;;) {
      await stream.write(Buffer.from('x'));
      written += 1;
    }
  });
  const stream = pair.client.open('tiny', {});
  await until(() => written >= INITIAL_WINDOW / 64, 'the writer uses its credit up');
  await pair.client.call('quick', {});
  expect(written).toBe(INITIAL_WINDOW / 64);
  stream.reset();
});

test('reset aborts the signal of the handler and rejects its writes; nothing is answered', async () => {
  const seen: unknown[] = [];
  const handling = Promise.withResolvers<void>();
  await using pair = await link(async (_method, _params, stream) => {
    stream.signal.addEventListener('abort', () => seen.push('aborted'));
    try {
      for (;;) await stream.write(Buffer.alloc(100_000));
    } catch (error) {
      seen.push(PlatformError.is(error) ? error.code : error);
      handling.resolve();
      throw error;
    }
  });
  const stream = pair.client.open('m', {});
  await stream.next();
  stream.reset();
  await handling.promise;
  expect(new Set(seen)).toEqual(new Set(['aborted', 'cancelled']));
  expect(await codeOf(stream.result)).toBe('cancelled');
  expect(await codeOf(stream.next())).toBe('cancelled');
  expect(await codeOf(stream.write(Buffer.from('x')))).toBe('cancelled');
});

test('a signal or a time limit ends a call on both sides', async () => {
  const clock = new ManualClock();
  let aborted = 0;
  await using pair = await link(
    (_method, _params, stream) => {
      stream.signal.addEventListener('abort', () => {
        aborted += 1;
      });
    },
    { client: { clock } },
  );
  const controller = new AbortController();
  const cancelled = codeOf(pair.client.call('m', {}, { signal: controller.signal }));
  const late = codeOf(pair.client.call('m', {}, { timeoutMs: 50 }));
  await until(() => pair.server.liveStreams === 2, 'both calls arrive');
  controller.abort();
  expect(await cancelled).toBe('cancelled');
  await clock.advance(49);
  expect(pair.client.liveStreams).toBe(1);
  await clock.advance(1);
  expect(await late).toBe('timeout');
  await until(() => aborted === 2, 'the handlers are told');
  expect(await codeOf(pair.client.call('m', {}, { signal: controller.signal }))).toBe('cancelled');
  expect(clock.pendingTimers).toBe(0);
});

test('a call that was answered leaves no timer and no listener', async () => {
  const clock = new ManualClock();
  await using pair = await link(async () => 1, { client: { clock } });
  const controller = new AbortController();
  let listeners = 0;
  const { signal } = controller;
  const add = signal.addEventListener.bind(signal);
  const remove = signal.removeEventListener.bind(signal);
  signal.addEventListener = (...args: Parameters<typeof add>) => {
    listeners += 1;
    add(...args);
  };
  signal.removeEventListener = (...args: Parameters<typeof remove>) => {
    listeners -= 1;
    remove(...args);
  };
  await pair.client.call('m', {}, { signal, timeoutMs: 1_000 });
  expect(listeners).toBe(0);
  expect(clock.pendingTimers).toBe(0);
});

test('what was sent before the result is still delivered, and an error ends the iteration', async () => {
  await using pair = await link(async (method, _params, stream) => {
    await stream.write(Buffer.from('before'), 2);
    if (method === 'bad') throw new PlatformError('disk_full', 'No room.');
    return { fine: true };
  });
  const good = pair.client.open('good', {});
  await expect(good.result).resolves.toEqual({ fine: true });
  expect(await collect(good)).toHaveLength(1);
  const bad = pair.client.open('bad', {});
  expect(await codeOf(bad.result)).toBe('disk_full');
  expect((await bad.next()).value).toMatchObject({ type: 'data', channel: 2 });
  expect(await codeOf(bad.next())).toBe('disk_full');
});

test('the death of either end ends every stream of the other', async () => {
  const lost: unknown[] = [];
  const handler: WireHandler = (_method, _params, stream) => {
    stream.signal.addEventListener('abort', () => {
      const reason: unknown = stream.signal.reason;
      lost.push(PlatformError.is(reason) ? reason.code : reason);
    });
  };
  await using first = await link(handler);
  const opened = [first.client.open('a', {}), first.client.open('b', {})];
  const write = codeOf(opened[0]?.write(Buffer.alloc(1_000_000)) ?? Promise.resolve());
  const iteration = codeOf(collect(first.client.open('c', {})));
  await until(() => first.server.liveStreams === 3, 'the streams arrive');
  first.server.fail(new PlatformError('internal', 'dies'));
  expect(await Promise.all(opened.map((stream) => codeOf(stream.result)))).toEqual([
    'connection_lost',
    'connection_lost',
  ]);
  expect(await write).toBe('connection_lost');
  expect(await iteration).toBe('connection_lost');
  expect(await codeOf(first.client.call('d', {}))).toBe('connection_lost');
  expect(first.client.isClosed).toBe(true);
  lost.length = 0;
  await using second = await link(handler);
  second.client.open('a', {});
  second.client.open('b', {});
  await until(() => second.server.liveStreams === 2, 'the streams arrive');
  second.client.fail(new PlatformError('internal', 'dies'));
  await until(() => lost.length === 2, 'the handlers are told');
  expect(lost).toEqual(['connection_lost', 'connection_lost']);
});

test('closing writes what was sent before', async () => {
  const seen: string[] = [];
  await using pair = await link(async (method) => void seen.push(method));
  pair.client.open('last', {});
  await pair.client.close();
  await until(() => seen.length > 0, 'the call arrives');
  expect(seen).toEqual(['last']);
});

test('a thousand streams at once, each with its own bytes', async () => {
  await using pair = await link(echo);
  const run = async (index: number): Promise<void> => {
    const stream = pair.client.open('echo', { index });
    const sent = Buffer.alloc(3_000 + index, index & 0xff);
    const received = bytesOf(stream);
    await stream.write(sent);
    stream.end();
    if (!(await received).equals(sent)) throw new Error(`stream ${index} got other bytes`);
  };
  await Promise.all(Array.from({ length: 1_000 }, (_, index) => run(index)));
  expect(pair.client.liveStreams + pair.server.liveStreams).toBe(0);
});

test('streams that write without end share the socket fairly', async () => {
  await using pair = await link(async (_method, _params, stream) => {
    for (;;) await stream.write(Buffer.alloc(MAX_DATA));
  });
  const streams = Array.from({ length: 8 }, () => pair.client.open('m', {}));
  const taken = streams.map(() => 0);
  const enough = 4_000_000;
  await Promise.all(
    streams.map(async (stream, index) => {
      for await (const item of stream) {
        if (item.type === 'data') taken[index] = (taken[index] ?? 0) + item.bytes.length;
        if (taken.some((bytes) => bytes > enough)) break;
      }
    }),
  );
  expect(Math.min(...taken)).toBeGreaterThan(enough / 2);
  for (const stream of streams) stream.reset();
});

test('one stream too many is refused by the client and by the server', async () => {
  const never: WireHandler = () => undefined;
  await using mine = await link(never, { client: { maxStreams: 2 } });
  const first = mine.client.open('m', {});
  mine.client.open('m', {});
  expect(() => mine.client.open('m', {})).toThrow(expect.objectContaining({ code: 'too_many_streams' }));
  first.reset();
  mine.client.open('m', {});
  await using theirs = await link(never, { server: { maxStreams: 1 } });
  theirs.client.open('m', {});
  const second = theirs.client.open('m', {});
  await second.write(Buffer.from('ignored'));
  expect(await codeOf(second.result)).toBe('too_many_streams');
  expect(theirs.client.isClosed).toBe(false);
});

test('a handler without a promise ends its stream when it likes', async () => {
  const streams: WireServerStream[] = [];
  await using pair = await link((_method, _params, stream) => void streams.push(stream));
  const first = pair.client.open('m', {});
  const second = pair.client.open('m', {});
  await until(() => streams.length === 2, 'the streams arrive');
  streams[0]?.close({ n: 1 });
  streams[0]?.fail(new PlatformError('internal', 'too late'));
  streams[1]?.fail(new PlatformError('port_closed', 'Nobody listens.'));
  await expect(first.result).resolves.toEqual({ n: 1 });
  expect(await codeOf(second.result)).toBe('port_closed');
});

test('two readers of one stream are a fault', async () => {
  await using pair = await link(() => undefined);
  const stream = pair.client.open('m', {});
  const first = codeOf(stream.next());
  expect(await codeOf(stream.next())).toBe('internal');
  stream.reset();
  expect(await first).toBe('cancelled');
});

test('greeted resolves at the HELLO of the other side, and at once later', async () => {
  await using pair = await link(echo);
  await pair.client.greeted();
  expect(pair.client.peerRole).toBe('server');
  await pair.client.greeted();
});

test('greeted gives up after its time, and with the connection', async () => {
  const [near, far] = connectionPair();
  const clock = new ManualClock();
  const client = WireClient.connect(near, { role: 'edge', clock });
  const late = codeOf(client.greeted({ timeoutMs: 100 }));
  const lost = codeOf(client.greeted());
  await clock.advance(100);
  expect(await late).toBe('timeout');
  far.destroy();
  expect(await lost).toBe('connection_lost');
  expect(await codeOf(client.greeted())).toBe('connection_lost');
  await client.close();
});
