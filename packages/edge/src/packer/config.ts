/** Configuration of a packer. */
import { Type } from 'typebox';

const uid = { minimum: 1, maximum: 4_294_967_294 } as const;

export const PackerConfigSchema = Type.Object(
  {
    socket: Type.String({ minLength: 1, description: 'Where the edge connects. Its directory decides who may.' }),
    layersDirectory: Type.String({ minLength: 1 }),
    uid: Type.Integer({ ...uid, description: 'The user that the packer becomes.' }),
    gid: Type.Integer({ ...uid }),
    logLevel: Type.Union(
      (['debug', 'info', 'warn', 'error', 'silent'] as const).map((level) => Type.Literal(level)),
      { default: 'info' },
    ),
  },
  { additionalProperties: false },
);
