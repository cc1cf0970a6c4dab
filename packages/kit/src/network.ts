/** Sockets, injected everywhere, so that a whole control plane can run in one process with faults between its parts. */
import { unlink } from 'node:fs/promises';
import net from 'node:net';
import { Duplex } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import { abortError } from './abort.ts';
import {
  bindDatagrams,
  MemoryDatagrams,
  type DatagramOptions,
  type DatagramSocket,
  type OnDatagram,
  type Peer,
} from './datagrams.ts';

/** An ordered, reliable stream of bytes, both ways. Whoever holds it handles its `error` event. */
export type Connection = Duplex;

export interface ConnectOptions {
  readonly signal?: AbortSignal | undefined;
}

export interface Listener extends AsyncDisposable {
  /** The TCP port; 0 for a unix socket. */
  readonly port: number;
  /** Stops accepting and destroys what it accepted. Idempotent. */
  close(): Promise<void>;
}

/** `from` is where a TCP connection comes from; absent of a unix socket, and when the other side is gone already. */
export type OnConnection = (connection: Connection, from?: Peer) => void;

/** The only way to other processes. */
export interface Network {
  /** @throws PlatformError `unavailable` when nobody listens there */
  connectUnix(path: string, options?: ConnectOptions): Promise<Connection>;
  /** A socket file that a dead process left behind is replaced; one that is in use is `already_running`. */
  listenUnix(path: string, onConnection: OnConnection): Promise<Listener>;
  /** @throws PlatformError `unavailable` when nobody listens there */
  connectTcp(host: string, port: number, options?: ConnectOptions): Promise<Connection>;
  /** Port 0 takes a free one. */
  listenTcp(host: string, port: number, onConnection: OnConnection): Promise<Listener>;
  /** A socket for datagrams at an address of this machine. Port 0 takes a free one, which nobody can foretell. */
  bindUdp(host: string, port: number, onDatagram: OnDatagram, options?: DatagramOptions): Promise<DatagramSocket>;
}

/** The sockets of the machine. */
export class SystemNetwork implements Network {
  connectUnix(path: string, options: ConnectOptions = {}): Promise<Connection> {
    return connect({ path }, options.signal);
  }

  connectTcp(host: string, port: number, options: ConnectOptions = {}): Promise<Connection> {
    return connect({ host, port, noDelay: true }, options.signal);
  }

  async listenUnix(path: string, onConnection: OnConnection): Promise<Listener> {
    try {
      return await listen({ path }, onConnection);
    } catch (error) {
      if (!isErrno(error, 'EADDRINUSE')) throw error;
    }
    const isAlive = await connect({ path }, undefined).then(
      (connection) => {
        connection.destroy();
        return true;
      },
      () => false,
    );
    if (isAlive) throw new PlatformError('already_running', 'another process listens on this socket');
    await unlink(path);
    return await listen({ path }, onConnection);
  }

  listenTcp(host: string, port: number, onConnection: OnConnection): Promise<Listener> {
    return listen({ host, port }, onConnection);
  }

  bindUdp(host: string, port: number, onDatagram: OnDatagram, options: DatagramOptions = {}): Promise<DatagramSocket> {
    return bindDatagrams(host, port, onDatagram, options);
  }
}

const isErrno = (error: unknown, code: string): boolean =>
  typeof error === 'object' && error !== null && 'code' in error && error.code === code;

const ignore = (): void => undefined;

function connect(options: net.NetConnectOpts, signal: AbortSignal | undefined): Promise<Connection> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted === true) {
      reject(abortError(signal));
      return;
    }
    const socket = net.connect(options);
    const onAbort = (): void => {
      socket.destroy();
      if (signal !== undefined) reject(abortError(signal));
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    socket.once('connect', () => {
      signal?.removeEventListener('abort', onAbort);
      socket.removeAllListeners('error');
      // A reset between now and the holder's own listener must not end the process; 'close' tells the holder.
      socket.on('error', ignore);
      resolve(socket);
    });
    socket.once('error', (cause) => {
      signal?.removeEventListener('abort', onAbort);
      reject(new PlatformError('unavailable', 'the other process does not answer at its socket', { cause }));
    });
  });
}

function listen(options: net.ListenOptions, onConnection: OnConnection): Promise<Listener> {
  const open = new Set<net.Socket>();
  const server = net.createServer({ noDelay: true, pauseOnConnect: false }, (socket) => {
    open.add(socket);
    socket.on('error', ignore);
    socket.once('close', () => open.delete(socket));
    onConnection(socket, peerOf(socket));
  });
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => {
    closing ??= new Promise<void>((resolve) => {
      server.close(() => resolve());
      for (const socket of open) socket.destroy();
    });
    return closing;
  };
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(options, () => {
      server.removeListener('error', reject);
      const address = server.address();
      const port = typeof address === 'object' && address !== null ? address.port : 0;
      resolve({ port, close, [Symbol.asyncDispose]: close });
    });
  });
}

