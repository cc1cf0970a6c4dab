import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DigestSchema, limits } from '@dsec/contract';
import { compileSchema, type Parser } from '@dsec/kit';
import { type Static, Type } from 'typebox';

/** Changes whenever equal layers may give another image; it is part of every name, so that what an older merger made is made again. */
const SET_VERSION = 1;

/** The files of a set (docs/layers.md). */
export const SET_IMAGE_FILE = 'rootfs.erofs';
export const SET_RECORD_FILE = 'set.json';

const closed = { additionalProperties: false };

const SetRecordSchema = Type.Object(
  {
    version: Type.Literal(SET_VERSION),
    digest: DigestSchema,
    /** Topmost first: also the order of the devices. */
    layers: Type.Array(DigestSchema, { minItems: 1, maxItems: limits.layers }),
    /** `rootfs.erofs` */
    metadata: Type.Object({ digest: DigestSchema, sizeBytes: Type.Integer({ minimum: 0 }) }, closed),
  },
  closed,
);
/** What stands in `set.json`, written last. */
export type SetRecord = Static<typeof SetRecordSchema>;

const parser: Parser<SetRecord> = compileSchema(SetRecordSchema);

/**
 * The name of a set: of its layers in their order, and of how they are merged.
 *
 * @param layers digests, topmost first
 */
export const setDigest = (layers: readonly string[]): string => {
  const hexes = layers.map((digest) => `${digest.slice('sha256:'.length)}\n`);
  return `sha256:${createHash('sha256')
    .update(`dsec-set ${SET_VERSION}\n${hexes.join('')}`)
    .digest('hex')}`;
};

/** @param digest of the set */
export const setDirectory = (setsDirectory: string, digest: string): string =>
  join(setsDirectory, digest.slice('sha256:'.length));

export const newSetRecord = (layers: readonly string[], metadata: SetRecord['metadata']): SetRecord => ({
  version: SET_VERSION,
  digest: setDigest(layers),
  layers: [...layers],
  metadata,
});

/**
 * What the record of a set says, whether or not its image is whole.
 *
 * @returns undefined when there is none, or none of this version
 */
export const readSetRecord = async (directory: string): Promise<SetRecord | undefined> => {
  try {
    const record: unknown = JSON.parse(await readFile(join(directory, SET_RECORD_FILE), 'utf8'));
    return parser.is(record) && setDigest(record.layers) === record.digest ? record : undefined;
  } catch (error) {
    if (error instanceof SyntaxError || isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return undefined;
    throw error;
  }
};

export const isErrno = (error: unknown, code: string): boolean =>
  error instanceof Error && 'code' in error && error.code === code;
