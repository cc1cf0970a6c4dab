/** Configuration of a packer. */
import { daemonConfig } from '@dsec/kit';
import { Type } from 'typebox';

export const PackerConfigSchema = Type.Object(
  {
    socket: Type.String({ minLength: 1, description: 'Where the edge connects. Its directory decides who may.' }),
    layersDirectory: Type.String({ minLength: 1, description: 'The layers of the node.' }),
    draftsDirectory: Type.String({
      minLength: 1,
      description: 'Where layers are made for the publisher; what is in it is removed at the start.',
    }),
    publisherSocket: Type.String({ minLength: 1, description: 'Where the publisher listens.' }),
    ...daemonConfig('packer'),
  },
  { additionalProperties: false },
);
