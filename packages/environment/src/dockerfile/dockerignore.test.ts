import { describe, expect, it } from 'vitest';
import { Dockerignore } from './dockerignore.ts';

describe('.dockerignore', () => {
  it.each([
    ['', 'a', false],
    ['a', 'a', true],
    ['a', 'b/a', false],
    ['a', 'a/b/c', true],
    ['/a/', 'a', true],
    ['./a', 'a', true],
    ['*.md', 'x.md', true],
    ['*.md', 'd/x.md', false],
    ['**/*.md', 'x.md', true],
    ['**/*.md', 'd/e/x.md', true],
    ['d/**', 'd/e/f', true],
    ['d/**', 'd', false],
    ['d/**/x', 'd/x', true],
    ['d/**/x', 'd/e/f/x', true],
    ['?.c', 'a.c', true],
    ['?.c', 'ab.c', false],
    ['[a-c].c', 'b.c', true],
    ['[^a-c].c', 'b.c', false],
    ['# a', '# a', false],
    ['*\n!keep', 'keep', false],
    ['*\n!keep', 'other', true],
    ['d\n!d/keep', 'd/keep', false],
    ['d\n!d/keep', 'd/other', true],
    ['!a\na', 'a', true],
    ['a\r\nb', 'b', true],
    ['[z-a]\nb', 'b', true],
    ['[', '[', true],
  ])('%j leaves out %s: %s', (text, path, expected) => {
    expect(Dockerignore.parse(text).isIgnored(path.split('/'))).toBe(expected);
  });
});
