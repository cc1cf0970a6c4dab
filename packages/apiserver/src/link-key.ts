/** Signatures of this installation: over what a link or token allows, and nothing that it does not name. */
import { createHmac, hash, timingSafeEqual } from 'node:crypto';
import { PlatformError } from '@dsec/contract';

const MIN_KEY_BYTES = 16;
/** 96 of the 256 bits of a SHA-256: from a part of one nothing can be appended to what it was made of. */
const NAME_CHARS = 24;

/** What a signature is for; one of one purpose is never good for another. */
export type Purpose = 'file-link' | 'port-token';

type Part = string | number | null;

/** The key of signed links, port tokens and idempotent execs. */
export class LinkKey {
  readonly #key: Buffer;
  readonly #keyHex: string;

  constructor(key: Buffer) {
    if (key.length < MIN_KEY_BYTES) {
      throw new PlatformError('config_invalid', 'the link key is shorter than 16 bytes', {
        details: { field: 'linkKeyFile' },
      });
    }
    this.#key = key;
    this.#keyHex = key.toString('hex');
  }

  /** A key of its own for what tells commands apart in the audit log. */
  get commandKey(): string {
    return hash('sha256', `${this.#keyHex}${JSON.stringify(['command-digest'])}`);
  }

  /** A name for the parts that nobody else can work out: 24 characters of `[0-9a-f]`. A third of the cost of a signature. */
  nameOf(parts: readonly Part[]): string {
    return hash('sha256', `${this.#keyHex}${JSON.stringify(['exec-id', ...parts])}`).slice(0, NAME_CHARS);
  }

  /** HMAC-SHA256 over the parts, each told apart from the next. */
  #mac(purpose: Purpose, parts: readonly Part[]): Buffer {
    return createHmac('sha256', this.#key)
      .update(JSON.stringify([purpose, ...parts]))
      .digest();
  }

  sign(purpose: Purpose, parts: readonly Part[]): string {
    return this.#mac(purpose, parts).toString('base64url');
  }

  /** In constant time. */
  verify(purpose: Purpose, parts: readonly Part[], signature: string): boolean {
    const given = Buffer.from(signature, 'base64url');
    const expected = this.#mac(purpose, parts);
    return given.length === expected.length && timingSafeEqual(given, expected);
  }
}
