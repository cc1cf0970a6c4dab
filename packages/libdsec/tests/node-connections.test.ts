/** Connections of the transport of Node: how they are kept, broken and secured. */
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import https from 'node:https';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { getCACertificates, setDefaultCACertificates } from 'node:tls';
import { PlatformError } from '@dsec/contract';
import { run, SystemClock } from '@dsec/kit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Cancellation } from '../src/http/cancellation.ts';
import type { Transport } from '../src/http/transport.ts';
import { echo, failure, get, MAX, TransportBench } from './transport-bench.ts';

const clock = new SystemClock();
let bench: TransportBench;
let transport: Transport;
beforeEach(() => {
  bench = new TransportBench();
  ({ transport } = bench);
});
afterEach(() => bench[Symbol.asyncDispose]());

describe('a connection', () => {
  test('to nobody is told as such', async () => {
    const server = createServer();
    const address = await bench.listen(server);
    await bench.closeServers();
    await expect(transport.send(get(`http://${address}/`))).rejects.toThrow(failure('server_unreachable'));
    await expect(transport.send(get('http://name.invalid/'))).rejects.toThrow(failure('server_unreachable'));
  });

  test('that the server closes while it is idle is not used again', async () => {
    const sockets: Socket[] = [];
    const url = await bench.raw((socket) => {
      sockets.push(socket);
      socket.on('data', () => socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'));
    });
    for (let i = 1; i <= 3; i += 1) {
      expect(await (await transport.send(get(url))).text(MAX)).toBe('ok');
      expect(sockets).toHaveLength(i);
      const last = sockets.at(-1);
      last?.end();
      if (last !== undefined) await once(last, 'close');
    }
  });

  test('that the server will close before long is not used again', async () => {
    let connections = 0;
    const url = await bench.raw((socket) => {
      connections += 1;
      socket.on('data', () => socket.write('HTTP/1.1 200 OK\r\nkeep-alive: timeout=1\r\ncontent-length: 2\r\n\r\nok'));
    });
    for (let i = 0; i < 2; i += 1) await (await transport.send(get(url))).text(MAX);
    expect(connections).toBe(2);
  });

  test('on which something comes that nobody asked for is given up', async () => {
    const sockets: Socket[] = [];
    const url = await bench.raw((socket) => {
      sockets.push(socket);
      socket.on('data', () => socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'));
    });
    await (await transport.send(get(url))).text(MAX);
    const [first] = sockets;
    if (first === undefined) throw new Error('no connection came');
    first.write('HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil');
    await once(first, 'close');
    expect(await (await transport.send(get(url))).text(MAX)).toBe('ok');
    expect(sockets).toHaveLength(2);
  });

  test('does not hold a process that has nothing else to do', async () => {
    const script = `
      import http from 'node:http';
      import { nodeTransport } from ${JSON.stringify(join(import.meta.dirname, '../src/http/node/node-transport.ts'))};
      const server = http.createServer((request, response) => response.end('ok'));
      server.listen(0, '127.0.0.1', async () => {
        const transport = nodeTransport({ monotonicMs: () => 0 });
        const response = await transport.send({ method: 'GET', url: 'http://127.0.0.1:' + server.address().port + '/', headers: {} });
        console.log(await response.text(10));
        server.unref();
      });
      server.on('connection', (socket) => socket.unref());`;
    const argv = ['--disable-warning=ExperimentalWarning', '--input-type=module', '--eval', script];
    const { stdout } = await run([process.execPath, ...argv], { clock, timeoutMs: 20_000, cwd: import.meta.dirname });
    expect(stdout.toString()).toBe('ok\n');
  });

  test('over TLS carries the same', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'dsec-tls-'));
    try {
      const [key, cert] = [join(directory, 'key.pem'), join(directory, 'cert.pem')];
      const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'];
      const form = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'];
      await run(['openssl', 'req', '-x509', ...form, ...subject, '-keyout', key, '-out', cert], {
        clock,
        env: { PATH: '/usr/bin:/bin' },
      });
      const server = https.createServer({ key: readFileSync(key), cert: readFileSync(cert) }, echo);
      const port = (await bench.listen(server)).split(':')[1] ?? '';
      // Nobody vouches for this server.
      await expect(transport.send(get(`https://127.0.0.1:${port}/`))).rejects.toThrow(failure('connection_lost'));
      const known = getCACertificates('default');
      setDefaultCACertificates([...known, readFileSync(cert, 'utf8')]);
      try {
        const body = 'x'.repeat(300_000);
        for (const host of ['127.0.0.1', 'localhost', 'localhost']) {
          const response = await transport.send(get(`https://${host}:${port}/`, { method: 'POST', body }));
          expect(await response.text(MAX)).toBe(body);
        }
      } finally {
        setDefaultCACertificates(known);
      }
    } finally {
      rmSync(directory, { recursive: true });
    }
  });
});

describe('a cancellation', () => {
  test('before anything is sent opens no connection', async () => {
    const { url, connections } = await bench.http(echo);
    const cancellation = new Cancellation();
    cancellation.cancel(new PlatformError('timeout', 'late'));
    await expect(transport.send(get(url, { cancellation }))).rejects.toThrow(failure('timeout'));
    expect(connections()).toBe(0);
  });

  test.each(['before the head', 'in the body'])(
    '%s rejects with its reason and closes the connection',
    async (when) => {
      let isClosed = false;
      const arrived = Promise.withResolvers<void>();
      const { url } = await bench.http((request, response) => {
        request.socket.once('close', () => (isClosed = true));
        arrived.resolve();
        if (when === 'in the body') response.write('a');
      });
      const cancellation = new Cancellation();
      const sending = transport.send(get(url, { cancellation }));
      if (when === 'in the body') {
        const response = await sending;
        const pumped = response.pump(() => {
          setImmediate(() => cancellation.cancel(new PlatformError('timeout', 'late')));
          return undefined;
        });
        await expect(pumped).rejects.toThrow(failure('timeout'));
      } else {
        await arrived.promise;
        cancellation.cancel(new PlatformError('timeout', 'late'));
        await expect(sending).rejects.toThrow(failure('timeout'));
      }
      await expect.poll(() => isClosed).toBe(true);
    },
  );

  test('after the answer does nothing to the connection', async () => {
    const { url, connections } = await bench.http(echo);
    const cancellation = new Cancellation();
    await (await transport.send(get(url, { cancellation }))).text(MAX);
    cancellation.cancel(new PlatformError('timeout', 'late'));
    await (await transport.send(get(url))).text(MAX);
    expect(connections()).toBe(1);
  });

  test('of the client breaks what is under way, and nothing is sent any more', async () => {
    const { url } = await bench.http(() => undefined);
    const sending = transport.send(get(url));
    await Promise.all([expect(sending).rejects.toThrow(failure('cancelled')), transport.close()]);
    await expect(transport.send(get(url))).rejects.toThrow(failure('cancelled'));
  });
});
