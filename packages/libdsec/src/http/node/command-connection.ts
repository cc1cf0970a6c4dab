import { COMMAND_CONNECTION_UPGRADE, KEEPALIVE_MS, PlatformError } from '@dsec/contract';
import {
  costOf,
  encodeFrame,
  encodeHello,
  encodeOpen,
  FrameDecoder,
  type FrameSink,
  FrameType,
  INITIAL_WINDOW,
  MAX_STREAM_ID,
  parseClose,
  parseHello,
  parseObject,
  protocolError,
} from '@dsec/wire';
import type { Socket } from 'node:net';
import type { Timing } from '../../platform/timing.ts';
import type { CommandRequest, CommandSink, RunningCommand } from '../transport.ts';
import type { Origin } from './origin.ts';
import { openSocket } from './open-socket.ts';

/** Commands that one connection carries; the server takes 1,024. */
const MAX_COMMANDS = 1000;
/** Credit that was taken is granted again once it adds up to this. */
const GRANT_AT = INITIAL_WINDOW / 2;
/** Longest answer to the request to change the protocol. */
const MAX_HEAD_BYTES = 16_384;
/** Silence after which the server is asked whether it is there, and after which it is taken for gone. */
const LOST_AFTER_MS = 3 * KEEPALIVE_MS;
const METHOD = 'exec.start';
const NOTHING = Buffer.alloc(0);
const PING = encodeFrame(FrameType.ping, 0, 0, Buffer.alloc(8));
const SWITCHED = /^HTTP\/1\.1 101(?: |\r)/;

/** What became of the request to change the protocol: the server, or something before it, speaks only HTTP. */
export type Ending = 'refused' | 'broken';

export interface CommandConnectionOwner {
  /** It is over. Called once. */
  onEnded(connection: CommandConnection, ending: Ending): void;
}

interface Command {
  readonly sink: CommandSink;
  /** What the server may still send. */
  window: number;
  /** What was taken and is not granted again yet. */
  taken: number;
  /** Its consumer has no room. */
  isHeld: boolean;
}

/**
 * One connection that carries many commands (docs/wire.md, "Clients"). Every frame is read as that of a stranger; the first that is wrong ends the
 * connection, and its commands are followed over others.
 */
export class CommandConnection implements FrameSink {
  readonly #timing: Timing;
  readonly #owner: CommandConnectionOwner;
  readonly #origin: Origin;
  readonly #socket: Socket;
  readonly #decoder = new FrameDecoder(this);
  readonly #commands = new Map<number, Command>();
  /** The answer to the request to change the protocol, as far as it is here; undefined: the protocol is changed. */
  #head: Buffer | undefined = NOTHING;
  #isGreeted = false;
  #lastId = 0;
  #pending: Buffer[] = [];
  #failure: unknown;
  #isEnded = false;
  #heardMs: number;
  #cancelTimer: (() => void) | undefined;

