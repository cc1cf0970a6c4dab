/** Requests and answers of the transport of Node, against real servers. */
import { PlatformError } from '@dsec/contract';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Transport, TransportRequest } from '../src/http/transport.ts';
import { echo, failure, get, MAX, TransportBench } from './transport-bench.ts';

let bench: TransportBench;
let transport: Transport;
beforeEach(() => {
  bench = new TransportBench();
  ({ transport } = bench);
});
afterEach(() => bench[Symbol.asyncDispose]());

describe('a request', () => {
  test.each<[string, string, TransportRequest['body'], string]>([
    ['no body', 'DELETE', undefined, ''],
    ['text', 'POST', 'grüße', 'grüße'],
    ['bytes', 'PUT', new Uint8Array([104, 105]), 'hi'],
  ])('of %s arrives as it is', async (_name, method, body, text) => {
    const { url } = await bench.http(echo);
    const response = await transport.send(get(`${url}/a?b=c`, { method, body }));
    expect([response.status, response.header('X-Method'), response.header('x-url')]).toEqual([200, method, '/a?b=c']);
    expect(await response.text(MAX)).toBe(text);
  });

  test('one after another uses one connection, several at once use several', async () => {
    const { url, connections } = await bench.http(echo);
    for (let i = 0; i < 5; i += 1) expect(await (await transport.send(get(url))).text(MAX)).toBe('');
    expect(connections()).toBe(1);
    await Promise.all(
      Array.from({ length: 20 }, async (_, i) => {
        const response = await transport.send(get(url, { method: 'POST', body: `${i}` }));
        expect(await response.text(MAX)).toBe(`${i}`);
      }),
    );
    expect(connections()).toBeLessThanOrEqual(20);
  });

  test('of a stream is sent as it comes, as fast as it is read', async () => {
    let sent = 0;
    let read = 0;
    let furthest = 0;
    const { url } = await bench.http((request, response) => {
      request.on('data', (chunk: Buffer) => {
        read += chunk.length;
        furthest = Math.max(furthest, sent - read);
        request.pause();
        setImmediate(() => request.resume());
      });
      request.on('end', () => response.end());
    });
    async function* body(): AsyncGenerator<Uint8Array> {
      for (let i = 0; i < 400; i += 1) {
        yield await Promise.resolve(Buffer.alloc(i === 7 ? 0 : 65_536));
        sent += 65_536;
      }
    }
    await (await transport.send(get(url, { method: 'PUT', body: body() }))).text(MAX);
    expect(read).toBe(399 * 65_536);
    // What lies between is in the buffers of the two sockets.
    expect(furthest).toBeLessThan(16_000_000);
  });

  test('whose answer comes before its body is sent is over, and its source is let go', async () => {
    let isLetGo = false;
    const { url, connections } = await bench.http((request, response) => {
      if (request.method === 'PUT') response.writeHead(507, { 'content-length': 4 }).end('full');
      else response.end('ok');
      request.resume();
    });
    async function* body(): AsyncGenerator<Uint8Array> {
      try {
        for (;;) yield await new Promise<Buffer>((resolve) => setImmediate(() => resolve(Buffer.alloc(10))));
      } finally {
        isLetGo = true;
      }
    }
    const response = await transport.send(get(url, { method: 'PUT', body: body() }));
    expect([response.status, await response.text(MAX)]).toEqual([507, 'full']);
    await expect.poll(() => isLetGo).toBe(true);
    // That connection is no good for another request.
    expect(await (await transport.send(get(url))).text(MAX)).toBe('ok');
    expect(connections()).toBe(2);
  });

  test('whose source fails is broken off with its error', async () => {
    let isBroken = false;
    const arrived = Promise.withResolvers<void>();
    const { url } = await bench.http((request) => {
      request.resume().on('error', () => (isBroken = true));
      arrived.resolve();
    });
    async function* body(): AsyncGenerator<Uint8Array> {
      yield await Promise.resolve(Buffer.alloc(10));
      await arrived.promise;
      throw new PlatformError('file_not_found', 'gone');
    }
    await expect(transport.send(get(url, { method: 'PUT', body: body() }))).rejects.toThrow(failure('file_not_found'));
    await expect.poll(() => isBroken).toBe(true);
  });

  test('of a source that never waits ends when the server breaks the connection', async () => {
    let isLetGo = false;
    const url = await bench.raw((socket) => {
      socket.once('data', () => socket.destroy());
    });
    async function* body(): AsyncGenerator<Uint8Array> {
      try {
        for (;;) yield await Promise.resolve(new Uint8Array(65_536));
      } finally {
        isLetGo = true;
      }
    }
    await expect(transport.send(get(url, { method: 'PUT', body: body() }))).rejects.toThrow(failure('connection_lost'));
    await expect.poll(() => isLetGo).toBe(true);
  });

  test.each([
    ['a header with a line break', { headers: { authorization: 'Bearer a\r\nx: y' } }],
    ['a header with a NUL', { headers: { authorization: 'a\0' } }],
    ['a header beyond Latin-1', { headers: { authorization: 'schlüssel→' } }],
    ['an address with a line break', { url: 'http://127.0.0.1:1/a\r\nx:y' }],
    ['an address with a blank', { url: 'http://127.0.0.1:1/a b' }],
  ])('of %s is not sent', async (_name, more) => {
    await expect(transport.send(get('http://127.0.0.1:1/', more))).rejects.toThrow(failure('invalid_argument'));
  });
});

