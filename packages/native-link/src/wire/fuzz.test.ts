/** Both ends against bytes that are almost the protocol. A fault here would be a crash of an edge by a sandbox. */
import { readFileSync } from 'node:fs';
import { PlatformError } from '@dsec/contract';
import { connectionPair, SystemClock } from '@dsec/kit';
import { encodeFrame, FrameType } from '@dsec/wire';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { quiet } from '../../tests/raw-peer.ts';
import { WireClient } from './client.ts';
import type { WireConnection } from './connection.ts';
import { relay } from './relay.ts';
import { serve, type WireHandler } from './server.ts';

interface Shape {
  readonly type: keyof typeof FrameType;
  readonly stream?: number;
  readonly channel?: number;
  readonly json?: unknown;
  readonly text?: string;
  readonly hex?: string;
}

interface Conversation {
  readonly side: 'client' | 'server';
  readonly steps: readonly { readonly in?: readonly Shape[] }[];
}

const conversations = JSON.parse(
  readFileSync(new URL('../../../../native/wire/vectors/conversations.json', import.meta.url), 'utf8'),
) as Conversation[];

const encoded = (shape: Shape): Buffer => {
  const payload = 'json' in shape ? JSON.stringify(shape.json) : (shape.text ?? shape.hex ?? 'xxxx');
  return encodeFrame(FrameType[shape.type], shape.channel ?? 0, shape.stream ?? 0, Buffer.from(payload));
};

const corpus = (side: Conversation['side']): Buffer[][] =>
  conversations
    .filter((conversation) => conversation.side === side)
    .map(({ steps }) => steps.flatMap((step) => step.in ?? []).map(encoded))
    .filter((frames) => frames.length > 0);

/** A conversation whose frames are shuffled into those of others, with some bytes changed, cut anywhere. */
const input = (side: Conversation['side']): fc.Arbitrary<Buffer[]> => {
  const known = corpus(side);
  const frames = known.flat();
  return fc
    .record({
      start: fc.constantFrom(...known),
      more: fc.array(fc.constantFrom(...frames), { maxLength: 8 }),
      changes: fc.array(fc.tuple(fc.nat(), fc.nat(255)), { maxLength: 3 }),
      cuts: fc.array(fc.integer({ min: 1, max: 200 }), { maxLength: 6 }),
    })
    .map(({ start, more, changes, cuts }) => {
      const bytes = Buffer.concat([...start, ...more]);
      for (const [at, value] of changes) bytes[at % bytes.length] = value;
      const chunks: Buffer[] = [];
      let at = 0;
      for (const size of cuts) {
        chunks.push(Buffer.from(bytes.subarray(at, at + size)));
        at += size;
      }
      chunks.push(Buffer.from(bytes.subarray(at)));
      return chunks.filter((chunk) => chunk.length > 0);
    });
};

const ignore = (): void => undefined;

/** Takes everything and answers, whatever it is. */
const busy: WireHandler = async (method, params, stream) => {
  await stream.write(Buffer.alloc(1_000));
  for await (const item of stream) if (item.type === 'end') break;
  return { method, params };
};

const clock = new SystemClock();
const faults: unknown[] = [];
const onFault = (fault: unknown): void => void faults.push(fault);

/** What may be said of the connection after these bytes. */
const afterwards = async (
  connection: WireConnection,
  chunks: readonly Buffer[],
  write: (chunk: Buffer) => void,
): Promise<{ isSound: boolean; liveStreams: number; faults: readonly unknown[] }> => {
  for (const chunk of chunks) write(chunk);
  await quiet();
  const { error } = connection;
  const isSound = error === undefined || error.code === 'protocol_error';
  await connection.close();
  return { isSound, liveStreams: connection.liveStreams, faults };
};

const sound = { isSound: true, liveStreams: 0, faults: [] };

test('a server survives any bytes', async () => {
  await fc.assert(
    fc.asyncProperty(input('server'), async (chunks) => {
      const [near, far] = connectionPair();
      far.resume();
      const server = serve(near, busy, { role: 'fuzz', clock, onFault });
      expect(await afterwards(server, chunks, (chunk) => far.write(chunk))).toEqual(sound);
      far.destroy();
    }),
    { numRuns: 150 },
  );
});

test('a client survives any bytes, and each of its calls ends', async () => {
  await fc.assert(
    fc.asyncProperty(input('client'), async (chunks) => {
      const [near, far] = connectionPair();
      far.resume();
      const client = WireClient.connect(near, { role: 'fuzz', clock });
      const ends = [1, 2, 3].map(async () => {
        const stream = client.open('m', {});
        try {
          for await (const item of stream) void item;
          await stream.result;
        } catch (error) {
          if (!PlatformError.is(error)) throw error;
        }
      });
      expect(await afterwards(client, chunks, (chunk) => far.write(chunk))).toEqual(sound);
      await Promise.all(ends);
      far.destroy();
    }),
    { numRuns: 150 },
  );
});

test('a relay survives any bytes of its far end, and its near connection lives on', async () => {
  await fc.assert(
    fc.asyncProperty(input('client'), async (chunks) => {
      const [near, far] = connectionPair();
      const [client, server] = connectionPair();
      far.resume();
      const up = WireClient.connect(near, { role: 'fuzz', clock });
      const hub = serve(
        server,
        (method, params, stream) => {
          if (method === 'alive') stream.close(true);
          else void relay(stream, up.open(method, params));
        },
        { role: 'fuzz', clock, onFault },
      );
      const down = WireClient.connect(client, { role: 'fuzz', clock });
      const calls = [1, 2, 3].map(() => down.call('m', {}).catch(ignore));
      await quiet();
      expect(await afterwards(up, chunks, (chunk) => far.write(chunk))).toEqual(sound);
      await Promise.all(calls);
      await expect(down.call('alive', {})).resolves.toBe(true);
      await down.close();
      await hub.close();
      far.destroy();
    }),
    { numRuns: 100 },
  );
});
