import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { envVariable } from '@dsec/kit';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { parsePage, writeHtml, writeJson } from './pypi-page.ts';
import { parseTarget } from './request-target.ts';
import { loadServices, parseServices } from './service.ts';
import { compareVersions } from './version-order.ts';
import { VersionPins } from './version-pins.ts';

const fieldOf = (work: () => unknown): unknown => {
  try {
    return work();
  } catch (error) {
    return PlatformError.is(error) ? [error.code, error.details.field] : error;
  }
};

describe('the file of services', () => {
  const good = { name: 'pypi', kind: 'pypi', upstream: 'https://index.test/root/' };

  test('is read', () => {
    const directory = mkdtempSync(join(tmpdir(), 'dsec-services-'));
    try {
      const file = join(directory, 'services.json');
      writeFileSync(file, JSON.stringify([good]));
      expect(loadServices(file)).toEqual([good]);
      writeFileSync(file, '[');
      expect(fieldOf(() => loadServices(file))).toEqual(['config_invalid', '']);
      expect(fieldOf(() => loadServices(join(directory, 'none.json')))).toEqual(['config_invalid', '']);
    } finally {
      rmSync(directory, { recursive: true });
    }
  });

  test.each<readonly [string, unknown, string]>([
    ['a name twice', [good, good], '1.name'],
    ['a name that is no label', [{ ...good, name: 'a.b' }], '0.name'],
    ['an unknown kind', [{ ...good, kind: 'cran' }], '0.kind'],
    ['an unknown member', [{ ...good, token: 'x' }], '0.token'],
    ['an account in the URL', [{ ...good, upstream: 'https://me:secret@index.test/' }], '0.upstream'],
    ['another scheme', [{ ...good, upstream: 'file:///etc' }], '0.upstream'],
    ['files of another kind', [{ ...good, kind: 'npm', files: 'https://files.test/' }], '0.files'],
    ['pins without versions', [{ ...good, kind: 'generic', pins: { before: '2024-01-01' } }], '0.pins'],
    ['a date that is none', [{ ...good, pins: { before: '2024-13-01' } }], '0.pins.before'],
    ['a header with a line break', [{ ...good, headers: { a: 'b\r\nc: d' } }], '0.headers.a'],
  ])('is refused with %s', (_name, value, field) => {
    expect(fieldOf(() => parseServices(value))).toEqual(['config_invalid', field]);
  });
});

test('pins want both, list and date, and know the time of what they let through', () => {
  const pins = new VersionPins({ before: '2024-01-02', allow: ['@a/b', 'c@1'] }, (name) => name);
  const day = Date.parse('2024-01-01');
  const allows = (name: string, version: string, publishedMs: number | undefined = day) =>
    pins.allows({ name, version, publishedMs });
  expect([allows('@a/b', '7'), allows('c', '1'), allows('c', '2'), allows('d', '1')]).toEqual([
    true,
    true,
    false,
    false,
  ]);
  expect([
    allows('c', '1', Date.parse('2024-01-03')),
    pins.allows({ name: 'c', version: '1', publishedMs: undefined }),
  ]).toEqual([false, false]);
});

test('versions are ordered as semver.org has it', () => {
  const ordered = [
    'v1.0.0-alpha',
    'v1.0.0-alpha.1',
    'v1.0.0-alpha.beta',
    'v1.0.0-beta',
    'v1.0.0-beta.2',
    'v1.0.0-beta.11',
    'v1.0.0-rc.1',
    'v1.0.0',
    'v1.2.0',
    'v1.10.0',
    'v2.0.0+incompatible',
  ];
  expect(ordered.toReversed().toSorted(compareVersions)).toEqual(ordered);
});

const fuzzMs = Number(envVariable('DSEC_FUZZ_SECONDS') ?? 1) * 500;
const limits = { numRuns: Number.MAX_SAFE_INTEGER, interruptAfterTimeLimit: fuzzMs } as const;

test('fuzz: no target leads out of its root, however it is read', () => {
  const piece = fc.constantFrom(
    '/',
    '.',
    '..',
    '%2e',
    '%2f',
    '%5c',
    '\\',
    'a',
    '%',
    '%25',
    '?',
    '#',
    '%00',
    ' ',
    '@',
    '\u00e9',
  );
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 12 }), (pieces) => {
      const target = parseTarget(`/${pieces.join('')}`);
      if (target === undefined) return;
      for (const path of [target.path, target.decoded, decodeURIComponent(target.decoded.replaceAll('%', '%25'))]) {
        expect(path.split(/[/\\]/)).not.toContain('..');
        expect(new URL(`http://h/base${path}`).pathname.startsWith('/base/')).toBe(true);
      }
    }),
    limits,
  );
});

test('fuzz: a page of an index is read or refused, and what is written of it is read the same', () => {
  const base = new URL('http://index.test/simple/x/');
  const text = fc.oneof(
    fc.string({ maxLength: 200 }),
    fc.json({ maxDepth: 4 }),
    fc
      .array(
        fc.constantFrom(
          '<a ',
          'href=',
          '"x-1.tar.gz"',
          '>',
          '</a>',
          "'",
          '#sha256=ab',
          '&lt;',
          '&#x41;',
          '&#99999999;',
          'data-yanked=""',
          ' ',
          'x-1.tar.gz',
        ),
        { maxLength: 30 },
      )
      .map((parts) => parts.join('')),
    fc
      .array(
        fc.record({
          filename: fc.string(),
          url: fc.webUrl(),
          yanked: fc.oneof(fc.boolean(), fc.string()),
          hashes: fc.dictionary(fc.string(), fc.string()),
        }),
      )
      .map((files) => JSON.stringify({ files })),
  );
  fc.assert(
    fc.property(fc.constantFrom('text/html', 'application/json', 'text/plain'), text, (type, body) => {
      const files = parsePage(type, body, base);
      if (files === undefined) return;
      const page = { project: 'x', versions: [], files: files.map((file) => ({ ...file, href: file.url.href })) };
      expect(parsePage('application/json', writeJson(page), base)?.map(({ filename }) => filename)).toEqual(
        files.map(({ filename }) => filename),
      );
      // Nothing of a name or link gets out of its place.
      expect(writeHtml(page).match(/<a /g)?.length ?? 0).toBe(files.length);
    }),
    limits,
  );
});
