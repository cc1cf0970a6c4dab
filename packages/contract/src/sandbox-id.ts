/**
 * Sandbox ids: `s` + 3 characters of the owning edge + 13 characters of 64 random bits + 4 characters of a keyed check; base 36, 21
 * characters, so that `PORT-ID` fits a host label. Any apiserver routes an id without a lookup and refuses a forged one. The random
 * part makes ids sort nowhere and leak no count.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { PlatformError } from './errors.ts';

declare const sandboxIdBrand: unique symbol;

/** An id that has passed `SandboxIds.parse`. */
export type SandboxId = string & { readonly [sandboxIdBrand]: true };

/** Number of an edge: 0 to 46,655 (3 characters of base 36). */
export type EdgeNumber = number;

export const MAX_EDGE_NUMBER = 36 ** 3 - 1;
const CHECK_SPACE = 36 ** 4;
const form = /^s([0-9a-z]{3})([0-9a-z]{13})([0-9a-z]{4})$/;

/** Makes and checks ids with the key of one installation (at least 16 bytes). */
export class SandboxIds {
  readonly #key: Buffer;

  constructor(key: Buffer) {
    if (key.length < 16)
      throw new PlatformError('config_invalid', 'the id key is shorter than 16 bytes', { details: { field: 'idKey' } });
    this.#key = key;
  }

  /** A new id of edge `edge`; `random` are 8 bytes from the injected source of randomness. */
  create(edge: EdgeNumber, random: Buffer): SandboxId {
    if (!Number.isInteger(edge) || edge < 0 || edge > MAX_EDGE_NUMBER || random.length !== 8) {
      throw new PlatformError('internal', 'an id needs an edge number and 8 random bytes');
    }
    const body = edge.toString(36).padStart(3, '0') + random.readBigUInt64BE().toString(36).padStart(13, '0');
    return `s${body}${this.#check(body)}` as SandboxId;
  }

  /**
   * The id and its edge.
   * @throws PlatformError `invalid_id` when the form or the check is wrong
   */
  parse(text: string): { readonly sandboxId: SandboxId; readonly edge: EdgeNumber } {
    const match = form.exec(text);
    const edge = match?.[1];
    const random = match?.[2];
    const check = match?.[3];
    if (edge === undefined || random === undefined || check === undefined) {
      throw new PlatformError('invalid_id', 'this is not a sandbox id', { details: { field: 'sandboxId' } });
    }
    if (!timingSafeEqual(Buffer.from(check), Buffer.from(this.#check(edge + random)))) {
      throw new PlatformError('invalid_id', 'the check of the sandbox id does not match', {
        details: { field: 'sandboxId' },
      });
    }
    return { sandboxId: text as SandboxId, edge: Number.parseInt(edge, 36) };
  }

  #check(body: string): string {
    const mac = createHmac('sha256', this.#key).update('sandbox-id').update(body).digest();
    return (mac.readUInt32BE(0) % CHECK_SPACE).toString(36).padStart(4, '0');
  }
}
