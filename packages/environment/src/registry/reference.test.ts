import { PlatformError } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isLoopback, parseReference, printReference } from './reference.ts';

const digest = `sha256:${'a'.repeat(64)}`;

describe('a reference', () => {
  it.each([
    ['debian', 'docker.io/library/debian:latest'],
    ['python:3.12-slim', 'docker.io/library/python:3.12-slim'],
    ['team/app', 'docker.io/team/app:latest'],
    ['docker.io/debian', 'docker.io/library/debian:latest'],
    ['index.docker.io/library/debian:12', 'docker.io/library/debian:12'],
    ['ghcr.io/org/sub/app:V1.0_x', 'ghcr.io/org/sub/app:V1.0_x'],
    ['localhost/app', 'localhost/app:latest'],
    ['localhost:5000/app:1', 'localhost:5000/app:1'],
    ['127.0.0.1:5000/a/b', '127.0.0.1:5000/a/b:latest'],
    ['[::1]:5000/app:1', '[::1]:5000/app:1'],
    ['Registry/app', 'Registry/app:latest'],
    ['host:80/app', 'host:80/app:latest'],
    ['org__task-1__x', 'docker.io/library/org__task-1__x:latest'],
    [`debian@${digest}`, `docker.io/library/debian@${digest}`],
    [`ghcr.io/o/app:1@${digest}`, `ghcr.io/o/app:1@${digest}`],
  ])('%s means %s', (text, whole) => {
    expect(printReference(parseReference(text))).toBe(whole);
  });

  it.each([
    '',
    ':',
    '@',
    'Debian',
    'a//b',
    '/a',
    'a/',
    'a b',
    'a:',
    'a:-x',
    `a:${'x'.repeat(129)}`,
    'a@sha256:12',
    'a@b',
    'host:0/a',
    'host:70000/a',
    'host:5000',
    '1.2.3.4.5/a',
    '[:::]/a',
    'a..b:x/c',
    'http://host/a',
    'user:password@host/a',
    'a..b',
    'a/../b',
    'a'.repeat(256),
    'x'.repeat(2000),
  ])('%s is none', (text) => {
    // `host:5000` alone is a name with a tag, as it is for docker.
    if (text === 'host:5000') expect(printReference(parseReference(text))).toBe('docker.io/library/host:5000');
    else expect(() => parseReference(text)).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
  });

  it('that is refused is not repeated: it may hold a password', () => {
    expect(() => parseReference('https://user:word@host/a')).toThrow(/^(?!.*word)/);
  });

  it('with a digest of another algorithm is not supported', () => {
    expect(() => parseReference(`a@sha512:${'a'.repeat(128)}`)).toThrow(
      expect.objectContaining({ code: 'image_unsupported' }),
    );
  });

  it('of any text is read or refused, and what is printed is read the same (fuzz)', () => {
    const part = fc.constantFrom(
      'a',
      'A',
      '.',
      ':',
      '/',
      '@',
      '-',
      '_',
      '0',
      '[',
      ']',
      'localhost',
      'docker.io',
      digest,
    );
    const text = fc.oneof(
      fc.string(),
      fc.array(part, { maxLength: 12 }).map((parts) => parts.join('')),
    );
    fc.assert(
      fc.property(text, (given) => {
        try {
          const reference = parseReference(given);
          expect(parseReference(printReference(reference))).toEqual(reference);
          // It becomes a part of an address, and must not change the rest of that.
          const url = new URL(`/v2/${reference.repository}/manifests/${reference.tag}`, `http://${reference.registry}`);
          expect(url.pathname).toBe(`/v2/${reference.repository}/manifests/${reference.tag}`);
        } catch (error) {
          if (!PlatformError.is(error)) throw error;
        }
      }),
      { numRuns: 3000 },
    );
  });
});

describe('the loopback of this machine', () => {
  it.each(['localhost', 'a.localhost', '127.0.0.1', '127.9.9.9', '[::1]'])('is %s', (name) => {
    expect(isLoopback(name)).toBe(true);
  });
  it.each(['127.0.0.1.example.org', 'localhost.example.org', 'notlocalhost', '128.0.0.1', '0.0.0.0'])(
    'is not %s',
    (name) => {
      expect(isLoopback(name)).toBe(false);
    },
  );
});
