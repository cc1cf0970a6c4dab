/** Datagram sockets, of the machine and in memory. */
import dgram from 'node:dgram';
import { isIPv6 } from 'node:net';
import { PlatformError } from '@dsec/contract';

/** Where a datagram or connection comes from. */
export interface Peer {
  /** An address, not a name; IPv4 never in the form of IPv6. */
  readonly address: string;
  readonly port: number;
}

export type OnDatagram = (bytes: Buffer, from: Peer) => void;

export interface DatagramOptions {
  /** The only one that is sent to and heard; absent: everybody. */
  readonly peer?: Peer;
  /** Bytes that may wait to be read, as far as the kernel allows as much. Default: the kernel's. */
  readonly receiveBytes?: number;
  /** That nobody listens at the peer, where its machine says so; the socket stays open. */
  readonly onError?: (error: Error) => void;
}

export interface DatagramSocket extends AsyncDisposable {
  readonly port: number;
  /** Datagrams may be lost: false when this one is, because too much waits to be sent or the socket is closed. `to` is the peer where there is one. */
  send(bytes: Uint8Array, to?: Peer): boolean;
  /** Idempotent. */
  close(): Promise<void>;
}

/** Bytes that may wait in one socket; what comes then is lost, as in a network. */
const MAX_WAITING_BYTES = 1024 * 1024;

/** @throws what the kernel says: EADDRINUSE, EADDRNOTAVAIL, EACCES */
export function bindDatagrams(
  host: string,
  port: number,
  onDatagram: OnDatagram,
  options: DatagramOptions,
): Promise<DatagramSocket> {
  const { peer, receiveBytes } = options;
  const socket = dgram.createSocket({
    ...(isIPv6(host) ? { type: 'udp6', ipv6Only: true } : { type: 'udp4' }),
    ...(receiveBytes === undefined ? {} : { recvBufferSize: receiveBytes }),
  });
  const state = { isOpen: true };
  const close = async (): Promise<void> => {
    if (!state.isOpen) return;
    state.isOpen = false;
    const { promise, resolve } = Promise.withResolvers<undefined>();
    socket.close(() => resolve(undefined));
    await promise;
  };
  const { promise, resolve, reject } = Promise.withResolvers<DatagramSocket>();
  const refuse = (error: Error): void => {
    void close();
    reject(error);
  };
  socket.once('error', refuse);
  const onReady = (): void => {
    socket.removeListener('error', refuse);
    socket.on('error', (error) => options.onError?.(error));
    socket.on('message', (bytes, { address, port: from }) => onDatagram(bytes, { address, port: from }));
    const send = (bytes: Uint8Array, to?: Peer): boolean => {
      if (!state.isOpen || socket.getSendQueueSize() > MAX_WAITING_BYTES) return false;
      const onSent = (error: Error | null): void => {
        if (error !== null && state.isOpen) options.onError?.(error);
      };
      if (peer !== undefined) socket.send(bytes, onSent);
      else if (to !== undefined) socket.send(bytes, to.port, to.address, onSent);
      else throw new PlatformError('internal', 'a datagram without a peer needs an address');
      return true;
    };
    resolve({ port: socket.address().port, send, close, [Symbol.asyncDispose]: close });
  };
  socket.bind(port, host, () => {
    if (peer === undefined) onReady();
    else socket.connect(peer.port, peer.address, onReady);
  });
  return promise;
}

interface MemorySocket {
  readonly onDatagram: OnDatagram;
  readonly peer: Peer | undefined;
  readonly onError: ((error: Error) => void) | undefined;
}

/** The first port that is given for port 0. */
const FIRST_MEMORY_PORT = 50_000;

/** Datagrams that exist in this object only. None is lost but those to nobody. */
export class MemoryDatagrams {
  readonly #sockets = new Map<string, MemorySocket>();
  #nextPort = FIRST_MEMORY_PORT;

  async bind(host: string, port: number, onDatagram: OnDatagram, options: DatagramOptions): Promise<DatagramSocket> {
    await new Promise((resolve) => setImmediate(resolve));
    const own: Peer = { address: host, port: port === 0 ? this.#nextPort++ : port };
    const key = keyOf(own);
    if (this.#sockets.has(key)) throw Object.assign(new Error('bind EADDRINUSE'), { code: 'EADDRINUSE' });
    const socket: MemorySocket = { onDatagram, peer: options.peer, onError: options.onError };
    this.#sockets.set(key, socket);
    const close = async (): Promise<void> => {
      if (this.#sockets.get(key) === socket) this.#sockets.delete(key);
      await new Promise((resolve) => setImmediate(resolve));
    };
    const send = (bytes: Uint8Array, to?: Peer): boolean => {
      const target = options.peer ?? to;
      if (target === undefined) throw new PlatformError('internal', 'a datagram without a peer needs an address');
      if (this.#sockets.get(key) !== socket) return false;
      const copy = Buffer.from(bytes);
      setImmediate(() => this.#deliver(copy, own, target));
      return true;
    };
    return { port: own.port, send, close, [Symbol.asyncDispose]: close };
  }

  #deliver(bytes: Buffer, from: Peer, to: Peer): void {
    const socket = this.#sockets.get(keyOf(to));
    if (socket === undefined) {
      const error = Object.assign(new Error('recvmsg ECONNREFUSED'), { code: 'ECONNREFUSED' });
      this.#sockets.get(keyOf(from))?.onError?.(error);
      return;
    }
    if (socket.peer === undefined || keyOf(socket.peer) === keyOf(from)) socket.onDatagram(bytes, from);
  }
}

const keyOf = ({ address, port }: Peer): string => `${address} ${port}`;
