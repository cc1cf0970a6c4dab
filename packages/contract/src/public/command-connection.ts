/**
 * Commands of one client over one connection (docs/wire.md, "Clients"): `GET /v1/wire` that changes to the wire protocol. A small command is then
 * two frames each way instead of an HTTP exchange.
 */
import { Type, type Static } from 'typebox';
import { limits } from '../limits.ts';
import { ExecRequestSchema } from './exec.ts';

/** Below `/v1`. */
export const COMMAND_CONNECTION_PATH = '/wire';
/** What `Upgrade` names. */
export const COMMAND_CONNECTION_UPGRADE = 'dsec-wire';

/** Params of `exec.start` on it. The stream is that of `exec.start` of aether. */
export const CommandStartSchema = Type.Object(
  {
    sandboxId: Type.String(),
    /** As the header Idempotency-Key of the route. */
    idempotencyKey: Type.String({ pattern: `^[\\x21-\\x7e]{1,${limits.idempotencyKeyChars}}$` }),
    /** The body of the route; neither `detach` nor `stdinBase64`. */
    exec: ExecRequestSchema,
  },
  { additionalProperties: false },
);
export type CommandStart = Static<typeof CommandStartSchema>;
