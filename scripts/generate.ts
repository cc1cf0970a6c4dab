/**
 * Runs the generator of every package that has one (`src/generate.ts`, with the root of the repository as its working
 * directory). With `--check` it fails when that changed a generated file.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { trackedFiles } from './tracked-files.ts';

/** In the order of the layers: a later generator may read what an earlier one wrote. */
const GENERATORS = ['packages/contract/src/generate.ts', 'packages/apiserver/src/generate.ts'];
const GENERATED = /^(?:spec\/|docs\/errors\.md$)/;

function generatedFiles(): ReadonlyMap<string, string> {
  const paths = trackedFiles().filter((path) => GENERATED.test(path));
  return new Map(paths.map((path) => [path, readFileSync(path, 'utf8')]));
}

const isCheck = process.argv.includes('--check');
const before = generatedFiles();
for (const generator of GENERATORS.filter((path) => existsSync(path))) {
  const { status } = spawnSync(process.execPath, ['--disable-warning=ExperimentalWarning', generator], {
    stdio: 'inherit',
  });
  if (status !== 0) {
    console.error(`${generator} failed`);
    process.exit(1);
  }
}
const after = generatedFiles();
const changed = [...new Set([...before.keys(), ...after.keys()])].filter(
  (path) => before.get(path) !== after.get(path),
);
for (const path of changed) console.error(`${isCheck ? 'out of date, now regenerated' : 'wrote'}: ${path}`);
process.exitCode = isCheck && changed.length > 0 ? 1 : 0;
