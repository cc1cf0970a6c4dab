import type { BehaviourEntry, BehaviourKind, Sandbox } from '@dsec/libdsec';
import { expect } from 'vitest';
import { waitFor } from '../e2e/wait-for.ts';

/** Events come within the second; a machine that is busy takes longer. */
const PATIENCE_MS = 20_000;

/** What was tried, in the words of the report; a pattern where these depend on the machine. */
type Told = string | RegExp;

/**
 * Resolves when the report of the sandbox has each of these, and a sample of each names the process that did it and the command that it descends from.
 *
 * @param options.command what the command begins with. @default that of `attack`
 */
export async function expectTold(
  sandbox: Sandbox,
  kind: BehaviourKind,
  whats: readonly Told[],
  { command = 'python3' }: { readonly command?: string } = {},
): Promise<void> {
  let entries: readonly BehaviourEntry[] = [];
  const missing = (): readonly Told[] => whats.filter((what) => !entries.some((entry) => isAbout(entry, kind, what)));
  await waitFor(
    `events of kind ${kind}`,
    async () => {
      ({ entries } = await sandbox.behaviour());
      return missing().length === 0;
    },
    PATIENCE_MS,
  ).catch(() => expect(missing(), JSON.stringify(entries.map(({ kind: of, what }) => `${of} ${what}`))).toEqual([]));
  for (const entry of entries.filter((each) => whats.some((what) => isAbout(each, kind, what)))) {
    const known = entry.samples.map(({ command: argv, execId, process }) => [
      argv?.[0],
      typeof execId,
      typeof process?.pid,
    ]);
    expect([entry.what, known]).toEqual([entry.what, expect.arrayContaining([[command, 'string', 'number']])]);
    expect(entry.count).toBeGreaterThan(0);
  }
}

/** Nothing of what others did is told of this sandbox. */
export async function expectNothingTold(sandbox: Sandbox): Promise<void> {
  const { entries, withoutEntry } = await sandbox.behaviour();
  expect([entries, withoutEntry]).toEqual([[], 0]);
}

const isAbout = (entry: BehaviourEntry, kind: BehaviourKind, what: Told): boolean =>
  entry.kind === kind && (typeof what === 'string' ? entry.what === what : what.test(entry.what));
