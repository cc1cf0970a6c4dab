import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { PlatformError } from '@dsec/contract';
import { connectionPair, SystemClock } from '@dsec/kit';
import { encodeFrame, FrameDecoder, FrameType } from '@dsec/wire';
import { expect, test } from 'vitest';

import { quiet, type RawFrame, RawPeer, until } from '../../tests/raw-peer.ts';
import { WireClient } from './client.ts';
import type { WireConnection } from './connection.ts';
import { WireServer } from './server.ts';
import type { WireServerStream, WireStream } from './stream-api.ts';

const vectors = <T>(name: string): T[] =>
  JSON.parse(readFileSync(new URL(`../../../../native/wire/vectors/${name}.json`, import.meta.url), 'utf8')) as T[];

type TypeName = keyof typeof FrameType;

interface FrameVector {
  readonly name: string;
  readonly hex: string;
  readonly type: TypeName;
  readonly channel: number;
  readonly stream: number;
  readonly payloadHex: string;
}

const decode = (...chunks: Buffer[]): RawFrame[] => {
  const frames: RawFrame[] = [];
  const decoder = new FrameDecoder({
    frame: (type, channel, stream, chunk, start, end) => {
      frames.push({ type, channel, stream, payload: chunk.subarray(start, end) });
    },
  });
  for (const chunk of chunks) decoder.push(chunk);
  return frames;
};

test.each(vectors<FrameVector>('frames'))('frame: $name', (vector) => {
  const bytes = Buffer.from(vector.hex, 'hex');
  const payload = Buffer.from(vector.payloadHex, 'hex');
  const wanted = { type: FrameType[vector.type], channel: vector.channel, stream: vector.stream, payload };
  expect(encodeFrame(wanted.type, wanted.channel, wanted.stream, payload)).toEqual(bytes);
  for (let split = 0; split <= bytes.length; split += 1) {
    expect(decode(bytes.subarray(0, split), bytes.subarray(split))).toEqual([wanted]);
  }
});

interface InvalidVector {
  readonly name: string;
  readonly hex: string;
  readonly error: string;
}

const kindOf = (error: unknown): unknown => (PlatformError.is(error) ? error.details.kind : error);

test.each(vectors<InvalidVector>('invalid'))('invalid frame: $name', ({ hex, error }) => {
  let thrown: unknown;
  try {
    decode(Buffer.from(hex, 'hex'));
  } catch (caught) {
    thrown = caught;
  }
  expect(kindOf(thrown)).toBe(error);
});

interface Payload {
  readonly json?: unknown;
  readonly text?: string;
  readonly hex?: string;
  readonly repeat?: readonly [number, number];
  readonly grant?: number;
}

interface FrameShape extends Payload {
  readonly type: TypeName;
  readonly stream?: number;
  readonly channel?: number;
}

interface EventShape extends Payload {
  readonly event: 'open' | 'data' | 'message' | 'end' | 'reset' | 'closed';
  readonly stream: number;
  readonly channel?: number;
  readonly method?: string;
  readonly params?: object;
  readonly value?: object;
  readonly ok?: unknown;
  readonly error?: 'protocol_error' | { readonly code: string; readonly message: string; readonly details: object };
}

interface Step extends Payload {
  readonly in?: readonly FrameShape[];
  readonly take?: readonly EventShape[];
  readonly out?: readonly FrameShape[];
  readonly error?:
    | string
    | { readonly code: 'internal'; readonly message: string; readonly details: Record<string, string> };
  readonly do?: 'open' | 'write' | 'message' | 'end' | 'close' | 'fail' | 'reset';
  readonly stream?: number;
  readonly channel?: number;
  readonly method?: string;
  readonly params?: object;
  readonly value?: object;
  readonly ok?: unknown;
}

interface Conversation {
  readonly name: string;
  readonly side: 'client' | 'server';
  readonly steps: readonly Step[];
}

const payloadOf = (shape: Payload): Buffer => {
  if ('json' in shape) return Buffer.from(JSON.stringify(shape.json));
  if (shape.text !== undefined) return Buffer.from(shape.text);
  if (shape.hex !== undefined) return Buffer.from(shape.hex, 'hex');
  if (shape.repeat !== undefined) return Buffer.alloc(shape.repeat[1], shape.repeat[0]);
  const grant = Buffer.alloc(shape.grant === undefined ? 0 : 4);
  if (shape.grant !== undefined) grant.writeUInt32LE(shape.grant);
  return grant;
};

/** DATA that follows DATA of the same stream and channel counts as one. */
const joined = (frames: readonly RawFrame[]): RawFrame[] => {
  const result: RawFrame[] = [];
  for (const frame of frames) {
    const last = result.at(-1);
    const isMore =
      last?.type === FrameType.data &&
      frame.type === FrameType.data &&
      last.stream === frame.stream &&
      last.channel === frame.channel;
    if (isMore) result.splice(-1, 1, { ...last, payload: Buffer.concat([last.payload, frame.payload]) });
    else result.push(frame);
  }
  return result;
};

const comparable = (frame: RawFrame, asJson: boolean): object => ({
  ...frame,
  payload: asJson ? (JSON.parse(frame.payload.toString()) as unknown) : frame.payload.toString('hex'),
});

