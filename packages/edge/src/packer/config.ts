/** Configuration of a packer. */
import { daemonConfig } from '@dsec/kit';
import { Type } from 'typebox';

export const PackerConfigSchema = Type.Object(
  {
    socket: Type.String({ minLength: 1, description: 'Where the edge connects. Its directory decides who may.' }),
    layersDirectory: Type.String({ minLength: 1 }),
    ...daemonConfig('packer'),
  },
  { additionalProperties: false },
);
