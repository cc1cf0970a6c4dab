/** The results and messages of aether as docs/wire.md gives them, each bounded: they come out of a sandbox. */
import { ExecStatusSchema, FileEntrySchema, SessionSchema } from '@dsec/contract';
import { type Static, Type } from 'typebox';

import { answer, closed } from './answer.ts';

/** Characters of any text; a message holds no more anyway. */
const MAX_TEXT = 65_536;
const MAX_PROCESSES = 4_096;
/** Execs and sessions that one sandbox can list. */
const MAX_LISTED = 16_384;

const text = Type.String({ maxLength: MAX_TEXT });
const count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const id = Type.Integer({ minimum: 0, maximum: 0xffff_ffff });
const channel = Type.Union([Type.Literal(1), Type.Literal(2)]);

const InfoSchema = closed({
  version: Type.String({ maxLength: 64 }),
  pid1Rss: Type.Optional(count),
  processes: count,
  execs: count,
});
export type AetherInfo = Static<typeof InfoSchema>;

const ExecSchema = closed(ExecStatusSchema.properties);
const EntrySchema = closed(FileEntrySchema.properties);

const ProcessSchema = closed({
  pid: id,
  ppid: id,
  uid: id,
  command: text,
  startedAtMs: Type.Number(),
  rssBytes: count,
});
export type ProcessInfo = Static<typeof ProcessSchema>;

const StartedSchema = closed({
  started: closed({ execId: text, pid: id, clientId: Type.Optional(Type.String({ maxLength: 64 })) }),
});
export type ExecStarted = Static<typeof StartedSchema>['started'];
const GapSchema = closed({ gap: closed({ channel, from: count, to: count }) });
export type OutputGap = Static<typeof GapSchema>['gap'];

const EventSchema = closed({
  kind: Type.Union([
    Type.Literal('create'),
    Type.Literal('modify'),
    Type.Literal('remove'),
    Type.Literal('move'),
    Type.Literal('attrib'),
  ]),
  path: text,
  to: Type.Optional(text),
});
export type WatchEvent = Static<typeof EventSchema>;
const ReadySchema = closed({ ready: Type.Literal(true) });
const OverflowSchema = closed({ overflow: Type.Literal(true) });
const EventsSchema = closed({ events: Type.Array(EventSchema, { maxItems: MAX_TEXT }) });
/** One message of a watch. */
export type WatchMessage = Static<typeof ReadySchema | typeof OverflowSchema | typeof EventsSchema>;

const watchReady = answer(ReadySchema);
const watchOverflow = answer(OverflowSchema);
const watchEvents = answer(EventsSchema);

export const aetherAnswer = {
  none: answer(closed({})),
  info: answer(InfoSchema),
  exec: answer(ExecSchema),
  execs: answer(closed({ execs: Type.Array(ExecSchema, { maxItems: MAX_LISTED }) })),
  delivered: answer(closed({ delivered: Type.Boolean() })),
  bytes: answer(closed({ bytes: count })),
  pid: answer(closed({ pid: id })),
  sessions: answer(closed({ sessions: Type.Array(SessionSchema, { maxItems: MAX_LISTED }) })),
  entry: answer(EntrySchema),
  entryMessage: answer(closed({ entry: EntrySchema })),
  entriesMessage: answer(closed({ entries: Type.Array(EntrySchema, { maxItems: MAX_TEXT }) })),
  listed: answer(closed({ count, truncated: Type.Boolean() })),
  entries: answer(closed({ entries: count })),
  processes: answer(closed({ processes: Type.Array(ProcessSchema, { maxItems: MAX_PROCESSES }) })),
  started: answer(StartedSchema),
  gap: answer(GapSchema),
  watch: (value: unknown, method: string): WatchMessage => {
    if (typeof value === 'object' && value !== null && 'events' in value) return watchEvents(value, method);
    if (typeof value === 'object' && value !== null && 'overflow' in value) return watchOverflow(value, method);
    return watchReady(value, method);
  },
} as const;
