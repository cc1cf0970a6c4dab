/**
 * Behaviour: what programs of a sandbox tried that its policy denies, and what of theirs touched a tripwire, as events and as a report of each
 * sandbox. An event says who did it: the process, and the command and session that it descends from where they are known.
 */
import { Type } from 'typebox';
import { limits } from '../limits.ts';
import { ExecIdSchema, SessionIdSchema } from './exec.ts';
import { SandboxIdSchema } from './sandbox.ts';

const closed = { additionalProperties: false } as const;

export const behaviourKinds = ['call', 'open', 'tripwire', 'connect', 'name', 'service'] as const;
/**
 * `call`: a system call, or a request of one, that is refused. `open`: a file of the kernel that may not be opened. `tripwire`: a file that the policy
 * names was touched; that is not refused. `connect`: traffic that the network policy does not let through. `name`: a name that is not resolved.
 * `service`: a request that a mirror service refuses.
 */
export type BehaviourKind = (typeof behaviourKinds)[number];

export const BehaviourKindSchema = Type.Union(
  behaviourKinds.map((kind) => Type.Literal(kind)),
  { description: 'What was tried.' },
);
const count = Type.Integer({ minimum: 0 });
const time = (description: string) => Type.Integer({ description });
/** Told by a program: of any content, cut to a bound. */
const said = Type.String({ maxLength: limits.behaviourTextChars });
const argv = Type.Array(said, { maxItems: limits.behaviourArgv });

const ProcessSchema = Type.Object(
  {
    pid: Type.Integer({ description: 'Inside the sandbox.' }),
    uid: Type.Integer({ description: 'Inside the sandbox.' }),
    comm: said,
    argv: Type.Array(said, { maxItems: limits.behaviourArgv, description: 'As the process tells it of itself; cut.' }),
  },
  { ...closed, description: 'Who did it; absent where the kernel does not say.' },
);
export interface BehaviourProcess {
  readonly pid: number;
  readonly uid: number;
  readonly comm: string;
  readonly argv: readonly string[];
}

const attribution = {
  process: Type.Optional(ProcessSchema),
  execId: Type.Optional(ExecIdSchema),
  sessionId: Type.Optional(SessionIdSchema),
  command: Type.Optional({
    ...argv,
    description: 'The command of the exec as its caller gave it, cut; of a script its text alone.',
  }),
} as const;
/** Who did it, as far as it is known. */
export interface BehaviourAttribution {
  readonly process?: BehaviourProcess;
  /** The command that the process descends from. Absent when it is not known which. */
  readonly execId?: string;
  /** The session that it descends from. */
  readonly sessionId?: string;
  /** The command of the exec as its caller gave it, cut; of a script its text alone. */
  readonly command?: readonly string[];
}

const subject = {
  kind: BehaviourKindSchema,
  what: Type.String({
    maxLength: limits.behaviourTextChars,
    description: 'In one line: `bpf`, `/etc/shadow`, `tcp 192.0.2.7:443`, `secret.example.com TXT`.',
  }),
  outcome: Type.String({
    maxLength: 64,
    description: 'What came of it: the error of a call, `seen` of a tripwire, why the network refused.',
  }),
} as const;

/** Where a stream of events stands. */
export const behaviourCursorPattern = '^[0-9a-z]{1,12}-[0-9a-z]{1,12}$';
export const BehaviourCursorSchema = Type.String({ pattern: behaviourCursorPattern });

