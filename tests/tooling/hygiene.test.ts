import { describe, expect, it } from 'vitest';
import { checkLock, checkManifest, checkText } from '../../scripts/hygiene.ts';

const CHECKOUT = '/srv/someone/checkout';
const count = (path: string, text: string): number => checkText(path, text, CHECKOUT).length;

describe('hygiene', () => {
  it('finds marks, paths, registry hosts and unexplained disable comments, with their line', () => {
    const bad = [
      `// ${'TO' + 'DO'}: later`,
      `const dir = '${CHECKOUT}/data';`,
      `dsec cp ./project id:/${'work'}`,
      `const dir = '/${'farm'}/shared/a.md';`,
      `fetch('https://registry.${'npmjs'}.org/x');`,
      `// ox${'lint-disable'}-next-line no-console`,
      `// @ts-${'ignore'}`,
      `const at = new ${'Date'}();`,
    ];
    for (const line of bad) {
      expect(checkText('packages/edge/src/a.ts', `const ok = 1;\n${line}\n`, CHECKOUT), line).toMatchObject([
        { line: 2 },
      ]);
    }
  });

  it('accepts a disable comment with a reason, a path that is alike in part, and a date made from a number', () => {
    expect(
      count('packages/edge/src/a.ts', `// ox${'lint-disable'}-next-line no-console -- the CLI is not up yet`),
    ).toBe(0);
    for (const path of [`${CHECKOUT}s/data`, '/workspace', '/srv/work', '${root}/work', './work', 'work/a']) {
      expect(count('packages/edge/src/a.ts', `const dir = '${path}';`), path).toBe(0);
    }
    expect(count('packages/edge/src/a.ts', 'const at = new Date(nowMs);')).toBe(0);
  });

  it('asks for files that are named after what they hold', () => {
    expect(count('packages/edge/src/utils.ts', '')).toBe(1);
    expect(count('native/wire/src/common.rs', '')).toBe(1);
    expect(count('packages/edge/src/sandbox-machine.ts', '')).toBe(0);
  });

  it('wants exact versions, and links for the packages of the workspace', () => {
    const manifest = (dependencies: Readonly<Record<string, string>>): string => JSON.stringify({ dependencies });
    expect(checkManifest('package.json', manifest({ ws: '8.23.0', '@dsec/kit': '*', beta: '1.0.0-rc.1' }))).toEqual([]);
    expect(checkManifest('package.json', manifest({ ws: '^8.23.0' }))).toHaveLength(1);
    expect(checkManifest('package.json', manifest({ '@dsec/kit': '0.1.0' }))).toHaveLength(1);
  });

  it('refuses a lock file that names a host', () => {
    expect(checkLock('package-lock.json', '"resolved": "packages/kit"')).toEqual([]);
    expect(checkLock('package-lock.json', '"resolved": "https://example.org/a.tgz"')).toHaveLength(1);
  });
});
