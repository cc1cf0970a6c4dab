import fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import { covers, formatPrefix, neverReachable, parsePrefix, type Prefix } from './network-address.ts';
import { formatDestination, isNeverReachable, parseDestination } from './network-destination.ts';

const outcome = (text: string): string => {
  const parsed = parseDestination(text);
  return parsed.ok ? formatDestination(parsed.destination) : `! ${parsed.reason}`;
};

test.each([
  ['1.2.3.4', '1.2.3.4'],
  ['1.2.3.4/32', '1.2.3.4'],
  ['0.0.0.0/0', '0.0.0.0/0'],
  ['10.0.0.0/8', '10.0.0.0/8'],
  ['2001:DB8:0:0:1:0:0:1', '2001:db8::1:0:0:1'],
  ['2001:db8::/32', '2001:db8::/32'],
  ['2001:db8::192.0.2.1', '2001:db8::c000:201'],
  ['1:2:3:4:5:6:7::', '1:2:3:4:5:6:7:0'],
  ['::/0', '::/0'],
  ['Example.COM.', 'example.com'],
  ['*.example.com', '*.example.com'],
  ['*.com', '*.com'],
  ['a_b.example', 'a_b.example'],
  ['bücher.example', 'xn--bcher-kva.example'],
  ['*.BÜCHER.example', '*.xn--bcher-kva.example'],
  ['xn--bcher-kva.example', 'xn--bcher-kva.example'],
])('%s is written %s', (text, written) => {
  expect(outcome(text)).toBe(written);
});

test.each([
  ['10.0.0.1/8', 'write 10.0.0.0/8'],
  ['10.0.0.0/33', 'prefix length from 0 to 32'],
  ['2001:db8::/129', 'prefix length from 0 to 128'],
  ['10.0.0.0/08', 'prefix length'],
  ['10.0.0.0/8/8', 'no IPv4'],
  ['01.2.3.4', 'no IPv4'],
  ['1.2.3', 'no IPv4'],
  ['0x7f.1', 'no IPv4'],
  ['2130706433', 'no IPv4'],
  ['256.1.1.1', 'no IPv4'],
  ['1::2::3', 'no IPv4'],
  ['1:2:3:4:5:6:7:8:9', 'no IPv4'],
  ['1:2:3:4:5:6:7:8::', 'no IPv4'],
  [':1:2:3:4:5:6:7', 'no IPv4'],
  ['1.2.3.4::', 'no IPv4'],
  ['fe80::1%eth0', 'no IPv4'],
  ['[2001:db8::1]', 'no IPv4'],
  ['https://a.example', 'scheme, path and port'],
  ['a.example:443', 'scheme, path and port'],
  ['*', 'default: "allow"'],
  ['a.*.example', 'whole first label'],
  ['*.*.example', 'whole first label'],
  ['*a.example', 'whole first label'],
  ['pypi', '`services`'],
  ['a..example', 'no name'],
  ['.a.example', 'no name'],
  ['-a.example', 'no name'],
  ['a b.example', 'no name'],
  ['a@b.example', 'no name'],
  ['a‍.example', 'no name'],
  ['١.١.١.١', 'no name'],
  ['', 'no name'],
  [`${'x'.repeat(64)}.example`, 'no name'],
  [`${'a.'.repeat(127)}ab`, 'longer than 253'],
])('%s is refused: %s', (text, reason) => {
  expect(outcome(text)).toMatch(/^! /);
  expect(outcome(text)).toContain(reason);
});

describe('what is never reachable', () => {
  it.each([
    '169.254.169.254',
    '127.0.0.1',
    '::1',
    'fe80::1',
    '::ffff:10.0.0.1',
    '64:ff9b::1',
    '2002:a00:1::',
    'fd00:ec2::254',
    'a.localhost',
  ])('%s', (text) => {
    const parsed = parseDestination(text);
    expect(parsed.ok && isNeverReachable(parsed.destination)).toBe(true);
  });

  it('is not a prefix that has more than that', () => {
    for (const text of ['0.0.0.0/0', '::/0', '8.8.8.8', 'fd00::/8', 'example.com']) {
      const parsed = parseDestination(text);
      expect(parsed.ok && !isNeverReachable(parsed.destination)).toBe(true);
    }
  });
});

