import { PlatformError } from '@dsec/contract';
import { ByteString } from '@dsec/erofs';
import fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import { defaultScrubRules } from './scrub-rules.ts';
import { Selection, type SelectionOptions } from './selection.ts';

const verdict = (options: SelectionOptions, path: string): string => {
  const judged = new Selection(options).judge(ByteString.fromText(path));
  return judged.kind === 'omit' ? judged.by : judged.kind;
};
const rules = defaultScrubRules;

describe('the default scrub rules', () => {
  test.each([
    ['root/.bash_history', 'shell-history'],
    ['home/user/.zsh_history', 'shell-history'],
    ['home/user/.python_history', 'shell-history'],
    ['root/.ssh/known_hosts', 'ssh-known-hosts'],
    ['home/a/.ssh/known_hosts.old', 'ssh-known-hosts'],
    ['root/.cache', 'user-cache'],
    ['root/.cache/pip/x', 'user-cache'],
    ['root/.npm/_cacache/content', 'user-cache'],
    ['var/cache/apt/archives/x.deb', 'package-cache'],
    ['var/lib/apt/lists/x', 'package-cache'],
    ['var/log/dpkg.log', 'logs'],
    ['tmp/x', 'temporary'],
    ['run/x/y', 'temporary'],
    ['work/__pycache__', 'python-bytecode'],
    ['work/a/__pycache__/b.pyc', 'python-bytecode'],
    ['__pycache__/b.pyc', 'python-bytecode'],
    ['work/.pytest_cache/v', 'tool-cache'],
    ['work/.main.py.swp', 'editor-swap'],
    ['work/main.py~', 'editor-swap'],
    ['work/#main.py#', 'editor-swap'],
    ['etc/machine-id', 'machine-identity'],
    ['proc/1/x', 'platform'],
    ['dev', 'platform'],
    ['etc/hosts', 'platform'],
    ['etc/resolv.conf', 'platform'],
  ])('leave out %s by %s', (path, by) => expect(verdict({ rules }, path)).toBe(by));

  test.each([
    'root/.bashrc',
    'root/.ssh/config',
    'root/.ssh/authorized_keys',
    'work/bash_history',
    'work/cache/x',
    'work/.cached',
    'var/cache',
    'var/cache/apt',
    'var/lib/dpkg/status',
    'tmp',
    'var/log',
    'etc/hosts.allow',
    'procs/x',
    'work/pycache/x',
    'work/a~/b',
    'etc/ssh/sshd_config',
  ])('keep %s', (path) => expect(verdict({ rules }, path)).toBe('keep'));

  it('leave out all that is below what they leave out', () => {
    const name = fc.stringMatching(/^[a-z._~#-]{1,12}$/).filter((text) => text !== '.' && text !== '..');
    const selection = new Selection({ rules });
    // What an editor leaves is a file: nothing is below it.
    const trees = new Selection({ rules: rules.filter((rule) => rule.name !== 'editor-swap') });
    fc.assert(
      fc.property(fc.array(name, { minLength: 1, maxLength: 5 }), name, (names, below) => {
        const path = ByteString.fromText(names.join('/'));
        expect(selection.judge(path).kind).toMatch(/keep|omit/);
        if (trees.judge(path).kind !== 'omit') return;
        const inside = ByteString.fromText([...names, below].join('/'));
        const isFileRule =
          /_history|hst$|histfile|viminfo|known_hosts|machine-id|random-seed|ssh_host_|hosts|hostname|resolv/.test(
            path,
          );
        if (!isFileRule) expect(trees.judge(inside).kind, inside).toBe('omit');
      }),
    );
  });
});

describe('named paths', () => {
  test.each<[SelectionOptions, string, string]>([
    [{ paths: ['/a/b'] }, 'a/b', 'keep'],
    [{ paths: ['/a/b'] }, 'a/b/c', 'keep'],
    [{ paths: ['/a/b'] }, 'a', 'way'],
    [{ paths: ['/a/b'] }, 'a/bc', 'path'],
    [{ paths: ['/a/b'] }, 'c', 'path'],
    [{ paths: ['/', '/a'] }, 'c', 'keep'],
    [{ paths: ['//a/./b/'] }, 'a/b/c', 'keep'],
    [{ omit: ['/a/b'] }, 'a/b/c', 'named'],
    [{ omit: ['/a/b'] }, 'a/bc', 'keep'],
    [{ rules, keep: ['/root/.cache/models'] }, 'root/.cache/models/x', 'keep'],
    [{ rules, keep: ['/root/.cache/models'] }, 'root/.cache', 'way'],
    [{ rules, keep: ['/root/.cache/models'] }, 'root/.cache/pip', 'user-cache'],
    [{ rules, keep: ['/root/.cache'], omit: ['/root/.cache/pip'] }, 'root/.cache/pip/x', 'named'],
    [{ rules, keep: ['/etc'] }, 'etc/hosts', 'platform'],
    [{ rules, paths: ['/project'] }, 'project/__pycache__/x', 'python-bytecode'],
    [{ paths: ['/é'] }, 'é/x', 'keep'],
  ])('%j: %s is %s', (options, path, expected) => expect(verdict(options, path)).toBe(expected));

  test.each<[SelectionOptions, string]>([
    [{ paths: ['a'] }, 'paths'],
    [{ paths: [''] }, 'paths'],
    [{ omit: ['/a/../b'] }, 'omit'],
    [{ keep: ['/a\0'] }, 'keep'],
    [{ omit: Array.from({ length: 1001 }, (_, index) => `/${index}`) }, 'omit'],
  ])('%j is refused', (options, field) => {
    expect(() => new Selection(options)).toThrow(PlatformError);
    expect(() => new Selection(options)).toThrow(
      expect.objectContaining({
        code: 'invalid_argument',
        details: expect.objectContaining({ field }) as object,
      }) as Error,
    );
  });
});
