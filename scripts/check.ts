/** Runs every static check, prints what each took, and fails at the end when any failed, so that one run shows all. */
import { spawnSync } from 'node:child_process';

type Step = { readonly name: string; readonly argv: readonly [string, ...string[]]; readonly cwd?: string };

const STEPS: readonly Step[] = [
  { name: 'format', argv: ['biome', 'format', '.'] },
  { name: 'types', argv: ['tsc', '-p', '.'] },
  { name: 'lint', argv: ['oxlint', '--deny-warnings'] },
  { name: 'layers', argv: ['node', 'scripts/layers.ts'] },
  { name: 'dead code', argv: ['knip', '--no-progress', '--no-config-hints'] },
  { name: 'hygiene', argv: ['node', 'scripts/hygiene.ts'] },
  { name: 'generated files', argv: ['node', 'scripts/generate.ts', '--check'] },
  { name: 'rust format', argv: ['cargo', 'fmt', '--all', '--check'], cwd: 'native' },
  {
    name: 'rust lint',
    argv: ['cargo', 'clippy', '--quiet', '--all-targets', '--locked', '--', '-D', 'warnings'],
    cwd: 'native',
  },
];

const failed: string[] = [];
for (const { name, argv, cwd } of STEPS) {
  const [command, ...args] = argv;
  const startedMs = performance.now();
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', cwd });
  if (error !== undefined) console.error(`${command}: ${error.message}`);
  const seconds = ((performance.now() - startedMs) / 1000).toFixed(1);
  console.error(`${status === 0 ? 'ok    ' : 'FAILED'} ${name} (${seconds} s)`);
  if (status !== 0) failed.push(name);
}
if (failed.length > 0) {
  console.error(`check failed: ${failed.join(', ')}`);
  process.exitCode = 1;
}