const prefixes = fc
  .tuple(fc.constantFrom<4 | 6>(4, 6), fc.bigInt({ min: 0n, max: (1n << 128n) - 1n }), fc.nat(128))
  .map(([family, bits, length]): Prefix => {
    const width = family === 4 ? 32 : 128;
    const cut = BigInt(width - Math.min(length, width));
    return { family, bits: ((bits & ((1n << BigInt(width)) - 1n)) >> cut) << cut, length: Math.min(length, width) };
  });

describe('fuzz: addresses and names', () => {
  it('read what they write', () => {
    fc.assert(
      fc.property(prefixes, (prefix) => {
        expect(parsePrefix(formatPrefix(prefix))).toEqual({ ok: true, prefix });
      }),
    );
  });

  it('read of IPv4 what are four decimal numbers without leading zeros, and nothing else', () => {
    const octet = fc.oneof(
      fc.nat(300).map(String),
      fc.constantFrom('', '0', '00', '01', '255', '256', '1e1', ' 1', '-1', '+1', '1 '),
    );
    const separator = fc.constantFrom('.', '.', '.', '.', '..', '/', ',', '/.');
    fc.assert(
      fc.property(fc.array(fc.tuple(octet, separator), { minLength: 3, maxLength: 5 }), octet, (parts, last) => {
        const text = `${parts.flat().join('')}${last}`;
        const octets = text.split('.');
        const isAddress =
          octets.length === 4 && octets.every((part) => /^(?:0|[1-9][0-9]{0,2})$/.test(part) && Number(part) < 256);
        const parsed = parsePrefix(text);
        expect(parsed.ok && parsed.prefix.length === 32 && !text.includes('/')).toBe(isAddress);
        if (isAddress && parsed.ok)
          expect(parsed.prefix.bits).toBe(octets.reduce((bits, part) => (bits << 8n) | BigInt(part), 0n));
      }),
      { numRuns: 2000 },
    );
  });

  it('write IPv6 as WHATWG URL does', () => {
    fc.assert(
      fc.property(
        prefixes.filter(({ family, length }) => family === 6 && length === 128),
        (prefix) => {
          expect(new URL(`http://[${formatPrefix(prefix)}]/`).hostname).toBe(`[${formatPrefix(prefix)}]`);
        },
      ),
    );
  });

  it('cover what begins with their bits', () => {
    fc.assert(
      fc.property(prefixes, prefixes, (outer, inner) => {
        const width = outer.family === 4 ? 32 : 128;
        const cut = BigInt(width - outer.length);
        const isWithin =
          outer.family === inner.family && inner.length >= outer.length && inner.bits >> cut === outer.bits >> cut;
        expect(covers(outer, inner)).toBe(isWithin);
        expect(covers(outer, outer)).toBe(true);
      }),
    );
    expect(neverReachable.length).toBeGreaterThan(10);
  });

  it('never throw, and write each destination in one way', () => {
    const piece = fc.constantFrom(
      'a',
      'b-',
      '*',
      '*.',
      '.',
      ':',
      '::',
      '/',
      '8',
      '255',
      '0x',
      'ü',
      'ß',
      '‍',
      '%',
      '[',
      ']',
      '_',
      'xn--',
      '\0',
      ' ',
      '。',
    );
    const texts = fc.oneof(
      fc.string({ unit: 'binary', maxLength: 600 }),
      fc.array(piece, { maxLength: 24 }).map((parts) => parts.join('')),
    );
    fc.assert(
      fc.property(texts, (text) => {
        const parsed = parseDestination(text);
        if (!parsed.ok) return;
        const written = formatDestination(parsed.destination);
        expect(written).toMatch(/^[\x21-\x7e]{1,255}$/);
        expect(parseDestination(written)).toEqual(parsed);
      }),
      { numRuns: 5000 },
    );
  });
});