class Runner {
  readonly peer: RawPeer;
  readonly connection: WireConnection;
  readonly opened: { readonly method: string; readonly params: object; readonly stream: WireServerStream }[] = [];
  readonly streams = new Map<number, WireStream & WireServerStream>();
  readonly rest = new Map<number, Buffer>();

  constructor(side: Conversation['side']) {
    const [here, there] = connectionPair();
    const clock = new SystemClock();
    this.peer = new RawPeer(there, { hello: false });
    this.connection =
      side === 'client'
        ? WireClient.connect(here, { role: 'test', clock })
        : new WireServer(
            here,
            (method, params, stream) => {
              this.opened.push({ method, params, stream });
              this.streams.set(stream.id, stream as WireStream & WireServerStream);
            },
            { role: 'test', clock, onFault: (fault) => assert.fail(String(fault)) },
          );
  }

  stream(id: number | undefined): WireStream & WireServerStream {
    const stream = this.streams.get(id ?? 0);
    if (stream === undefined) throw new Error(`no stream ${id}`);
    return stream;
  }

  act(step: Step): void {
    const ignore = (): void => undefined;
    switch (step.do) {
      case 'open': {
        const stream = (this.connection as WireClient).open(step.method ?? '', step.params ?? {});
        assert.equal(stream.id, step.stream);
        this.streams.set(stream.id, stream as WireStream & WireServerStream);
        return;
      }
      case 'write':
        this.stream(step.stream).write(payloadOf(step), step.channel).catch(ignore);
        return;
      case 'message':
        this.stream(step.stream)
          .message(step.value ?? {})
          .catch(ignore);
        return;
      case 'end':
        return this.stream(step.stream).end();
      case 'close':
        return this.stream(step.stream).close(step.ok);
      case 'fail': {
        if (typeof step.error !== 'object') throw new Error('fail without an error');
        const { code, message, details } = step.error;
        return this.stream(step.stream).fail(new PlatformError(code, message, { details }));
      }
      case 'reset':
        return this.stream(step.stream).reset();
      default:
        throw new Error('unknown step');
    }
  }

  async take(event: EventShape): Promise<void> {
    switch (event.event) {
      case 'open': {
        await until(() => this.opened.length > 0, 'open');
        const opened = this.opened.shift();
        assert.deepEqual(
          [opened?.method, opened?.params, opened?.stream.id],
          [event.method, event.params, event.stream],
        );
        return;
      }
      case 'data': {
        // A DATA frame may be given in pieces.
        const wanted = payloadOf(event);
        let have = 0;
        while (have < wanted.length) {
          const { value } = await this.stream(event.stream).next();
          if (value?.type !== 'data') throw new Error(`no data but ${value?.type}`);
          assert.equal(value.channel, event.channel);
          assert(value.bytes.equals(wanted.subarray(have, have + value.bytes.length)));
          have += value.bytes.length;
        }
        return;
      }
      case 'message':
        assert.deepEqual((await this.stream(event.stream).next()).value, { type: 'message', value: event.value });
        return;
      case 'end':
        assert.deepEqual((await this.stream(event.stream).next()).value, { type: 'end' });
        return;
      case 'reset':
        await until(() => this.stream(event.stream).signal.aborted, 'reset');
        return;
      case 'closed':
        await this.closed(event);
        return;
    }
  }

  async closed(event: EventShape): Promise<void> {
    const stream = this.stream(event.stream);
    if (event.error === undefined) {
      assert.deepEqual(await stream.result, event.ok);
      return;
    }
    // A message that does not parse ends the stream when it is taken.
    const error: unknown = await stream.next().then(
      () => stream.result,
      (reason: unknown) => reason,
    );
    if (!PlatformError.is(error)) throw new Error(`no error but ${String(error)}`);
    if (event.error === 'protocol_error') assert.equal(error.code, 'protocol_error');
    else assert.deepEqual(error.toWire(), event.error);
  }

  async out(frames: readonly FrameShape[]): Promise<void> {
    await quiet();
    const sent = joined(this.peer.frames.splice(0));
    const shapes = frames.map((shape) => ({
      asJson: 'json' in shape,
      frame: {
        type: FrameType[shape.type],
        channel: shape.channel ?? 0,
        stream: shape.stream ?? 0,
        payload: payloadOf(shape),
      },
    }));
    assert.deepEqual(
      sent.map((frame, at) => comparable(frame, shapes[at]?.asJson ?? false)),
      shapes.map(({ frame, asJson }) => comparable(frame, asJson)),
    );
  }

  async step(step: Step): Promise<void> {
    if (step.in !== undefined) {
      for (const shape of step.in) {
        this.peer.send(FrameType[shape.type], shape.stream ?? 0, payloadOf(shape), shape.channel ?? 0);
      }
      await quiet();
    } else if (step.take !== undefined) {
      for (const event of step.take) await this.take(event);
    } else if (step.out !== undefined) {
      await this.out(step.out);
    } else if (step.do !== undefined) {
      this.act(step);
    } else {
      await until(() => this.connection.isClosed, 'the end of the connection');
      assert.equal(kindOf(this.connection.error), step.error);
    }
  }
}

test.each(vectors<Conversation>('conversations'))('conversation of a $side: $name', async ({ side, steps }) => {
  const runner = new Runner(side);
  for (const step of steps) await runner.step(step);
  expect(kindOf(runner.connection.error)).toBe(steps.at(-1)?.error);
  await runner.connection.close();
  runner.peer.socket.destroy();
});
