import { KeySchema, NewKeySchema, type KeyInfo } from '@dsec/contract';
import { Type } from 'typebox';
import { idSegment, type Api } from './http/api.ts';
import type { CallOptions } from './http/deadline.ts';
import { parserOf } from './http/schema.ts';

const ListSchema = Type.Object({ keys: Type.Array(KeySchema) });
const parseList = parserOf<typeof ListSchema, { readonly keys: readonly KeyInfo[] }>(ListSchema, 'list of keys');
const parseNew = parserOf<typeof NewKeySchema, { readonly key: string; readonly info: KeyInfo }>(
  NewKeySchema,
  'new key',
);

/** The API keys of the project. */
export class Keys {
  readonly #api: Api;

  /** @internal Use `client.keys`. */
  constructor(api: Api) {
    this.#api = api;
  }

  /**
   * Makes a key. Its secret is in the answer and nowhere else.
   *
   * @param options.readOnly it can look, not change or run anything. @default false
   * @param options.builder it can also make layers and environments out of sandboxes, which the key of an agent at run time should not. @default false
   * @throws PlatformError `permission_denied` without the admin key; `invalid_argument` for a builder that only reads
   */
  async create(
    name: string,
    options: CallOptions & { readonly readOnly?: boolean; readonly builder?: boolean } = {},
  ): Promise<{ readonly key: string; readonly info: KeyInfo }> {
    const { readOnly, builder, ...call } = options;
    const json = {
      name,
      ...(readOnly === undefined ? {} : { readOnly }),
      ...(builder === undefined ? {} : { builder }),
    };
    return this.#api.json(
      { method: 'POST', path: '/keys', what: `making key ${name}`, json, repeatable: 'unsent' },
      parseNew,
      call,
    );
  }

  /** All keys, revoked ones too, without their secrets. */
  async list(options: CallOptions = {}): Promise<readonly KeyInfo[]> {
    return (
      await this.#api.json(
        { method: 'GET', path: '/keys', what: 'listing the keys', repeatable: 'always' },
        parseList,
        options,
      )
    ).keys;
  }

  /** From now on nothing is done for this key. Revoking it twice is no error. @throws PlatformError `key_not_found` */
  async revoke(keyId: string, options: CallOptions = {}): Promise<void> {
    await this.#api.done(
      {
        method: 'DELETE',
        path: `/keys/${idSegment(keyId, 'keyId')}`,
        what: `revoking key ${keyId}`,
        repeatable: 'always',
      },
      options,
    );
  }
}
