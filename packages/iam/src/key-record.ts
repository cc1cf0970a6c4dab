/** API keys as the store keeps them: the hash of the secret, never the secret. */
import { hash } from 'node:crypto';
import type { KeyInfo } from '@dsec/contract';
import { compileSchema, type Random } from '@dsec/kit';
import { Type, type Static } from 'typebox';

export const KEY_PREFIX = 'iam/keys/';
const SECRET_CHARS = 48;
const KEY_ID_CHARS = 12;

const KeyRecordSchema = Type.Object(
  {
    version: Type.Literal(1),
    keyId: Type.String(),
    project: Type.String(),
    name: Type.String(),
    readOnly: Type.Boolean(),
    /** Absent: no builder. */
    builder: Type.Optional(Type.Boolean()),
    sha256: Type.String({ pattern: '^[0-9a-f]{64}$' }),
    createdAtMs: Type.Integer(),
    revokedAtMs: Type.Union([Type.Integer(), Type.Null()]),
  },
  { additionalProperties: false },
);
export type KeyRecord = Static<typeof KeyRecordSchema>;

const parser = compileSchema(KeyRecordSchema);

export const parseKeyRecord = (value: string): KeyRecord =>
  parser.parse(JSON.parse(value), { what: 'a stored key', code: 'internal' });

export const storeKeyOf = (keyId: string): string => KEY_PREFIX + keyId;

/** A new secret, 248 random bits behind a prefix that scanners of leaked secrets can find. */
export const newSecret = (random: Random): string => `dsec_${random.base36(SECRET_CHARS)}`;

export const newKeyId = (random: Random): string => `k${random.base36(KEY_ID_CHARS)}`;

/** sha256 of a secret, in hex: secrets are random, so that a slow hash would add nothing. */
export const hashSecret = (secret: string): string => hash('sha256', secret);

export const keyInfoOf = ({ keyId, name, readOnly, builder, createdAtMs, revokedAtMs }: KeyRecord): KeyInfo => ({
  keyId,
  name,
  readOnly,
  builder: builder ?? false,
  createdAtMs,
  revokedAtMs,
});
