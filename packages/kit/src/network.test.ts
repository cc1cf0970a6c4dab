import { mkdtemp, rm } from 'node:fs/promises';
import { existsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { SystemClock } from './clock.ts';
import type { Peer } from './datagrams.ts';
import { MemoryNetwork, SystemNetwork, type Connection, type Network } from './network.ts';
import { run } from './spawn.ts';

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'kit-network-'));
});
afterAll(() => rm(directory, { recursive: true }));

const echo = (connection: Connection): void => void connection.pipe(connection);

async function readAll(connection: Connection): Promise<string> {
  let text = '';
  for await (const chunk of connection) text += String(chunk);
  return text;
}

const networks: readonly (readonly [string, () => Network])[] = [
  ['SystemNetwork', () => new SystemNetwork()],
  ['MemoryNetwork', () => new MemoryNetwork()],
];

describe.each(networks)('%s', (name, make) => {
  const pathOf = (test: string): string => join(directory, `${name}-${test}.sock`);

  test('carries bytes both ways and the end after the last byte', async () => {
    const network = make();
    await using _listener = await network.listenUnix(pathOf('echo'), echo);
    const connection = await network.connectUnix(pathOf('echo'));
    const big = 'x'.repeat(1_000_000);
    connection.end(big);
    expect(await readAll(connection)).toBe(big);
  });

  test('gives a free port for port 0', async () => {
    const network = make();
    await using listener = await network.listenTcp('127.0.0.1', 0, echo);
    const connection = await network.connectTcp('127.0.0.1', listener.port);
    connection.end('hello');
    expect(await readAll(connection)).toBe('hello');
  });

  test('says unavailable where nobody listens', async () => {
    const network = make();
    await expect(network.connectUnix(pathOf('nobody'))).rejects.toMatchObject({ code: 'unavailable' });
  });

  test('refuses a second listener while the first lives, and allows it after', async () => {
    const network = make();
    const first = await network.listenUnix(pathOf('twice'), echo);
    await expect(network.listenUnix(pathOf('twice'), echo)).rejects.toMatchObject({ code: 'already_running' });
    await first.close();
    await using _second = await network.listenUnix(pathOf('twice'), echo);
  });

  test('closes the connections of a listener that closes', async () => {
    const network = make();
    const listener = await network.listenUnix(pathOf('close'), () => undefined);
    const connection = await network.connectUnix(pathOf('close'));
    const closed = new Promise((resolve) => connection.once('close', resolve));
    connection.on('error', () => undefined).resume();
    await listener.close();
    await closed;
    expect(connection.destroyed).toBe(true);
  });

  test('closes one end when the other is destroyed', async () => {
    const network = make();
    const ends: Connection[] = [];
    await using _listener = await network.listenUnix(pathOf('destroy'), (end) => void ends.push(end.resume()));
    const connection = await network.connectUnix(pathOf('destroy'));
    await expect.poll(() => ends.length).toBe(1);
    connection.destroy();
    await expect.poll(() => ends[0]?.destroyed).toBe(true);
  });

  test('holds a writer back when nobody reads', async () => {
    const network = make();
    await using _listener = await network.listenUnix(pathOf('slow'), () => undefined);
    const connection = await network.connectUnix(pathOf('slow'));
    let written = 0;
    while (written < 100 && connection.write(Buffer.alloc(1_000_000))) written++;
    expect(written).toBeLessThan(100);
    connection.destroy();
  });

  test('says where a TCP connection comes from', async () => {
    const network = make();
    const from = Promise.withResolvers<Peer | undefined>();
    await using listener = await network.listenTcp('127.0.0.1', 0, (_connection, peer) => from.resolve(peer));
    const connection = await network.connectTcp('127.0.0.1', listener.port);
    expect(await from.promise).toEqual({ address: '127.0.0.1', port: expect.any(Number) as number });
    connection.destroy();
  });

  test('carries datagrams both ways between two sockets', async () => {
    const network = make();
    const server = await network.bindUdp('127.0.0.1', 0, (bytes, from) => void server.send(bytes, from));
    const answer = Promise.withResolvers<string>();
    const peer = { address: '127.0.0.1', port: server.port };
    await using client = await network.bindUdp('127.0.0.1', 0, (bytes) => answer.resolve(bytes.toString()), { peer });
    expect(client.send(Buffer.from('hello'))).toBe(true);
    expect(await answer.promise).toBe('hello');
    await server.close();
    await server.close();
    expect(server.send(Buffer.from('late'), peer)).toBe(false);
  });

  test('a datagram socket with a peer hears nobody else', async () => {
    const network = make();
    const heard: string[] = [];
    const done = Promise.withResolvers<undefined>();
    await using peer = await network.bindUdp('127.0.0.1', 0, () => undefined);
    await using stranger = await network.bindUdp('127.0.0.1', 0, () => undefined);
    const onDatagram = (bytes: Buffer): void => {
      heard.push(bytes.toString());
      done.resolve(undefined);
    };
    await using socket = await network.bindUdp('127.0.0.1', 0, onDatagram, {
      peer: { address: '127.0.0.1', port: peer.port },
    });
    const to = { address: '127.0.0.1', port: socket.port };
    stranger.send(Buffer.from('forged'), to);
    peer.send(Buffer.from('true'), to);
    await done.promise;
    expect(heard).toEqual(['true']);
  });

  test('a datagram to nobody is told where there is a peer', async () => {
    const network = make();
    const gone = await network.bindUdp('127.0.0.1', 0, () => undefined);
    const peer = { address: '127.0.0.1', port: gone.port };
    await gone.close();
    const told = Promise.withResolvers<Error>();
    await using socket = await network.bindUdp('127.0.0.1', 0, () => undefined, { peer, onError: told.resolve });
    socket.send(Buffer.from('hello'));
    expect(await told.promise).toMatchObject({ code: 'ECONNREFUSED' });
  });

  test('an address that is taken for datagrams is refused', async () => {
    const network = make();
    await using first = await network.bindUdp('127.0.0.1', 0, () => undefined);
    await expect(network.bindUdp('127.0.0.1', first.port, () => undefined)).rejects.toMatchObject({
      code: 'EADDRINUSE',
    });
  });

  test('does not connect when its signal has aborted', async () => {
    const network = make();
    await using _listener = await network.listenUnix(pathOf('abort'), echo);
    await expect(network.connectUnix(pathOf('abort'), { signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: 'cancelled',
    });
  });
});

test('a socket file that a dead process left behind is replaced', async () => {
  const path = join(directory, 'stale.sock');
  const script = `require('node:net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`;
  await expect(run([process.execPath, '-e', script], { clock: new SystemClock() })).rejects.toMatchObject({
    details: { signal: 'SIGKILL' },
  });
  expect(existsSync(path)).toBe(true);
  const network = new SystemNetwork();
  await using _listener = await network.listenUnix(path, echo);
  const connection = await network.connectUnix(path);
  connection.end('hello');
  expect(await readAll(connection)).toBe('hello');
});

test('breakAll ends every connection of a MemoryNetwork', async () => {
  const network = new MemoryNetwork();
  await using _listener = await network.listenUnix('/x', () => undefined);
  const connection = await network.connectUnix('/x');
  connection.resume();
  network.breakAll();
  await expect.poll(() => connection.destroyed).toBe(true);
});
