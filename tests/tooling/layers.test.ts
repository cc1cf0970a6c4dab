import { readdirSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { checkLayers, importsOf, LAYERS } from '../../scripts/layers.ts';

const messages = (files: Readonly<Record<string, string>>): readonly string[] =>
  checkLayers(Object.entries(files).map(([path, text]) => ({ path, text }))).map((finding) => finding.message);

describe('layers', () => {
  it('lets a package import a lower one and refuses a higher one and its equals', () => {
    expect(messages({ 'packages/edge/src/a.ts': `import { x } from '@dsec/kit';` })).toEqual([]);
    expect(messages({ 'packages/kit/src/a.ts': `import type { X } from '@dsec/edge';` })).toHaveLength(1);
    expect(messages({ 'packages/iam/src/a.ts': `export * from '@dsec/environment';` })).toHaveLength(1);
  });

  it('refuses deep imports, paths into another package, unknown packages and a package that imports its own index', () => {
    for (const specifier of [
      '@dsec/contract/src/errors.ts',
      '../../contract/src/errors.ts',
      '@dsec/what',
      '@dsec/edge',
    ]) {
      expect(messages({ 'packages/edge/src/a.ts': `import { x } from '${specifier}';` }), specifier).toHaveLength(1);
    }
  });

  it('lets only suites look up, and only to the test kit', () => {
    const text = `import { x } from '@dsec/testkit';`;
    expect(messages({ 'packages/kit/src/a.test.ts': text })).toEqual([]);
    expect(messages({ 'packages/kit/src/a.fixture.ts': text })).toEqual([]);
    expect(messages({ 'packages/kit/src/a.ts': text })).toHaveLength(1);
    expect(messages({ 'packages/kit/src/a.test.ts': `import { x } from '@dsec/edge';` })).toHaveLength(1);
  });

  it('finds a cycle through several files once, and none in a diamond', () => {
    const cycle = messages({
      'packages/kit/src/a.ts': `import './b.ts';`,
      'packages/kit/src/b.ts': `export { c } from './c.ts';`,
      'packages/kit/src/c.ts': `import type { A } from './a.ts';`,
    });
    expect(cycle).toHaveLength(1);
    expect(cycle[0]).toContain('import cycle');
    const diamond = {
      'packages/kit/src/a.ts': `import './b.ts'; import './c.ts';`,
      'packages/kit/src/b.ts': `import './d.ts';`,
      'packages/kit/src/c.ts': `import './d.ts';`,
      'packages/kit/src/d.ts': ``,
    };
    expect(messages(diamond)).toEqual([]);
  });

  it('reads static, re-exported, type and literal dynamic imports', () => {
    const text = `import a from 'a'; import type { B } from 'b'; export * from 'c'; await import('d'); await import(e);`;
    expect(importsOf({ path: 'x.ts', text })).toEqual(['a', 'b', 'c', 'd']);
  });

  it('knows every package that exists', () => {
    for (const name of readdirSync(new URL('../../packages', import.meta.url))) expect(LAYERS).toHaveProperty(name);
  });
});
