import { connect as connectPlain, type NetConnectOpts, type OnReadOpts, type Socket } from 'node:net';
import { connect as connectSecure, type ConnectionOptions } from 'node:tls';
import type { Origin } from './origin.ts';

/** Bytes read at once. All connections read into the same memory: what is read is taken within the call. */
const READ_BYTES = 65_536;
const readBuffer = Buffer.allocUnsafe(READ_BYTES);
/** Silence after which the system asks whether the other side is still there. */
const PROBE_MS = 60_000;

/** Connects to a server. `onBytes` gets what comes; the memory is read into again when it returns. */
export function openSocket(origin: Origin, onBytes: (bytes: Buffer) => void): Socket {
  const onread: OnReadOpts = {
    buffer: readBuffer,
    callback: (size) => {
      onBytes(readBuffer.subarray(0, size));
      return true;
    },
  };
  const { hostname: host, port, session, socketPath } = origin;
  if (socketPath !== undefined) return connectPlain({ path: socketPath, onread });
  const options: NetConnectOpts = {
    host,
    port,
    noDelay: true,
    keepAlive: true,
    keepAliveInitialDelay: PROBE_MS,
    onread,
  };
  if (!origin.isSecure) return connectPlain(options);
  const secure: ConnectionOptions = {
    ...options,
    ALPNProtocols: ['http/1.1'],
    ...(session === undefined ? {} : { session }),
  };
  const socket = connectSecure(isAddress(host) ? secure : { ...secure, servername: host });
  socket.on('session', (next: Buffer) => (origin.session = next));
  return socket;
}

const isAddress = (host: string): boolean => /^[\d.]+$|:/.test(host);