const peerOf = ({ remoteAddress, remotePort }: net.Socket): Peer | undefined =>
  remoteAddress === undefined || remotePort === undefined
    ? undefined
    : { address: remoteAddress.replace(/^::ffff:(?=[0-9.]+$)/, ''), port: remotePort };

/** One half of a connection in memory. */
class MemoryConnection extends Duplex {
  peer: MemoryConnection | undefined;
  #resume: (() => void) | undefined;

  constructor() {
    super({ allowHalfOpen: false, emitClose: true });
    this.on('error', ignore);
  }

  override _read(): void {
    const resume = this.#resume;
    this.#resume = undefined;
    resume?.();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: (error?: Error | null) => void): void {
    const { peer } = this;
    if (peer === undefined || peer.destroyed) {
      callback(Object.assign(new Error('write EPIPE'), { code: 'EPIPE' }));
      return;
    }
    // On its own turn, as a real socket delivers.
    setImmediate(() => {
      if (peer.destroyed) callback();
      else if (peer.push(Buffer.from(chunk))) callback();
      else peer.#resume = callback;
    });
  }

  override _final(callback: (error?: Error | null) => void): void {
    const { peer } = this;
    setImmediate(() => {
      if (peer !== undefined && !peer.destroyed) peer.push(null);
      callback();
    });
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    const { peer } = this;
    this._read();
    callback(error);
    if (peer === undefined || peer.destroyed || this.writableFinished) return;
    setImmediate(() => peer.destroy(Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' })));
  }
}

/** Two ends of one connection in memory. */
export function connectionPair(): readonly [Connection, Connection] {
  const left = new MemoryConnection();
  const right = new MemoryConnection();
  left.peer = right;
  right.peer = left;
  return [left, right];
}

interface MemoryListener {
  readonly onConnection: OnConnection;
  readonly open: Set<Connection>;
}

/** The first port that `listenTcp` gives for port 0. */
const FIRST_MEMORY_PORT = 40_000;

/** Sockets that exist in this object only. */
export class MemoryNetwork implements Network {
  readonly #listeners = new Map<string, MemoryListener>();
  readonly #datagrams = new MemoryDatagrams();
  #nextPort = FIRST_MEMORY_PORT;

  connectUnix(path: string, options: ConnectOptions = {}): Promise<Connection> {
    return this.#connect(`unix:${path}`, options.signal);
  }

  connectTcp(host: string, port: number, options: ConnectOptions = {}): Promise<Connection> {
    const from = { address: host, port: this.#nextPort++ };
    return this.#connect(`tcp:${host}:${port}`, options.signal, from);
  }

  listenUnix(path: string, onConnection: OnConnection): Promise<Listener> {
    return this.#listen(`unix:${path}`, 0, onConnection);
  }

  listenTcp(host: string, port: number, onConnection: OnConnection): Promise<Listener> {
    const taken = port === 0 ? this.#nextPort++ : port;
    return this.#listen(`tcp:${host}:${taken}`, taken, onConnection);
  }

  bindUdp(host: string, port: number, onDatagram: OnDatagram, options: DatagramOptions = {}): Promise<DatagramSocket> {
    return this.#datagrams.bind(host, port, onDatagram, options);
  }

  /** Every connection breaks at once, as when a machine dies; listeners stay. */
  breakAll(): void {
    for (const { open } of this.#listeners.values()) for (const connection of open) connection.destroy();
  }

  async #connect(key: string, signal: AbortSignal | undefined, from?: Peer): Promise<Connection> {
    await new Promise((resolve) => setImmediate(resolve));
    if (signal?.aborted === true) throw abortError(signal);
    const listener = this.#listeners.get(key);
    if (listener === undefined)
      throw new PlatformError('unavailable', 'the other process does not answer at its socket');
    const [client, server] = connectionPair();
    listener.open.add(server);
    server.once('close', () => listener.open.delete(server));
    listener.onConnection(server, from);
    return client;
  }

  async #listen(key: string, port: number, onConnection: OnConnection): Promise<Listener> {
    await new Promise((resolve) => setImmediate(resolve));
    if (this.#listeners.has(key)) throw new PlatformError('already_running', 'another process listens on this socket');
    const listener: MemoryListener = { onConnection, open: new Set() };
    this.#listeners.set(key, listener);
    const close = async (): Promise<void> => {
      if (this.#listeners.get(key) === listener) this.#listeners.delete(key);
      for (const connection of listener.open) connection.destroy();
      await new Promise((resolve) => setImmediate(resolve));
    };
    return { port, close, [Symbol.asyncDispose]: close };
  }
}