describe('an answer', () => {
  test('waits for whoever takes it', async () => {
    let written = 0;
    const { url } = await bench.http((_request, response) => {
      const more = (): void => {
        while (written < 64_000_000) {
          written += 65_536;
          if (!response.write(Buffer.alloc(65_536, 97))) {
            response.once('drain', more);
            return;
          }
        }
        response.end();
      };
      more();
    });
    const response = await transport.send(get(url));
    let taken = 0;
    let isFree = false;
    let go: () => void = () => undefined;
    const pumped = response.pump((chunk) => {
      taken += chunk.length;
      return isFree || taken < 1_000_000
        ? undefined
        : new Promise((resolve) => {
            go = resolve;
          });
    });
    await expect.poll(() => taken >= 1_000_000).toBe(true);
    await expect.poll(() => written).toSatisfy(() => written < 32_000_000);
    const before = written;
    isFree = true;
    go();
    await pumped;
    expect(taken).toBe(written);
    expect(before).toBeLessThan(written);
  });

  test('can be iterated over, and left early', async () => {
    const { url, connections } = await bench.http((request, response) => {
      response.write('a'.repeat(100_000));
      if (request.url === '/whole') response.end('b');
    });
    const whole: Uint8Array[] = [];
    for await (const chunk of (await transport.send(get(`${url}/whole`))).body) whole.push(chunk);
    expect(Buffer.concat(whole).toString()).toBe(`${'a'.repeat(100_000)}b`);
    for await (const chunk of (await transport.send(get(`${url}/endless`))).body) {
      expect(chunk.length).toBeGreaterThan(0);
      break;
    }
    // The connection of the one that was left is closed, not used again.
    await (await transport.send(get(`${url}/whole`))).text(MAX);
    expect(connections()).toBe(2);
  });

  test('that is larger than it may be is refused', async () => {
    const { url } = await bench.http((_request, response) => response.end('a'.repeat(2000)));
    const response = await transport.send(get(url));
    await expect(response.text(1000)).rejects.toThrow(failure('protocol_error'));
  });

  test('that breaks off is no answer; what came before is taken', async () => {
    const url = await bench.raw((socket) => {
      socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello'));
    });
    const response = await transport.send(get(url));
    let text = '';
    const pumped = response.pump((chunk) => {
      text += Buffer.from(chunk).toString();
      return undefined;
    });
    await expect(pumped).rejects.toThrow(failure('connection_lost'));
    expect(text).toBe('hello');
  });

  test.each([
    ['is no HTTP', 'nonsense\r\n\r\n', 'protocol_error'],
    ['never comes', '', 'connection_lost'],
  ])('that %s fails', async (_name, answer, code) => {
    const url = await bench.raw((socket) => {
      socket.once('data', () => socket.end(answer));
    });
    await expect(transport.send(get(url))).rejects.toThrow(failure(code));
  });

  test('without a length ends with its connection', async () => {
    const url = await bench.raw((socket) => {
      socket.once('data', () => socket.end('HTTP/1.1 200 OK\r\n\r\nhello'));
    });
    expect(await (await transport.send(get(url))).text(MAX)).toBe('hello');
    expect(await (await transport.send(get(url))).text(MAX)).toBe('hello');
  });
});
