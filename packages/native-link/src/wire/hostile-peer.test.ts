/** The other side does what it must not, or does not do what it should: memory stays bounded and nobody waits for ever. */
import { PlatformError } from '@dsec/contract';
import { SystemClock } from '@dsec/kit';
import { FrameType, INITIAL_WINDOW } from '@dsec/wire';
import { expect, test } from 'vitest';

import { socketPair } from '../../tests/link.ts';
import { quiet, RawPeer, until } from '../../tests/raw-peer.ts';
import { WireClient } from './client.ts';
import { serve } from './server.ts';

const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (PlatformError.is(error) ? error.code : error),
  );

test('a client that does not read is not read either, and its memory is bounded', async () => {
  await using pair = await socketPair();
  const result = 'x'.repeat(2_000);
  const opens = 20_000;
  let calls = 0;
  const server = serve(
    pair.far,
    async () => {
      calls += 1;
      return result;
    },
    { role: 'server', clock: new SystemClock(), onFault: () => expect.unreachable() },
  );
  const peer = new RawPeer(pair.near);
  await peer.next(FrameType.hello);
  pair.near.pause();
  for (let id = 1; id <= opens; id += 1) peer.send(FrameType.open, id, { method: 'm' });
  await until(() => pair.far.isPaused(), 'the server stops reading');
  await quiet();
  // One chunk of the socket holds some two thousand of them.
  expect(calls).toBeLessThan(opens / 2);
  expect(server.output.backlog).toBeLessThan((opens / 2) * result.length);
  pair.near.resume();
  await until(
    () => peer.frames.filter(({ type }) => type === FrameType.close).length === opens,
    'every call is answered',
  );
  await server.close();
});

test('a client that pings and does not read the answers loses the connection', async () => {
  await using pair = await socketPair();
  const client = WireClient.connect(pair.near, { role: 'client', clock: new SystemClock() });
  const peer = new RawPeer(pair.far);
  await peer.next(FrameType.hello);
  pair.far.pause();
  const pings = Buffer.concat(
    Array.from({ length: 3_000 }, () => Buffer.from('08000000090000000000000001020304050607ff', 'hex')),
  );
  const flood = (): void => {
    while (!client.isClosed && pair.far.writableLength < 1_000_000) pair.far.write(pings);
  };
  await until(() => {
    flood();
    return client.isClosed;
  }, 'the connection ends');
  expect(client.error?.details).toEqual({ kind: 'flood' });
});

test('what a hostile server sends without being asked is bounded by its credit', async () => {
  await using pair = await socketPair();
  const client = WireClient.connect(pair.near, { role: 'client', clock: new SystemClock() });
  const stream = client.open('m', {});
  const peer = new RawPeer(pair.far);
  await peer.next(FrameType.open);
  for (let frames = 0; frames < INITIAL_WINDOW / 64; frames += 1) peer.send(FrameType.data, 1, 'x');
  peer.send(FrameType.message, 1, {});
  expect(await codeOf(stream.result)).toBe('protocol_error');
  expect(client.error?.details).toEqual({ kind: 'credit_exceeded' });
});

test('a short payload that waits does not keep the chunk alive that it came in', async () => {
  await using pair = await socketPair();
  const client = WireClient.connect(pair.near, { role: 'client', clock: new SystemClock() });
  const stream = client.open('m', {});
  const peer = new RawPeer(pair.far);
  await peer.next(FrameType.open);
  pair.far.cork();
  peer.send(FrameType.data, 1, 'tiny');
  for (let frames = 0; frames < 500; frames += 1) peer.send(FrameType.pong, 0, Buffer.alloc(8));
  pair.far.uncork();
  await quiet();
  const { value } = await stream.next();
  expect(value?.type === 'data' && value.bytes.toString()).toBe('tiny');
  const pinned = value?.type === 'data' ? value.bytes.buffer.byteLength : 0;
  expect(pinned).toBeLessThanOrEqual(Buffer.poolSize);
  await client.close();
});
