/** What launcher and resolver tell of the behaviour of sandboxes (docs/wire.md). Names, paths and arguments are of the sandbox's choosing: each is bounded. */
import { type Static, Type } from 'typebox';

import { answer, closed } from './answer.ts';

/** A path of the kernel, and the arguments of a process all together. */
const MAX_TEXT = 4096;
const MAX_ARGV = 64;
const MAX_ANCESTORS = 32;

const sandboxId = Type.String({ pattern: '^[a-z0-9]{1,24}$' });
const text = Type.String({ maxLength: MAX_TEXT });
const id = Type.Integer({ minimum: 0, maximum: 0xffff_ffff });
const count = Type.Integer({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER });
const atMs = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });

export const ProcessSchema = closed({
  pid: id,
  /** Its parents, nearest first. */
  ancestors: Type.Array(id, { maxItems: MAX_ANCESTORS }),
  session: id,
  uid: id,
  comm: text,
  argv: Type.Array(text, { maxItems: MAX_ARGV }),
});
/** Who did it, as it is called inside. */
export type CausingProcess = Static<typeof ProcessSchema>;

const lost = Type.Optional(count);
const process = Type.Optional(ProcessSchema);

const DeniedSchema = closed({
  event: closed({
    id: sandboxId,
    atMs,
    kind: Type.Union([Type.Literal('call'), Type.Literal('open'), Type.Literal('tripwire')]),
    call: Type.Optional(text),
    argument: Type.Optional(text),
    path: Type.Optional(text),
    outcome: text,
    count,
    process,
  }),
  /** Events before this one that were not read in time. */
  lost,
});
/** Something that the kernel denied a program, or a tripwire that it touched. */
export type DeniedAct = Static<typeof DeniedSchema>;

const RefusedSchema = closed({
  event: closed({
    id: sandboxId,
    atMs,
    kind: Type.Union([Type.Literal('connect'), Type.Literal('name'), Type.Literal('service')]),
    name: Type.Optional(text),
    /** The number of the record. */
    type: Type.Optional(Type.Integer({ minimum: 0, maximum: 65_535 })),
    address: Type.Optional(text),
    port: Type.Optional(Type.Integer({ minimum: 0, maximum: 65_535 })),
    protocol: Type.Optional(text),
    reason: text,
    count,
    process,
  }),
  lost,
});
/** Something that the network refused a sandbox. */
export type RefusedAct = Static<typeof RefusedSchema>;

export const deniedAct = answer(DeniedSchema);
export const refusedAct = answer(RefusedSchema);
