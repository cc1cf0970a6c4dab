/** What no linter sees: marks, paths and names that must not be in a file that is committed, and loose versions. */
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { trackedFiles } from './tracked-files.ts';

export type Finding = { readonly path: string; readonly line: number; readonly message: string };

type TextRule = {
  readonly pattern: RegExp;
  readonly message: string;
  readonly appliesTo?: (path: string) => boolean;
};

/** Files whose words are not ours. */
const FOREIGN = new Set(['LICENSE', 'package-lock.json', 'native/Cargo.lock']);
/** Extensions that are never text. */
const BINARY = /\.(png|jpe?g|gif|ico|woff2?|gz|zst|tar|bin|erofs|img)$/;
const MAX_LINES = 400;

// The alternatives are cut in two so that this file passes its own rules.
const MARKS = ['TO' + 'DO', 'FIX' + 'ME', 'X' + 'XX', 'HA' + 'CK'].join('|');
const MACROS = ['todo', 'unimplemented'].join('|');

const isCode = (path: string): boolean => /\.(ts|rs|c|sh)$/.test(path);
const isSource = (path: string): boolean =>
  /^packages\/.*\.ts$/.test(path) && !/^packages\/(kit|bench)\//.test(path) && !path.endsWith('.test.ts');

function textRules(checkout: string): readonly TextRule[] {
  return [
    { pattern: new RegExp(`\\b(?:${MARKS})\\b`), message: 'leftover mark' },
    {
      pattern: new RegExp(`\\b(?:${MACROS})!\\(`),
      message: 'unfinished code',
      appliesTo: (path) => path.endsWith('.rs'),
    },
    // Behind a letter or a brace it is the end of another path.
    { pattern: /(?<![A-Za-z0-9._}-])\/(?:work|farm)(?![A-Za-z0-9_-])/, message: 'path of one machine' },
    ...(checkout.split('/').length > 2 ? [{ pattern: literal(checkout), message: 'path of this checkout' }] : []),
    {
      pattern:
        /\b(?:registry\.npmjs\.org|registry\.yarnpkg\.com|(?:static|index)\.crates\.io|(?:deb|security)\.debian\.org|(?:archive|security|ports)\.ubuntu\.com|pypi\.org|files\.pythonhosted\.org|proxy\.golang\.org|repo1?\.maven\.(?:apache\.)?org)\b/,
      message: 'host of a package registry: the machine that runs it knows its own',
    },
    {
      pattern: /\b(?:ox|es)lint-disable(?!.* -- \S)/,
      message: 'a disable comment needs a reason: `-- why`',
      appliesTo: isCode,
    },
    { pattern: /@ts-(?:ignore|nocheck)\b/, message: 'use @ts-expect-error with a reason', appliesTo: isCode },
    { pattern: /\bnew Date\(\s*\)/, message: 'time is injected: take a Clock from @dsec/kit', appliesTo: isSource },
    { pattern: /^(?:<{7}|>{7}) /, message: 'merge conflict' },
  ];
}

function literal(text: string): RegExp {
  return new RegExp(`${RegExp.escape(text)}(?![A-Za-z0-9_-])`);
}

/** Findings in one file of text. */
export function checkText(path: string, text: string, checkout: string): readonly Finding[] {
  const findings: Finding[] = [];
  const rules = textRules(checkout).filter((rule) => rule.appliesTo?.(path) ?? true);
  for (const [index, content] of text.split('\n').entries()) {
    for (const rule of rules) {
      if (rule.pattern.test(content)) findings.push({ path, line: index + 1, message: rule.message });
    }
  }
  if (/\.(ts|rs)$/.test(path) && /^(utils?|helpers?|common|misc|types)\.(ts|rs)$/.test(basename(path))) {
    findings.push({ path, line: 1, message: 'name the concept that this file holds' });
  }
  return findings;
}

/** Dependencies whose version is not exact. Workspace packages are `*`: npm links them and never asks a registry. */
export function checkManifest(path: string, text: string): readonly Finding[] {
  const manifest = JSON.parse(text) as Readonly<Record<string, Readonly<Record<string, string>> | undefined>>;
  const findings: Finding[] = [];
  for (const field of ['dependencies', 'devDependencies', 'optionalDependencies', 'peerDependencies']) {
    for (const [name, version] of Object.entries(manifest[field] ?? {})) {
      const isExact = name.startsWith('@dsec/') ? version === '*' : /^\d+\.\d+\.\d+(?:-[\w.]+)?$/.test(version);
      if (!isExact) findings.push({ path, line: 1, message: `${field}.${name} is ${version}: pin it exactly` });
    }
  }
  return findings;
}

/** Download addresses in the npm lock file. */
export function checkLock(path: string, text: string): readonly Finding[] {
  return text
    .split('\n')
    .flatMap((content, index) =>
      /"resolved": "(?:https?|git)/.test(content)
        ? [{ path, line: index + 1, message: 'the lock file names a host: see .npmrc' }]
        : [],
    );
}

if (import.meta.main) {
  const findings: Finding[] = [];
  const paths = trackedFiles().filter((path) => !BINARY.test(path));
  for (const path of paths) {
    const text = readFileSync(path, 'utf8');
    if (path === 'package-lock.json') findings.push(...checkLock(path, text));
    if (FOREIGN.has(path)) continue;
    findings.push(...checkText(path, text, process.cwd()));
    if (basename(path) === 'package.json') findings.push(...checkManifest(path, text));
    const lines = text.split('\n').length;
    if (/^(packages|native)\/.*\.(ts|rs)$/.test(path) && lines > MAX_LINES) {
      console.error(`note: ${path} has ${lines} lines: is it one concept, or two?`);
    }
  }
  for (const { path, line, message } of findings) console.error(`${path}:${line}: ${message}`);
  console.error(`hygiene: ${paths.length} files, ${findings.length} findings`);
  process.exitCode = findings.length === 0 ? 0 : 1;
}
