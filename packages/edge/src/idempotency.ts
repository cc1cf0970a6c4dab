/**
 * Which sandboxes a create with an idempotency key made. The entries live and die with the records of the sandboxes, so a key holds for
 * as long as any of them is remembered.
 */
import { PlatformError } from '@dsec/contract';
import type { Sandbox } from './sandbox.ts';
import type { SandboxRecord } from './sandbox-record.ts';

/** The key of a create, and which of how many sandboxes this is. */
export type Claim = NonNullable<SandboxRecord['idempotency']>;

interface Entry {
  readonly fingerprint: string;
  readonly count: number;
  readonly byIndex: Map<number, Sandbox>;
}

export class IdempotencyIndex {
  readonly #entries = new Map<string, Entry>();

  get size(): number {
    return this.#entries.size;
  }

  /**
   * The sandbox that this claim made before.
   * @throws PlatformError `idempotency_conflict` when the key was used for another request
   */
  find(project: string, claim: Claim): Sandbox | undefined {
    const entry = this.#entries.get(entryKey(project, claim.key));
    if (entry === undefined) return undefined;
    if (entry.fingerprint !== claim.fingerprint || entry.count !== claim.count) {
      throw new PlatformError('idempotency_conflict', 'the idempotency key was used before with another request');
    }
    return entry.byIndex.get(claim.index);
  }

  add(sandbox: Sandbox): void {
    const { project, idempotency: claim } = sandbox.record;
    if (claim === null) return;
    const key = entryKey(project, claim.key);
    let entry = this.#entries.get(key);
    if (entry === undefined) {
      entry = { fingerprint: claim.fingerprint, count: claim.count, byIndex: new Map() };
      this.#entries.set(key, entry);
    }
    entry.byIndex.set(claim.index, sandbox);
  }

  /** The claim no longer stands for this sandbox: it was never made, or its record is gone. */
  remove(sandbox: Sandbox): void {
    const { project, idempotency: claim } = sandbox.record;
    if (claim === null) return;
    const key = entryKey(project, claim.key);
    const entry = this.#entries.get(key);
    if (entry?.byIndex.get(claim.index) !== sandbox) return;
    entry.byIndex.delete(claim.index);
    if (entry.byIndex.size === 0) this.#entries.delete(key);
  }
}

const entryKey = (project: string, key: string): string => `${project}\0${key}`;
