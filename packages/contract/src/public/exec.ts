/** Commands, sessions and ptys as the public API shows them. */
import { Type, type Static } from 'typebox';
import { limits } from '../limits.ts';
import { EnvSchema, PathSchema, UserSchema } from './sandbox.ts';

const closed = { additionalProperties: false } as const;

export const ExecIdSchema = Type.String({ pattern: '^[a-z0-9]{1,32}$' });
export const SessionIdSchema = Type.String({ pattern: '^[a-z0-9]{1,32}$' });
const PtySchema = Type.Object({ rows: Type.Integer(limits.ptySize), cols: Type.Integer(limits.ptySize) }, closed);

export const ExecRequestSchema = Type.Object(
  {
    argv: Type.Optional(
      Type.Array(Type.String({ pattern: '^[^\\u0000]*$' }), {
        minItems: 1,
        maxItems: limits.argvEntries,
        description: 'Program and arguments, no shell. Either this or `shell`.',
      }),
    ),
    shell: Type.Optional(
      Type.String({
        maxLength: limits.scriptBytes,
        pattern: '^[^\\u0000]*$',
        description: 'A script for the bash (else sh) of the sandbox.',
      }),
    ),
    login: Type.Optional(
      Type.Boolean({
        description: 'Run `shell` by a login shell, whose /etc/profile may set PATH anew. Default false.',
      }),
    ),
    sessionId: Type.Optional(SessionIdSchema),
    env: Type.Optional(EnvSchema),
    cwd: Type.Optional(PathSchema),
    user: Type.Optional(UserSchema),
    stdin: Type.Optional(
      Type.Union([Type.Literal('none'), Type.Literal('open')], {
        description: '`none` (default): end of file at once. `open`: send bytes by the stdin route, then close.',
      }),
    ),
    stdinBase64: Type.Optional(
      Type.String({ maxLength: 1_400_000, description: 'Up to 1 MiB of stdin, then end of file.' }),
    ),
    pty: Type.Optional(PtySchema),
    timeoutMs: Type.Optional(
      Type.Integer({ ...limits.timeoutMs, description: 'The whole process tree is killed then. Default: none.' }),
    ),
    outputLimitBytes: Type.Optional(
      Type.Integer({ ...limits.outputLimitBytes, description: 'What is kept of each stream for later readers.' }),
    ),
    tag: Type.Optional(Type.String({ maxLength: 256 })),
    detach: Type.Optional(
      Type.Boolean({ description: 'Answer with the ExecStatus as soon as the command runs. Default false.' }),
    ),
  },
  { ...closed, description: 'A command to run.' },
);
/** A command to run: `argv` or `shell`. */
export type ExecRequest = Static<typeof ExecRequestSchema>;

export const ExecStatusSchema = Type.Object(
  {
    execId: ExecIdSchema,
    tag: Type.Optional(Type.String()),
    state: Type.Union([Type.Literal('running'), Type.Literal('exited')]),
    pid: Type.Integer({ description: 'Inside the sandbox.' }),
    pty: Type.Boolean(),
    startedAtMs: Type.Integer(),
    durationMs: Type.Optional(Type.Integer()),
    exitCode: Type.Optional(Type.Integer()),
    signal: Type.Optional(Type.Integer({ description: 'The signal that ended it, if one did.' })),
    timedOut: Type.Boolean(),
    oomKilled: Type.Boolean(),
    stdoutBytes: Type.Integer(),
    stderrBytes: Type.Integer(),
    stdoutDropped: Type.Integer({ description: 'Bytes that the ring no longer holds.' }),
    stderrDropped: Type.Integer(),
  },
  { description: 'State of a command.' },
);
/** State of a command. */
export type ExecStatus = Static<typeof ExecStatusSchema>;

export const ExecResultSchema = Type.Object(
  {
    status: ExecStatusSchema,
    stdout: Type.String({
      description:
        'What is kept, as UTF-8; what is not UTF-8 shows as U+FFFD. Empty when it is more than 1 MiB and not text: then see `stdoutBase64`.',
    }),
    stderr: Type.String(),
    stdoutBase64: Type.Optional(Type.String({ description: 'The bytes, when `stdout` is not exact.' })),
    stderrBase64: Type.Optional(Type.String()),
  },
  {
    ...closed,
    description:
      'A finished command. Of one that is silent for 15 seconds, blanks precede the JSON so that no proxy ends the connection; what fails after that is an `error` body under 200.',
  },
);
export type ExecResultJson = Static<typeof ExecResultSchema>;

export const SignalSchema = Type.Object(
  {
    signal: Type.Optional(Type.Integer({ minimum: 1, maximum: 64, description: 'Default 9.' })),
    tree: Type.Optional(Type.Boolean({ description: 'The whole process tree (default), or the first process only.' })),
  },
  closed,
);
export const ResizeSchema = Type.Object(
  {
    ...PtySchema.properties,
    clientId: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: 64,
        description:
          'Whose size it is: the terminal is as small as its smallest attached client. Without: the size that holds when no client says one.',
      }),
    ),
  },
  closed,
);

export const SessionOpenSchema = Type.Object(
  { env: Type.Optional(EnvSchema), cwd: Type.Optional(PathSchema), user: Type.Optional(UserSchema) },
  closed,
);
export const SessionSchema = Type.Object(
  { sessionId: SessionIdSchema, pid: Type.Integer(), busy: Type.Boolean() },
  closed,
);
export type SessionInfo = Static<typeof SessionSchema>;

/**
 * Media type of a streamed exec: records of a kind byte, a u32 little-endian length, and the payload. Kinds: `json` (an ExecStreamMessage),
 * `stdout`, `stderr`, `keepalive` (empty). The last record is a json `exit` or `error`; a stream that ends without one has broken.
 */
export const EXEC_STREAM_TYPE = 'application/vnd.dsec.exec-stream';
export const execStreamKind = { json: 0, stdout: 1, stderr: 2, keepalive: 3 } as const;
/** A silent stream carries a keepalive this often, so that no proxy on the way ends it. */
export const KEEPALIVE_MS = 15_000;

export type ExecStreamMessage =
  | {
      readonly started: {
        readonly execId: string;
        readonly pid: number;
        /** Of a pty: names this attachment in a resize. */
        readonly clientId?: string;
      };
    }
  | { readonly gap: { readonly channel: 1 | 2; readonly from: number; readonly to: number } }
  | { readonly exit: ExecStatus }
  | {
      readonly error: {
        readonly code: string;
        readonly message: string;
        readonly details: Readonly<Record<string, string | number | boolean | readonly string[] | null>>;
      };
    };
