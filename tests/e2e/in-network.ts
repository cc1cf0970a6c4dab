import type { NetworkPolicyRequest } from '@dsec/contract';
import type { Exec, Sandbox } from '@dsec/libdsec';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Server } from './started-server.ts';

const PROBE = '/probe.py';

/** What came of an attempt: what it gave, or in one word why it did not work. */
export interface Outcome {
  readonly ok?: unknown;
  readonly error?: string;
}

/** A sandbox with the probe in it, under a network policy. */
export async function networked(server: Server, network: NetworkPolicyRequest, phases = {}): Promise<Sandbox> {
  const sandbox = await server.sandbox({ policy: { network, phases } });
  await bringProbe(sandbox);
  return sandbox;
}

export async function bringProbe(sandbox: Sandbox): Promise<void> {
  await sandbox.files.write(PROBE, await readFile(join(import.meta.dirname, 'network-probe.py'), 'utf8'));
}

/** Attempts, one after the other, each in words: `tls 203.0.113.7 443 good.test`. */
export async function attempts(sandbox: Sandbox, ...words: readonly string[]): Promise<readonly Outcome[]> {
  const { stdout, stderr } = await sandbox.exec(['python3', PROBE, 'many', ...words], { timeoutMs: 120_000 });
  if (stdout === '') throw new Error(`the probe said nothing, and: ${stderr}`);
  return (JSON.parse(stdout) as { readonly ok: readonly Outcome[] }).ok;
}

export async function attempt(sandbox: Sandbox, words: string): Promise<Outcome> {
  const [outcome = {}] = await attempts(sandbox, words);
  return outcome;
}

/** Those that worked. */
export async function working(sandbox: Sandbox, ...words: readonly string[]): Promise<readonly string[]> {
  const outcomes = await attempts(sandbox, ...words);
  return words.filter((_, index) => outcomes[index]?.ok !== undefined);
}

export interface Flow {
  /** When the last answer came, in ms since 1970 by the clock of the host, and why there was no other. */
  readonly ended: Promise<{ readonly lastMs: number; readonly why: string }>;
}

/** A connection over which requests go until it breaks; resolves when the first was answered. */
export async function openFlow(sandbox: Sandbox, kind: 'tls' | 'echo', address: string, name = ''): Promise<Flow> {
  const port = kind === 'tls' ? '443' : '7';
  const exec: Exec = sandbox.exec(['python3', PROBE, 'flow', kind, address, port, name], { timeoutMs: 180_000 });
  let said = '';
  const begun = Promise.withResolvers<undefined>();
  const ended = (async () => {
    for await (const event of exec) {
      if (event.kind === 'gap') continue;
      said += new TextDecoder().decode(event.data);
      if (said.includes('begun')) begun.resolve(undefined);
    }
    begun.resolve(undefined);
    const last = said.trim().split('\n').at(-1) ?? '';
    const { ok } = JSON.parse(last) as { readonly ok?: { readonly lastMs: number; readonly why: string } };
    if (ok === undefined) throw new Error(`the flow never began: ${said}`);
    return ok;
  })();
  // Who does not wait for it has another failure to tell.
  ended.catch(() => begun.resolve(undefined));
  await begun.promise;
  return { ended };
}
