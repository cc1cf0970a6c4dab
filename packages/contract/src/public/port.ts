/** Ports of a sandbox as the public API shows them. */
import { Type, type Static } from 'typebox';

const closed = { additionalProperties: false } as const;

export const PortSchema = Type.Integer({ minimum: 1, maximum: 65_535 });

export const PortTokenRequestSchema = Type.Object(
  {
    expiresInSeconds: Type.Optional(Type.Integer({ minimum: 1, maximum: 604_800, description: 'Default 3600.' })),
  },
  { ...closed, description: 'Asks for a token that opens one port of one sandbox, and nothing else.' },
);
export const PortTokenSchema = Type.Object({ token: Type.String(), expiresAtMs: Type.Integer() }, closed);
export type PortToken = Static<typeof PortTokenSchema>;
