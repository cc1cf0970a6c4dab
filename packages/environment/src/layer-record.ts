import { DigestSchema, EnvironmentConfigSchema } from '@dsec/contract';
import { compileSchema, type Parser } from '@dsec/kit';
import { Type, type Static } from 'typebox';

const closed = { additionalProperties: false };
const SizeSchema = Type.Integer({ minimum: 0 });

const described = {
  createdAtMs: Type.Integer(),
  architecture: Type.String(),
  source: Type.Object(
    {
      kind: Type.Union([Type.Literal('recipe'), Type.Literal('image'), Type.Literal('changes')]),
      name: Type.String({ maxLength: 1024 }),
    },
    closed,
  ),
  config: EnvironmentConfigSchema,
};

/** What stands in `layer.json` beside an image: enough to know, without reading it, what it is. */
const LayerRecordSchema = Type.Object(
  {
    version: Type.Literal(2),
    /** Made from the two digests below. */
    digest: DigestSchema,
    /** Of both together. */
    sizeBytes: SizeSchema,
    /** `rootfs.erofs` */
    metadata: Type.Object({ digest: DigestSchema, sizeBytes: SizeSchema }, closed),
    /** `data`; the digest is that of the digests of its chunks. */
    data: Type.Object({ digest: DigestSchema, sizeBytes: SizeSchema }, closed),
    ...described,
  },
  closed,
);
export type LayerRecord = Static<typeof LayerRecordSchema>;

const parser: Parser<LayerRecord> = compileSchema(LayerRecordSchema);

export const isLayerRecord = (value: unknown): value is LayerRecord => parser.is(value);

/** @throws PlatformError `image_unsupported` when the image's configuration does not fit */
export const checkedRecord = (record: LayerRecord): LayerRecord =>
  parser.parse(record, { what: 'the configuration of the image', code: 'image_unsupported' });
