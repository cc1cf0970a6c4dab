/** Who uses what: the layers of an environment on a node, and how many sandboxes ran from which names. */
import { Type, type Static } from 'typebox';
import { limits } from '../limits.ts';
import { DigestSchema } from './environment.ts';
import { EnvironmentNameSchema } from './sandbox.ts';

const closed = { additionalProperties: false } as const;
const count = { minimum: 0 } as const;

/** What a node knows of a layer. */
const onNode = {
  layer: DigestSchema,
  dataBytes: Type.Union([Type.Integer(count), Type.Null()], {
    description: 'Bytes of its data; null: the layer is not on the node.',
  }),
  presentBytes: Type.Integer({ ...count, description: 'Bytes of its data that are on the node.' }),
  touchedBytes: Type.Union([Type.Integer(count), Type.Null()], {
    description:
      'Bytes of its data that were ever read on the node; null: nobody counts, since the layer was built here or is not here.',
  }),
  sandboxes: Type.Integer({ ...count, description: 'Live sandboxes that stand on it.' }),
} as const;

/** What an edge answers to `layer.usage`. */
export const LayersInUseSchema = Type.Object(
  {
    sandboxes: Type.Integer(count),
    layers: Type.Array(Type.Object(onNode, closed), { maxItems: limits.layers }),
  },
  closed,
);
export type LayersInUse = Static<typeof LayersInUseSchema>;

export const EnvironmentUsageSchema = Type.Object(
  {
    name: Type.String(),
    sandboxes: Type.Integer({
      ...count,
      description: 'Live sandboxes that run from it, as base, workspace or toolkit; of all projects.',
    }),
    layers: Type.Array(
      Type.Object(
        {
          ...onNode,
          touchedShare: Type.Union([Type.Number({ minimum: 0, maximum: 1 }), Type.Null()], {
            description: 'touchedBytes of dataBytes; null where either is, or where there are no data.',
          }),
          otherEnvironments: Type.Integer({ ...count, description: 'Other environments that have this layer.' }),
        },
        closed,
      ),
      { maxItems: limits.layers, description: 'Top first, as in the image.' },
    ),
  },
  closed,
);
export type EnvironmentUsage = Static<typeof EnvironmentUsageSchema>;

export const CompositionSchema = Type.Object(
  {
    environment: EnvironmentNameSchema,
    workspace: Type.Union([EnvironmentNameSchema, Type.Null()]),
    toolkits: Type.Array(EnvironmentNameSchema, { maxItems: limits.toolkits }),
    sandboxes: Type.Integer({ minimum: 1, description: 'Sandboxes that were begun on it.' }),
    recentSandboxes: Type.Number({
      ...count,
      description:
        'The same, weighed by their age to a thousandth: one that begins weighs 1, and half as much after each half-life.',
    }),
    lastCreatedAtMs: Type.Integer(),
  },
  { ...closed, description: 'Names that sandboxes ran from together, and how many did.' },
);
export type Composition = Static<typeof CompositionSchema>;

export const CompositionPageSchema = Type.Object(
  {
    compositions: Type.Array(CompositionSchema),
    cursor: Type.Union([Type.String(), Type.Null()], { description: 'For the next page; null: there is none.' }),
  },
  closed,
);
export type CompositionPage = Static<typeof CompositionPageSchema>;
