import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { NamePattern, PathPattern } from './glob.ts';

describe('a pattern of names', () => {
  it.each([
    ['abc', 'abc', true],
    ['abc', 'ab', false],
    ['*', '', true],
    ['a*c', 'abbc', true],
    ['a*c', 'ac', true],
    ['a*b*c', 'aXbYbZc', true],
    ['a?c', 'ac', false],
    ['?', '\u{1F600}', true],
    ['[a-c]x', 'bx', true],
    ['[^a-c]x', 'bx', false],
    ['[a-]', '-', true],
    ['[\\]]', ']', true],
    ['[]', '[]', true],
    ['[ab', '[ab', true],
    ['[z-a]', 'm', false],
    ['\\*', '*', true],
    ['\\*', 'x', false],
    ['a\\', 'a\\', true],
    ['.', 'x', false],
    ['(a|b)+', 'a', false],
  ])('%s fits %s: %s', (pattern, name, expected) => {
    expect(new NamePattern(pattern).matches(name)).toBe(expected);
  });

  it('fits what a search of all ways finds, whatever it is', () => {
    const search = (pattern: string, name: string): boolean => {
      if (pattern === '') return name === '';
      if (pattern.startsWith('*')) {
        return search(pattern.slice(1), name) || (name !== '' && search(pattern, name.slice(1)));
      }
      return (
        name !== '' && (pattern.startsWith('?') || pattern[0] === name[0]) && search(pattern.slice(1), name.slice(1))
      );
    };
    const letters = (...all: string[]) =>
      fc.array(fc.constantFrom(...all), { maxLength: 8 }).map((parts) => parts.join(''));
    fc.assert(
      fc.property(letters('a', 'b', '*', '?'), letters('a', 'b'), (pattern, name) => {
        expect(new NamePattern(pattern).matches(name)).toBe(search(pattern, name));
      }),
      { numRuns: 2000 },
    );
  });

  it('takes no longer for many stars', () => {
    expect(new NamePattern(`${'*a'.repeat(120)}*b`).matches('a'.repeat(255))).toBe(false);
    expect(
      new PathPattern([...Array.from({ length: 200 }, () => ['**', 'a']).flat(), 'b']).matches(
        Array.from({ length: 400 }, () => 'a'),
      ),
    ).toBe(false);
  });
});
