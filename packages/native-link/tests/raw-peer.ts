/** The other end of a connection as a test drives it: frame by frame, right or wrong. */
import type { Duplex } from 'node:stream';

import { encodeFrame, FrameDecoder, FrameType } from '@dsec/wire';

export interface RawFrame {
  readonly type: number;
  readonly channel: number;
  readonly stream: number;
  readonly payload: Buffer;
}

const HELLO = Buffer.from(JSON.stringify({ protocol: 'dsec-wire', version: 1, role: 'test' }));

/** Turns of the event loop that must pass without a frame before nothing more is expected. */
const QUIET_TURNS = 8;
/** Turns after which a test that waits has failed. */
const MAX_TURNS = 200_000;

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Waits until something holds. */
export const until = async (condition: () => boolean, what: string): Promise<void> => {
  for (let turns = 0; !condition(); turns += 1) {
    if (turns > MAX_TURNS) throw new Error(`never happened: ${what}`);
    await turn();
  }
};

/** Lets everything happen that needs no outside event. */
export const quiet = async (): Promise<void> => {
  for (let turns = 0; turns < QUIET_TURNS; turns += 1) await turn();
};

export class RawPeer {
  readonly socket: Duplex;
  readonly frames: RawFrame[] = [];
  isClosed = false;

  constructor(socket: Duplex, options: { readonly hello?: boolean } = {}) {
    this.socket = socket;
    const decoder = new FrameDecoder({
      frame: (type, channel, stream, chunk, start, end) => {
        this.frames.push({ type, channel, stream, payload: Buffer.from(chunk.subarray(start, end)) });
      },
    });
    socket.on('data', (chunk: Buffer) => decoder.push(chunk));
    socket.on('close', () => {
      this.isClosed = true;
    });
    socket.on('error', () => {
      this.isClosed = true;
    });
    if (options.hello !== false) this.send(FrameType.hello, 0, HELLO);
  }

  send(type: number, stream: number, payload: Uint8Array | string | object = '', channel = 0): void {
    let bytes: Uint8Array;
    if (typeof payload === 'string') bytes = Buffer.from(payload);
    else bytes = payload instanceof Uint8Array ? payload : Buffer.from(JSON.stringify(payload));
    this.socket.write(encodeFrame(type, channel, stream, bytes));
  }

  /** The first frame of a type, once it is here; takes it and what came before. */
  async next(type: number): Promise<RawFrame> {
    const find = (): number => this.frames.findIndex((frame) => frame.type === type);
    await until(() => find() >= 0, `a frame of type ${type}`);
    const [frame] = this.frames.splice(0, find() + 1).slice(-1);
    if (frame === undefined) throw new Error('unreachable');
    return frame;
  }
}
