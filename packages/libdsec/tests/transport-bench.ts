/** Servers for the tests of the transport. */
import { once } from 'node:events';
import http from 'node:http';
import { createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { expect } from 'vitest';
import { nodeTransport } from '../src/http/node/node-transport.ts';
import type { Transport, TransportRequest } from '../src/http/transport.ts';
import { systemTiming } from '../src/platform/timing.ts';

/** Bound of answers that are text. */
export const MAX = 1_000_000;

type Handler = (request: http.IncomingMessage, response: http.ServerResponse) => void;

/** A transport, and servers that end with it. */
export class TransportBench implements AsyncDisposable {
  readonly transport: Transport = nodeTransport(systemTiming);
  readonly #closers: (() => Promise<void>)[] = [];

  /** Listens; returns host and port. */
  async listen(server: Server): Promise<string> {
    const sockets = new Set<Socket>();
    server.on('connection', (socket: Socket) => {
      sockets.add(socket);
      socket.on('error', () => undefined);
      socket.once('close', () => sockets.delete(socket));
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    this.#closers.push(async () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, 'close');
    });
    return `127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  /** An HTTP server, and how many connections it has seen. */
  async http(handler: Handler): Promise<{ url: string; connections: () => number }> {
    let connections = 0;
    const server = http.createServer(handler);
    server.on('connection', () => (connections += 1));
    return { url: `http://${await this.listen(server)}`, connections: () => connections };
  }

  /** A server of bytes. */
  async raw(onConnection: (socket: Socket) => void): Promise<string> {
    return `http://${await this.listen(createServer(onConnection))}`;
  }

  async closeServers(): Promise<void> {
    for (const close of this.#closers.splice(0)) await close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.transport.close();
    await this.closeServers();
  }
}

export const get = (url: string, more: Partial<TransportRequest> = {}): TransportRequest => ({
  method: 'GET',
  url,
  headers: {},
  ...more,
});

export const failure = (code: string): Error => expect.objectContaining({ code }) as Error;

export const echo: Handler = (request, response) => {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    response.setHeader('x-method', request.method ?? '');
    response.setHeader('x-url', request.url ?? '');
    response.end(Buffer.concat(chunks));
  });
};
