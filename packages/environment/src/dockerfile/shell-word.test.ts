import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { expandText, expandWord, type Expansion, rawWords, WordFault } from './shell-word.ts';

const values: Readonly<Record<string, string>> = { a: '1', empty: '', name: 'a', quoted: '"$a"' };
const expansion: Expansion = { escape: '\\', variable: (name) => values[name] };

describe('a word', () => {
  it.each([
    ['plain', 'plain'],
    ['$a${a}x', '11x'],
    ['$ab', ''],
    ['${ab}', ''],
    ['\\$a', '$a'],
    ["'$a'", '$a'],
    ['"$a b"', '1 b'],
    ['"\\"\\$a\\x"', '"$a\\x'],
    ['$quoted', '"$a"'],
    ['${x:-d}', 'd'],
    ['${empty:-d}', 'd'],
    ['${empty-d}', ''],
    ['${a:-d}', '1'],
    ['${a:+d}', 'd'],
    ['${empty:+d}', ''],
    ['${empty+d}', 'd'],
    ['${x:-${y:-$a}}', '1'],
    ['${x:-"}"}', '}'],
    ['${a:?no}', '1'],
    ['$', '$'],
    ['a$', 'a$'],
    ['$1', ''],
    ['\\', ''],
  ])('%s is %s', (word, expected) => {
    expect(expandWord(word, expansion)).toBe(expected);
  });

  it.each([
    ['"a'],
    ["'a"],
    ['${a'],
    ['${'],
    ['${}'],
    ['${a.b}'],
    ['${x:?no}'],
    ['${x?}'],
    ['${a#1}'],
    ['${x:-'.repeat(100)],
  ])('%s is refused', (word) => {
    expect(() => expandWord(word, expansion)).toThrow(WordFault);
  });

  it('made of long values ends with a typed error, wherever they stand', () => {
    const long = 'v'.repeat(1_000_000);
    const of: Expansion = { escape: '\\', variable: () => long };
    const many = '$v'.repeat(100_000);
    for (const word of [many, `"${many}"`, `\${x:-${many}}`, `\${x:+"${many}"}`]) {
      expect(() => expandWord(word, of), word.slice(0, 6)).toThrow(WordFault);
    }
    expect(() => expandText(many, of)).toThrow(WordFault);
    expect(expandText('a'.repeat(2_000_000), of)).toHaveLength(2_000_000);
  });

  it('may have a back quote for escapes', () => {
    expect(expandWord('C:\\x`$a', { ...expansion, escape: '`' })).toBe('C:\\x$a');
  });

  it('ends where white space does, outside of quotes', () => {
    expect(rawWords(' a  "b c"\'d e\'  f\\ g ', '\\')).toEqual(['a', '"b c"\'d e\'', 'f\\ g']);
    expect(rawWords('"a\\" b" c', '\\')).toEqual(['"a\\" b"', 'c']);
  });

  it('in a document has quotes like any character', () => {
    expect(expandText('"$a" it\'s \\$a ${x:-"d"}', expansion)).toBe('"1" it\'s $a d');
  });

  it('is refused with a typed error or expanded, whatever it is (fuzz)', () => {
    const seconds = Number(process.env['DSEC_FUZZ_SECONDS'] ?? 1);
    const piece = fc.constantFrom('$', '{', '}', 'a', ':-', ':+', '?', '"', "'", '\\', ' ', 'x');
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 200 }), (parts) => {
        const word = parts.join('');
        for (const expand of [expandWord, expandText]) {
          try {
            expand(word, expansion);
          } catch (error) {
            if (!(error instanceof WordFault)) throw error;
          }
        }
        expect(rawWords(word, '\\').join('').replace(/\s/g, '')).toBe(word.replace(/\s/g, ''));
      }),
      { interruptAfterTimeLimit: seconds * 1000, numRuns: 1_000_000, markInterruptAsFailure: false },
    );
  });
});
