import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseChallenges } from './challenge.ts';

const plain = (header: string): unknown =>
  parseChallenges(header).map(({ scheme, parameters }) => [scheme, Object.fromEntries(parameters)]);

describe('WWW-Authenticate', () => {
  it.each([
    ['Basic', [['basic', {}]]],
    [
      'Bearer realm="https://a/t",service="s",scope="repository:a/b:pull,push"',
      [['bearer', { realm: 'https://a/t', service: 's', scope: 'repository:a/b:pull,push' }]],
    ],
    [
      'Basic realm="a, Bearer b", BEARER Realm = x',
      [
        ['basic', { realm: 'a, Bearer b' }],
        ['bearer', { realm: 'x' }],
      ],
    ],
    [
      'Negotiate, Basic realm="x\\"y"',
      [
        ['negotiate', {}],
        ['basic', { realm: 'x"y' }],
      ],
    ],
    [
      'Negotiate dG9r/ZW4=, Basic realm=x',
      [
        ['negotiate', {}],
        ['basic', { realm: 'x' }],
      ],
    ],
    ['Bearer realm="a", realm="b"', [['bearer', { realm: 'a' }]]],
    ['Bearer realm="without an end', [['bearer', {}]]],
    [', ,Basic ,', [['basic', {}]]],
    ['"', []],
    ['', []],
    [`Basic ${'x'.repeat(20_000)}`, []],
  ])('%s', (header, challenges) => {
    expect(plain(header)).toEqual(challenges);
  });

  it('of any text is read in time that grows with its length (fuzz)', () => {
    const part = fc.constantFrom('Bearer', ' ', ',', '=', '"', '\\', 'realm="x"', 'a', '\t', 'é');
    fc.assert(
      fc.property(
        fc.oneof(
          fc.string(),
          fc.array(part, { maxLength: 60 }).map((all) => all.join('')),
        ),
        (header) => {
          for (const { scheme } of parseChallenges(header)) expect(scheme).toMatch(/^[!-~]+$/);
        },
      ),
      { numRuns: 3000 },
    );
    for (const text of ['a', 'a ', 'a=', '=', '"\\', ' ,']) parseChallenges(text.repeat(16_384 / text.length));
  });
});
