/**
 * The API keys of an installation. All live in memory, kept by a watch of the store, so that a check costs one hash and one look-up;
 * a revocation counts from the moment that it is stored.
 */
import { PlatformError, type KeyInfo } from '@dsec/contract';
import type { Clock, Random, Scope } from '@dsec/kit';
import { StoreView, type Store } from '@dsec/store';
import {
  hashSecret,
  KEY_PREFIX,
  keyInfoOf,
  newKeyId,
  newSecret,
  parseKeyRecord,
  storeKeyOf,
  type KeyRecord,
} from './key-record.ts';
import { DEFAULT_PROJECT, type Principal } from './principal.ts';

export interface KeysOptions {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  /** Owns the watch. */
  readonly scope: Scope;
  /** sha256, in hex, of the secret of the first key, which exists before any other does. */
  readonly adminKeySha256: string;
}

/** Most keys of an installation, revoked ones included. */
export const MAX_KEYS = 10_000;
/** Longer ones are no keys and are not hashed. */
const MAX_SECRET_CHARS = 256;
const ADMIN_KEY_ID = 'admin';

/** Makes, checks, lists and revokes API keys. */
export class Keys {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #view: StoreView<KeyRecord>;
  readonly #byHash: ReadonlyMap<string, Principal>;

  private constructor(options: KeysOptions, view: StoreView<KeyRecord>, byHash: ReadonlyMap<string, Principal>) {
    this.#store = options.store;
    this.#clock = options.clock;
    this.#random = options.random;
    this.#view = view;
    this.#byHash = byHash;
  }

  /** Reads all keys and goes on watching them until the scope closes. */
  static async open(options: KeysOptions): Promise<Keys> {
    const byHash = new Map<string, Principal>();
    byHash.set(options.adminKeySha256, {
      keyId: ADMIN_KEY_ID,
      name: ADMIN_KEY_ID,
      project: DEFAULT_PROJECT,
      right: 'admin',
    });
    const view = await StoreView.open<KeyRecord>({
      store: options.store,
      prefix: KEY_PREFIX,
      scope: options.scope,
      parse: parseKeyRecord,
      onChange: (current, previous) => {
        if (previous !== undefined) byHash.delete(previous.sha256);
        if (current?.revokedAtMs === null) byHash.set(current.sha256, principalOf(current));
      },
    });
    return new Keys(options, view, byHash);
  }

  /** The holder of a secret, if there is one. */
  find(secret: string): Principal | undefined {
    // The look-up is by hash: what its time tells is about the hash, from which no secret can be made.
    return secret.length <= MAX_SECRET_CHARS ? this.#byHash.get(hashSecret(secret)) : undefined;
  }

  /**
   * The holder of a secret.
   * @throws PlatformError `unauthenticated` when it is unknown or revoked; the two look the same
   */
  authenticate(secret: string): Principal {
    const principal = this.find(secret);
    if (principal === undefined) throw new PlatformError('unauthenticated', 'the API key is unknown or revoked');
    return principal;
  }

  /**
   * Makes a key; its secret is in the result and nowhere else.
   * @throws PlatformError `quota_exceeded` for more than `MAX_KEYS` that are not revoked
   */
  async create(request: {
    readonly project: string;
    readonly name: string;
    readonly readOnly: boolean;
    readonly builder?: boolean;
  }): Promise<{ key: string; info: KeyInfo }> {
    await this.#makeRoom();
    const key = newSecret(this.#random);
    const record: KeyRecord = {
      version: 1,
      keyId: newKeyId(this.#random),
      project: request.project,
      name: request.name,
      readOnly: request.readOnly,
      builder: request.builder ?? false,
      sha256: hashSecret(key),
      createdAtMs: this.#clock.now(),
      revokedAtMs: null,
    };
    const result = await this.#store.put(storeKeyOf(record.keyId), JSON.stringify(record), { ifRevision: 0 });
    if (!result.ok) throw new PlatformError('internal', 'a new key id was taken already');
    this.#view.observe(record.keyId, result.revision, record);
    return { key, info: keyInfoOf(record) };
  }

  /** Forgets the key that was revoked first when there are as many as there may be: it opens nothing any more. */
  async #makeRoom(): Promise<void> {
    if (this.#view.size < MAX_KEYS) return;
    let oldest: KeyRecord | undefined;
    for (const record of this.#view.records()) {
      if (record.revokedAtMs !== null && record.revokedAtMs < (oldest?.revokedAtMs ?? Infinity)) oldest = record;
    }
    if (oldest === undefined) {
      throw new PlatformError('quota_exceeded', 'there are as many API keys as there may be: revoke some', {
        details: { resource: 'keys', limit: MAX_KEYS, current: this.#view.size },
      });
    }
    const result = await this.#store.delete(storeKeyOf(oldest.keyId));
    if (result.ok) this.#view.observe(oldest.keyId, result.revision, undefined);
  }

  /** Keys of a project, the oldest first, revoked ones too. */
  list(project: string): readonly KeyInfo[] {
    return [...this.#view.records()]
      .filter((record) => record.project === project)
      .toSorted((left, right) => left.createdAtMs - right.createdAtMs || (left.keyId < right.keyId ? -1 : 1))
      .map(keyInfoOf);
  }

  /**
   * Revokes a key for good. Revoking a revoked key is no error.
   * @throws PlatformError `key_not_found`
   */
  async revoke(project: string, keyId: string): Promise<KeyInfo> {
    if (this.#view.get(keyId) === undefined) throw keyNotFound(keyId);
    for (;;) {
      const entry = await this.#store.get(storeKeyOf(keyId));
      const record = entry === undefined ? undefined : parseKeyRecord(entry.value);
      if (entry === undefined || record === undefined || record.project !== project) throw keyNotFound(keyId);
      if (record.revokedAtMs !== null) return keyInfoOf(record);
      const revoked: KeyRecord = { ...record, revokedAtMs: this.#clock.now() };
      const result = await this.#store.put(entry.key, JSON.stringify(revoked), { ifRevision: entry.modRevision });
      if (!result.ok) continue;
      this.#view.observe(keyId, result.revision, revoked);
      return keyInfoOf(revoked);
    }
  }
}

const principalOf = ({ keyId, name, project, readOnly, builder }: KeyRecord): Principal => ({
  keyId,
  name,
  project,
  right: readOnly ? 'read' : builder === true ? 'build' : 'write',
});

const keyNotFound = (keyId: string): PlatformError =>
  new PlatformError('key_not_found', 'there is no such key', { details: { keyId: keyId.slice(0, 64) } });
