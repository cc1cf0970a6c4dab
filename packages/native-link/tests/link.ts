/** A client and a server over a real unix socket. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Clock, type Connection, SystemClock, SystemNetwork } from '@dsec/kit';

import { WireClient, type WireClientOptions } from '../src/wire/client.ts';
import { serve, type WireHandler, type WireServer, type WireServerOptions } from '../src/wire/server.ts';

export interface LinkOptions {
  readonly clock?: Clock;
  readonly client?: Partial<WireClientOptions>;
  readonly server?: Partial<WireServerOptions>;
}

export interface Link extends AsyncDisposable {
  readonly client: WireClient;
  readonly server: WireServer;
  /** What handlers threw that is no PlatformError. */
  readonly faults: unknown[];
}

/** The two ends of one real unix socket. */
export const socketPair = async (): Promise<
  { readonly near: Connection; readonly far: Connection } & AsyncDisposable
> => {
  const directory = await mkdtemp(join(tmpdir(), 'dsec-link-'));
  const network = new SystemNetwork();
  const accepted = Promise.withResolvers<Connection>();
  const listener = await network.listenUnix(join(directory, 'socket'), accepted.resolve);
  const near = await network.connectUnix(join(directory, 'socket'));
  const far = await accepted.promise;
  return {
    near,
    far,
    async [Symbol.asyncDispose]() {
      near.destroy();
      far.destroy();
      await listener.close();
      await rm(directory, { recursive: true });
    },
  };
};

export const link = async (handler: WireHandler, options: LinkOptions = {}): Promise<Link> => {
  const pair = await socketPair();
  const clock = options.clock ?? new SystemClock();
  const faults: unknown[] = [];
  const onFault = (fault: unknown): void => void faults.push(fault);
  const server = serve(pair.far, handler, { role: 'server', clock, onFault, ...options.server });
  const client = WireClient.connect(pair.near, { role: 'client', clock, ...options.client });
  return {
    client,
    server,
    faults,
    async [Symbol.asyncDispose]() {
      await client.close();
      await server.close();
      await pair[Symbol.asyncDispose]();
    },
  };
};
