/**
 * The layer rule: a package imports only packages with a lower number, through their `index.ts`, and no file takes
 * part in an import cycle. Reading order is the order that a request takes.
 *
 * dependency-cruiser cannot parse TypeScript without the JavaScript compiler API, which TypeScript 7 no longer has.
 */
import { readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { parseSync } from 'oxc-parser';
import { sourceFiles } from './tracked-files.ts';

/** Every package that may exist, with its layer. */
export const LAYERS: Readonly<Record<string, number>> = {
  contract: 0,
  kit: 1,
  wire: 1,
  libdsec: 2,
  store: 2,
  blob: 2,
  erofs: 2,
  placement: 2,
  environment: 3,
  iam: 3,
  watcher: 3,
  'native-link': 3,
  egress: 4,
  backends: 4,
  edge: 5,
  apiserver: 5,
  e2b: 5,
  rollout: 5,
  cli: 6,
  dashboard: 6,
  testkit: 6,
  bench: 7,
};

/** Suites of every layer may use it; nothing else may look upwards. */
const TEST_PACKAGE = 'testkit';
const OF_A_SUITE = /\.(?:test|fixture)\.ts$/;

export type SourceFile = { readonly path: string; readonly text: string };
export type Finding = { readonly path: string; readonly message: string };

/** The module specifiers that a source file imports or re-exports, types and dynamic imports of a literal included. */
export function importsOf(file: SourceFile): readonly string[] {
  const { module, errors } = parseSync(file.path, file.text);
  const fatal = errors[0];
  if (fatal !== undefined) throw new Error(`${file.path}: ${fatal.message}`);
  const specifiers = new Set<string>();
  for (const statement of module.staticImports) specifiers.add(statement.moduleRequest.value);
  for (const statement of module.staticExports) {
    for (const entry of statement.entries) {
      if (entry.moduleRequest !== null) specifiers.add(entry.moduleRequest.value);
    }
  }
  for (const { moduleRequest } of module.dynamicImports) {
    const literal = /^(['"`])([^$]*)\1$/.exec(file.text.slice(moduleRequest.start, moduleRequest.end));
    if (literal?.[2] !== undefined) specifiers.add(literal[2]);
  }
  return [...specifiers];
}

/** Every breach of the layer rule in the given files; paths are relative to the root of the repository. */
export function checkLayers(files: readonly SourceFile[]): readonly Finding[] {
  const findings: Finding[] = [];
  const edges = new Map<string, readonly string[]>();
  for (const file of files) {
    const local: string[] = [];
    for (const specifier of importsOf(file)) {
      if (specifier.startsWith('.')) local.push(normalize(join(dirname(file.path), specifier)));
      const message = breach(file.path, specifier);
      if (message !== undefined) findings.push({ path: file.path, message });
    }
    edges.set(file.path, local);
  }
  for (const name of new Set(files.map((file) => packageOf(file.path)))) {
    if (name !== undefined && LAYERS[name] === undefined) {
      findings.push({ path: `packages/${name}`, message: 'has no layer: add it to LAYERS in scripts/layers.ts' });
    }
  }
  for (const cycle of cyclesIn(edges)) {
    findings.push({ path: cycle[0] ?? '', message: `import cycle: ${[...cycle, cycle[0]].join(' -> ')}` });
  }
  return findings;
}

function breach(path: string, specifier: string): string | undefined {
  const from = packageOf(path);
  if (specifier.startsWith('.')) {
    const target = normalize(join(dirname(path), specifier));
    const to = packageOf(target);
    if (to === from) return undefined;
    return `imports ${specifier} from outside its package: use ${to === undefined ? 'a package' : `@dsec/${to}`}`;
  }
  const match = /^@dsec\/([^/]+)(\/.*)?$/.exec(specifier);
  const to = match?.[1];
  if (to === undefined) return undefined;
  if (match?.[2] !== undefined) return `imports ${specifier}: only the index of @dsec/${to} may be imported`;
  const toLayer = LAYERS[to];
  if (toLayer === undefined) return `imports ${specifier}: no such package`;
  if (from === undefined || (to === TEST_PACKAGE && OF_A_SUITE.test(path))) return undefined;
  if (from === to) return `imports its own index: import the file that has it`;
  const fromLayer = LAYERS[from] ?? 0;
  if (toLayer < fromLayer) return undefined;
  return `imports @dsec/${to} (layer ${toLayer}) from @dsec/${from} (layer ${fromLayer}): only lower layers may be imported`;
}

function packageOf(path: string): string | undefined {
  return /^packages\/([^/]+)\//.exec(path)?.[1];
}

/** Strongly connected components of more than one file (Tarjan), and files that import themselves. */
function cyclesIn(edges: ReadonlyMap<string, readonly string[]>): readonly (readonly string[])[] {
  const index = new Map<string, number>();
  const low = new Map<string, number>();
  const stack: string[] = [];
  const cycles: string[][] = [];
  const visit = (node: string): number => {
    const order = index.size;
    index.set(node, order);
    let lowest = order;
    stack.push(node);
    for (const next of edges.get(node) ?? []) {
      if (!edges.has(next)) continue;
      if (!index.has(next)) lowest = Math.min(lowest, visit(next));
      else if (stack.includes(next)) lowest = Math.min(lowest, index.get(next) ?? lowest);
    }
    low.set(node, lowest);
    if (lowest === order) {
      const component = stack.splice(stack.indexOf(node));
      if (component.length > 1 || edges.get(node)?.includes(node) === true) cycles.push(component);
    }
    return lowest;
  };
  for (const node of edges.keys()) if (!index.has(node)) visit(node);
  return cycles;
}

if (import.meta.main) {
  const files = sourceFiles().map((path) => ({ path, text: readFileSync(path, 'utf8') }));
  const findings = checkLayers(files);
  for (const { path, message } of findings) console.error(`${path}: ${message}`);
  console.error(`layers: ${files.length} files, ${findings.length} breaches`);
  process.exitCode = findings.length === 0 ? 0 : 1;
}
