/** Letting go of layers whose files are to be removed from a node. */
import { Type, type Static } from 'typebox';
import { DigestSchema } from './environment.ts';

const closed = { additionalProperties: false } as const;

/** Layers in one request. */
export const MAX_RELEASED_LAYERS = 1024;

export const LayerReleaseSchema = Type.Object(
  {
    layers: Type.Array(DigestSchema, { maxItems: MAX_RELEASED_LAYERS }),
    dryRun: Type.Optional(Type.Boolean({ description: 'Only say what would be let go. Default false.' })),
  },
  { ...closed, description: 'Layers of the node that may be of no use any more.' },
);
export type LayerRelease = Static<typeof LayerReleaseSchema>;

/** Who needs a layer: an environment names it; a sandbox stands on it, or is being made or removed; a pack is made on it, or may have made it. */
export const layerHolders = ['environment', 'sandbox', 'pack'] as const;
export type LayerHolder = (typeof layerHolders)[number];

export const ReleasedLayersSchema = Type.Object(
  {
    layers: Type.Array(
      Type.Object(
        {
          layer: DigestSchema,
          heldBy: Type.Union([...layerHolders.map((holder) => Type.Literal(holder)), Type.Null()], {
            description: 'Who needs it; null: nobody, and the node has let go of it.',
          }),
        },
        closed,
      ),
      { maxItems: MAX_RELEASED_LAYERS, description: 'In the order of the request.' },
    ),
    sets: Type.Array(Type.Object({ set: DigestSchema, sizeBytes: Type.Integer({ minimum: 0 }) }, closed), {
      description: 'Sets of these layers, which went with them.',
    }),
  },
  closed,
);
export interface ReleasedLayers {
  readonly layers: readonly { readonly layer: string; readonly heldBy: LayerHolder | null }[];
  readonly sets: readonly { readonly set: string; readonly sizeBytes: number }[];
}