export const BehaviourEventSchema = Type.Object(
  {
    cursor: BehaviourCursorSchema,
    atMs: time('When the first of them was seen.'),
    sandboxId: SandboxIdSchema,
    keyId: Type.String({ maxLength: 64, description: 'The key that made the sandbox.' }),
    ...subject,
    count: Type.Integer({
      minimum: 1,
      description:
        'How many it stands for: the like ones of the sandbox since the last event of this kind, told or not.',
    }),
    call: Type.Optional(said),
    argument: Type.Optional(said),
    path: Type.Optional(said),
    name: Type.Optional(said),
    type: Type.Optional(said),
    address: Type.Optional(said),
    port: Type.Optional(Type.Integer({ minimum: 0, maximum: 65_535 })),
    protocol: Type.Optional(said),
    ...attribution,
  },
  { ...closed, description: 'Something that a sandbox tried and was denied, or a tripwire that it touched.' },
);
/** Something that a sandbox tried and was denied, or a tripwire that it touched. */
export interface BehaviourEvent extends BehaviourAttribution {
  /** Names the event in its stream: what to go on `after`. */
  readonly cursor: string;
  readonly atMs: number;
  readonly sandboxId: string;
  /** The key that made the sandbox. */
  readonly keyId: string;
  readonly kind: BehaviourKind;
  /** In one line: `bpf`, `/etc/shadow`, `tcp 192.0.2.7:443`, `secret.example.com TXT`. */
  readonly what: string;
  /** What came of it: the error of a call, `seen` of a tripwire, why the network refused. */
  readonly outcome: string;
  /** How many it stands for. */
  readonly count: number;
  readonly call?: string;
  readonly argument?: string;
  readonly path?: string;
  readonly name?: string;
  /** Of a name: the type of record. */
  readonly type?: string;
  readonly address?: string;
  readonly port?: number;
  readonly protocol?: string;
}

const SampleSchema = Type.Object({ atMs: time('When it was seen.'), ...attribution }, closed);
export interface BehaviourSample extends BehaviourAttribution {
  readonly atMs: number;
}

const EntrySchema = Type.Object(
  {
    ...subject,
    count,
    firstAtMs: time('When the first was seen.'),
    lastAtMs: time('When the last was seen.'),
    samples: Type.Array(SampleSchema, {
      maxItems: limits.behaviourSamples,
      description: 'Who did it: the first few different ones.',
    }),
  },
  closed,
);
/** All that was tried of one kind at one thing. */
export interface BehaviourEntry {
  readonly kind: BehaviourKind;
  readonly what: string;
  readonly outcome: string;
  readonly count: number;
  readonly firstAtMs: number;
  readonly lastAtMs: number;
  readonly samples: readonly BehaviourSample[];
}

export const BehaviourReportSchema = Type.Object(
  {
    sandboxId: SandboxIdSchema,
    tripwires: Type.Array(Type.String(), { description: 'Those of its policy.' }),
    absentTripwires: Type.Array(Type.String(), {
      description: 'Those of them that were no file when the sandbox was made, and so are not watched.',
    }),
    counts: Type.Object(
      Object.fromEntries(behaviourKinds.map((kind) => [kind, count])) as Record<BehaviourKind, typeof count>,
      { ...closed, description: 'Everything of each kind that was counted, in entries or not.' },
    ),
    entries: Type.Array(EntrySchema, { maxItems: limits.behaviourEntries }),
    withoutEntry: Type.Integer({
      minimum: 0,
      description: 'How many of the counted had no room among the entries.',
    }),
  },
  { ...closed, description: 'What a sandbox tried since its creation that was denied.' },
);
/** What a sandbox tried since its creation that was denied. */
export interface BehaviourReport {
  readonly sandboxId: string;
  readonly tripwires: readonly string[];
  /** Those of them that were no file when the sandbox was made, and so are not watched. */
  readonly absentTripwires: readonly string[];
  /** Everything of each kind that was counted, in entries or not. */
  readonly counts: Readonly<Record<BehaviourKind, number>>;
  readonly entries: readonly BehaviourEntry[];
  /** How many of the counted had no room among the entries. */
  readonly withoutEntry: number;
}

/** A line of a stream of events. The first says where the stream begins. */
export const BehaviourLineSchema = Type.Union([
  Type.Object({ at: BehaviourCursorSchema }, closed),
  Type.Object({ event: BehaviourEventSchema }, closed),
  Type.Object({ lost: Type.Union([Type.Integer({ minimum: 1 }), Type.Null()]) }, closed),
]);
export type BehaviourLine =
  | { readonly at: string }
  | { readonly event: BehaviourEvent }
  /** So many did not reach this listener; null: nobody knows how many, since the edge was restarted. */
  | { readonly lost: number | null };
