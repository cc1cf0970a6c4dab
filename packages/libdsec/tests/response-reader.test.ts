/** The reader of HTTP answers: any cut of the bytes gives the same answer, and what is not well formed ends the connection. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ResponseReader, type ResponseHead } from '../src/http/node/response-reader.ts';

interface Read {
  readonly heads: ResponseHead[];
  readonly bodies: string[];
  ended: number;
  readonly reader: ResponseReader;
}

function read(): Read {
  const seen: Read = {
    heads: [],
    bodies: [],
    ended: 0,
    reader: new ResponseReader({
      onHead: (head) => {
        seen.heads.push(head);
        seen.bodies.push('');
      },
      onBody: (bytes) => {
        seen.bodies[seen.bodies.length - 1] += bytes.toString('latin1');
      },
      onEnd: () => {
        seen.ended += 1;
      },
    }),
  };
  seen.reader.expect();
  return seen;
}

function readAll(text: string): Read {
  const seen = read();
  seen.reader.push(Buffer.from(text, 'latin1'));
  return seen;
}

const chunked = (parts: readonly string[], tail = '0\r\n\r\n'): string =>
  parts.map((part) => `${part.length.toString(16)}\r\n${part}\r\n`).join('') + tail;

describe('an answer', () => {
  test.each([
    ['with a length', 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello', 200, 'hello', true],
    ['of no bytes', 'HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n', 200, '', true],
    ['without a body', 'HTTP/1.1 204 No Content\r\n\r\n', 204, '', true],
    ['without a reason', 'HTTP/1.1 204\r\n\r\n', 204, '', true],
    ['in chunks', `HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n${chunked(['hel', 'lo'])}`, 200, 'hello', true],
    [
      'with trailers and extensions of chunks',
      'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5 ;a=b\r\nhello\r\n0\r\nx: y\r\nz: w\r\n\r\n',
      200,
      'hello',
      true,
    ],
    ['that closes', 'HTTP/1.1 500 No\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno', 500, 'no', false],
    ['of the older protocol', 'HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok', 200, 'ok', false],
    [
      'after one that only announces it',
      'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok',
      200,
      'ok',
      true,
    ],
  ])('%s is read, however it is cut', (_name, text, status, body, isKept) => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 0, max: text.length }), { maxLength: 8 }), (cuts) => {
        const seen = read();
        const bytes = Buffer.from(text, 'latin1');
        const edges = [0, ...cuts.toSorted((left, right) => left - right), bytes.length];
        for (const [i, at] of edges.entries()) seen.reader.push(bytes.subarray(at, edges[i + 1] ?? at));
        expect(seen.heads.map((head) => [head.status, head.isKept])).toEqual([[status, isKept]]);
        expect(seen.bodies).toEqual([body]);
        expect(seen.ended).toBe(1);
      }),
      { numRuns: 60 },
    );
  });

  test('without a length ends with the connection', () => {
    const seen = readAll('HTTP/1.1 200 OK\r\n\r\nhel');
    seen.reader.push(Buffer.from('lo'));
    expect(seen.ended).toBe(0);
    expect(seen.reader.close()).toBe(true);
    expect([seen.bodies, seen.ended, seen.heads[0]?.isKept]).toEqual([['hello'], 1, false]);
  });

  test('that breaks off has no end', () => {
    const seen = readAll('HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel');
    expect(seen.reader.close()).toBe(false);
    expect(seen.ended).toBe(0);
  });

  test.each([
    ['no HTTP', 'SSH-2.0-OpenSSH_9.2\r\n\r\n'],
    ['another version', 'HTTP/2.0 200 OK\r\n\r\n'],
    ['no status', 'HTTP/1.1 OK\r\n\r\n'],
    ['a header without a name', 'HTTP/1.1 200 OK\r\n: a\r\n\r\n'],
    ['a header without a colon', 'HTTP/1.1 200 OK\r\nhello\r\n\r\n'],
    ['a name with a blank', 'HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok'],
    ['a folded line', 'HTTP/1.1 200 OK\r\na: b\r\n c: d\r\n\r\n'],
    ['two lengths', 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok'],
    ['a length and chunks', 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok'],
    ['a length below zero', 'HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok'],
    ['a length that is no number', 'HTTP/1.1 200 OK\r\ncontent-length: 0x2\r\n\r\nok'],
    ['a length beyond all', 'HTTP/1.1 200 OK\r\ncontent-length: 9999999999999999\r\n\r\nok'],
    ['an unknown coding', 'HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\nok'],
    ['a change of protocol', 'HTTP/1.1 101 Switching\r\n\r\n'],
    ['a chunk without a size', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nz\r\n'],
    ['a chunk of a size below zero', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n'],
    ['a chunk longer than its size', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n'],
    ['a chunk line of another end', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\nab\r\n'],
    ['a chunk line without end', `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;${'x'.repeat(5000)}`],
    ['a head without end', `HTTP/1.1 200 OK\r\na: ${'x'.repeat(70_000)}`],
    ['a large head', `HTTP/1.1 200 OK\r\na: ${'x'.repeat(70_000)}\r\n\r\n`],
    ['more than its length', 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n'],
  ])('of %s is refused', (_name, text) => {
    expect(() => readAll(text)).toThrowError(expect.objectContaining({ code: 'protocol_error' }) as Error);
  });

  test('is read or refused, never anything else, whatever it is', () => {
    const word = fc.constantFrom(
      'HTTP/1.1 200 OK',
      '\r\n',
      '\n',
      ': ',
      'content-length',
      '3',
      'transfer-encoding',
      'chunked',
      'a',
      '0',
      ' ',
    );
    fc.assert(
      fc.property(fc.array(fc.oneof(word, fc.string({ maxLength: 4 })), { maxLength: 40 }), (words) => {
        try {
          const seen = readAll(words.join(''));
          expect(seen.ended).toBeLessThanOrEqual(1);
        } catch (error) {
          expect(error).toMatchObject({ code: 'protocol_error' });
        }
      }),
      { numRuns: 500 },
    );
  });
});