  /** `path` is that of the request to change the protocol. */
  constructor(origin: Origin, path: string, authorization: string, timing: Timing, owner: CommandConnectionOwner) {
    this.#origin = origin;
    this.#timing = timing;
    this.#owner = owner;
    this.#heardMs = timing.monotonicMs();
    this.#socket = openSocket(origin, (bytes) => this.#onBytes(bytes));
    this.#socket.on('error', (error: Error) => (this.#failure ??= error));
    this.#socket.on('end', () => this.#socket.destroy());
    this.#socket.on('close', () => this.#onClose());
    this.#socket.write(
      `GET ${path} HTTP/1.1\r\nhost: ${origin.host}\r\nauthorization: ${authorization}\r\n` +
        `connection: upgrade\r\nupgrade: ${COMMAND_CONNECTION_UPGRADE}\r\n\r\n`,
      'latin1',
    );
    this.#socket.unref();
  }

  /** Whether it takes another command now. */
  get isReady(): boolean {
    return this.#isGreeted && !this.#isEnded && this.#failure === undefined && this.#commands.size < MAX_COMMANDS;
  }

  /** Only while it is ready. Everything that becomes of the command is told to its sink. */
  start({ sandboxId, idempotencyKey, exec }: CommandRequest, sink: CommandSink): RunningCommand {
    const payload = encodeOpen(METHOD, { sandboxId, idempotencyKey, exec });
    if (this.#lastId === MAX_STREAM_ID) this.destroy(new PlatformError('connection_lost', 'the connection is used up'));
    const id = ++this.#lastId;
    if (this.#commands.size === 0) this.#wake();
    this.#commands.set(id, { sink, window: INITIAL_WINDOW, taken: 0, isHeld: false });
    this.#send(encodeFrame(FrameType.open, 0, id, payload));
    return {
      reset: () => {
        if (!this.#forget(id)) return;
        this.#send(encodeFrame(FrameType.reset, 0, id, NOTHING));
      },
    };
  }

  destroy(reason: unknown): void {
    this.#failure ??= reason;
    this.#socket.destroy();
  }

  frame(type: number, channel: number, id: number, chunk: Buffer, start: number, end: number): void {
    if (!this.#isGreeted) {
      if (type !== FrameType.hello) throw protocolError('hello_missing');
      parseHello(chunk, start, end);
      this.#isGreeted = true;
      return;
    }
    switch (type) {
      case FrameType.hello:
        throw protocolError('hello_twice');
      case FrameType.open:
      case FrameType.reset:
        throw protocolError('wrong_side');
      case FrameType.ping:
        this.#send(encodeFrame(FrameType.pong, 0, 0, chunk.subarray(start, end)));
        return;
      case FrameType.pong:
        return;
    }
    const command = this.#commands.get(id);
    if (command === undefined) {
      if (id > this.#lastId) throw protocolError('stream_unknown');
      return;
    }
    switch (type) {
      case FrameType.data:
      case FrameType.message:
        this.#spend(command, end - start);
        try {
          // The memory is read into again.
          if (type === FrameType.data) command.sink.onData(channel, Uint8Array.from(chunk.subarray(start, end)));
          else command.sink.onMessage(parseObject(chunk, start, end));
        } catch (error) {
          // What one sandbox says that it should not costs the other commands nothing.
          if (this.#forget(id)) this.#send(encodeFrame(FrameType.reset, 0, id, NOTHING));
          command.sink.onFailure(error);
          return;
        }
        this.#took(id, command, end - start);
        return;
      case FrameType.close:
        this.#forget(id);
        this.#close(command, chunk, start, end);
        return;
      default:
        // Nothing is sent to a command here: its END says nothing, and credit is not needed.
        return;
    }
  }

  #close({ sink }: Command, chunk: Buffer, start: number, end: number): void {
    try {
      const outcome = parseClose(chunk, start, end);
      if ('error' in outcome) sink.onFailure(outcome.error);
      else sink.onEnd(outcome.ok);
    } catch (error) {
      sink.onFailure(error);
    }
  }

  #spend(command: Command, length: number): void {
    command.window -= costOf(length);
    if (command.window < 0) throw protocolError('credit_exceeded');
  }

  /** Grants what was taken, once there is room for more. */
  #took(id: number, command: Command, length: number): void {
    command.taken += costOf(length);
    if (command.isHeld || command.taken < GRANT_AT) return;
    const room = command.sink.ready();
    if (room === undefined) {
      this.#grant(id, command);
      return;
    }
    command.isHeld = true;
    void room.then(() => {
      command.isHeld = false;
      if (this.#commands.get(id) === command) this.#took(id, command, 0);
    });
  }

  #grant(id: number, command: Command): void {
    const payload = Buffer.allocUnsafe(4);
    payload.writeUInt32LE(command.taken);
    command.window += command.taken;
    command.taken = 0;
    this.#send(encodeFrame(FrameType.window, 0, id, payload));
  }

  /** What is sent within one tick becomes one write. */
  #send(frame: Buffer): void {
    this.#pending.push(frame);
    if (this.#pending.length === 1) process.nextTick(() => this.#flush());
  }

  #flush(): void {
    const [first, ...others] = this.#pending;
    this.#pending = [];
    if (first === undefined || this.#isEnded) return;
    this.#socket.write(others.length === 0 ? first : Buffer.concat([first, ...others]));
  }

  #onBytes(bytes: Buffer): void {
    this.#heardMs = this.#timing.monotonicMs();
    try {
      if (this.#head !== undefined) this.#onHead(bytes);
      else this.#decoder.push(bytes);
    } catch (error) {
      this.destroy(error);
    }
  }

  #onHead(bytes: Buffer): void {
    const head = Buffer.concat([this.#head ?? NOTHING, bytes]);
    const end = head.indexOf('\r\n\r\n');
    if (end < 0 && head.length <= MAX_HEAD_BYTES) {
      this.#head = head;
      return;
    }
    if (end < 0 || !SWITCHED.test(head.toString('latin1', 0, end))) {
      this.#head = head;
      this.#socket.destroy();
      return;
    }
    this.#head = undefined;
    const hello = encodeHello('client');
    this.#send(encodeFrame(FrameType.hello, 0, 0, hello));
    if (head.length > end + 4) this.#decoder.push(head.subarray(end + 4));
  }

  #onClose(): void {
    this.#isEnded = true;
    this.#cancelTimer?.();
    // The answer was another one than that of a server that changes the protocol.
    const isRefused = this.#head !== undefined && this.#head.length > 0;
    const commands = [...this.#commands.values()];
    this.#commands.clear();
    this.#owner.onEnded(this, isRefused ? 'refused' : 'broken');
    // Whatever was wrong with it, its commands are followed over others; unless the client was closed.
    const failure = this.#failure;
    const error =
      PlatformError.is(failure) && failure.code === 'cancelled'
        ? failure
        : new PlatformError('connection_lost', `the connection to ${this.#origin.url} broke during a command`, {
            cause: failure,
          });
    for (const { sink } of commands) sink.onFailure(error);
  }

  /** Of a command whose stream is over. False when it was already. */
  #forget(id: number): boolean {
    if (!this.#commands.delete(id)) return false;
    if (this.#commands.size > 0) return true;
    // The process may end although the connection is kept.
    this.#socket.unref();
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
    return true;
  }

  /** There are commands again: the connection keeps the process alive, and is watched. */
  #wake(): void {
    this.#socket.ref();
    this.#heardMs = this.#timing.monotonicMs();
    this.#watch();
  }

  #watch(): void {
    this.#cancelTimer = this.#timing.timer(KEEPALIVE_MS, () => {
      const silentMs = this.#timing.monotonicMs() - this.#heardMs;
      if (silentMs >= LOST_AFTER_MS) {
        this.destroy(new PlatformError('connection_lost', `nothing came from the server for ${LOST_AFTER_MS} ms`));
        return;
      }
      // Also while something comes: a proxy before the server may take a connection for idle before this looks again.
      this.#send(PING);
      this.#watch();
    });
  }
}
