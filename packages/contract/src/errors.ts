/**
 * The error table: every error that leaves a dsec process carries one of these codes. HTTP status, retryability, whether it was the
 * platform's own fault (`infrastructure`) and the advice come from here and nowhere else. `docs/errors.md` is generated from it.
 *
 * Status follows RFC 9110: 404 also hides what the caller may not see, 409 a lost race or conflicting state, 429 a quota, 503 retry later,
 * 507 no capacity, 500 is always a fault of ours.
 */
export interface ErrorRow {
  readonly status: number;
  readonly retryable: boolean;
  readonly infrastructure: boolean;
  /** What it means. */
  readonly meaning: string;
  /** What the caller can do. */
  readonly fix: string;
}

const row = (
  status: number,
  meaning: string,
  fix: string,
  flags: { retryable?: true; infrastructure?: true } = {},
): ErrorRow => ({
  status,
  retryable: flags.retryable ?? false,
  infrastructure: flags.infrastructure ?? false,
  meaning,
  fix,
});

export const errorTable = {
  // The request itself
  invalid_argument: row(
    400,
    'A field of the request is missing, unknown, of the wrong type or out of its range.',
    'Correct the field that `details.field` names.',
  ),
  invalid_id: row(
    400,
    'The id does not have the form of a sandbox id, or its check does not match: it was mistyped or forged.',
    'Use an id that a create returned.',
  ),
  request_too_large: row(
    413,
    'The request body, or a part of it, is larger than its bound.',
    'Send less; stream files through the files API.',
  ),
  unsupported_media_type: row(
    415,
    'The body is of a type that this route does not take.',
    'Send JSON as `application/json`.',
  ),
  unauthenticated: row(
    401,
    'No API key was sent, or the key is unknown or revoked.',
    'Give a live key: in `DSEC_API_KEY`, or as `Authorization: Bearer KEY`; `dsec key create` makes one.',
  ),
  permission_denied: row(
    403,
    'The key may not do this.',
    'Ask the owner of the project for the right, or use another key.',
  ),
  link_expired: row(403, 'The signed link has expired.', 'Ask for a new link.'),
  link_invalid: row(
    403,
    'The signed link does not match what it is used for.',
    'Use the link unaltered, for the method, path and user that it was made for.',
  ),
  not_found: row(404, 'There is no such route.', 'See the API description under `spec/`.'),
  method_not_allowed: row(405, 'This route has no such method.', 'See the API description under `spec/`.'),
  idempotency_conflict: row(
    409,
    'The idempotency key was used before with another request.',
    'Use a fresh key for a new request.',
  ),
  unknown_method: row(
    501,
    'The other side does not know this method: the versions differ.',
    'Bring all parts to the same version.',
    { infrastructure: true },
  ),

  // Sandboxes
  sandbox_not_found: row(
    404,
    'There is no sandbox with this id on its edge: it was never made, or ended so long ago that its record is gone.',
    'List the sandboxes to see which exist.',
  ),
  sandbox_ended: row(410, 'The sandbox has ended; `details.cause` says why.', 'Create a new sandbox.'),
  sandbox_failed: row(
    410,
    'The sandbox failed; `details.cause` says why, and `infrastructure` is that of the cause.',
    'Create a new sandbox; the work in it is lost.',
    { infrastructure: true },
  ),
  sandbox_not_ready: row(
    409,
    'The sandbox is still being created or already being stopped.',
    'Wait for its state to change.',
    { retryable: true },
  ),
  edge_unknown: row(
    404,
    'The id names an edge that is not part of this installation.',
    'Use the endpoint of the installation that made the sandbox.',
  ),
  service_unknown: row(
    400,
    'The network policy opens a service that the operator of this node has not defined: `details.service`.',
    'Open one of `details.services`, or have the operator define it.',
  ),
  network_unavailable: row(
    501,
    'This node cannot give sandboxes a network, so that a policy that allows something cannot be kept: `details.reason`.',
    'Leave out what the policy allows, or see `dsec doctor` for what the node lacks.',
  ),
  policy_stale: row(
    409,
    'The policy was changed after the version that this change is based on: `details.version` is in force.',
    'Read the policy again and base the change on that.',
  ),
  backend_unsupported: row(
    400,
    'This node does not offer the backend that was asked for.',
    'Ask for one of `details.supported`.',
  ),
  create_failed: row(
    500,
    'The sandbox could not be made.',
    'Try again; if it goes on, see `dsec doctor` and the log of the edge.',
    { retryable: true, infrastructure: true },
  ),
  cleanup_incomplete: row(
    500,
    'Something of a stopped sandbox could not be removed yet; the edge goes on trying.',
    'Nothing; see the log of the edge if it lasts.',
    { retryable: true, infrastructure: true },
  ),

  // Capacity
  no_capacity: row(
    507,
    'The node has no room for this sandbox: `details.resource`, `details.limit`, `details.current`, `details.requested`.',
    'Stop sandboxes, ask for less, or try again later.',
    { retryable: true },
  ),
  quota_exceeded: row(
    429,
    'A quota of the project is used up: `details.resource`, `details.limit`, `details.current`.',
    'Stop something or ask for a larger quota.',
    { retryable: true },
  ),
  too_many_requests: row(429, 'More requests or streams are open than one caller may have.', 'Send fewer at once.', {
    retryable: true,
  }),
  too_many_streams: row(
    429,
    'The sandbox or connection has its greatest number of open streams.',
    'Close some streams.',
    { retryable: true },
  ),
  disk_full: row(
    507,
    'The disk of the node, or the disk quota of the sandbox, is full.',
    'Free space, or ask for more with `diskMib`.',
  ),

  // Environments
  environment_not_found: row(
    404,
    'There is no environment with this name.',
    '`dsec env ls` lists them; `dsec env build FILE` makes one.',
  ),
  environment_in_use: row(409, 'Live sandboxes stand on this environment.', 'Stop them first.'),
  environment_broken: row(
    500,
    'A layer of the environment is missing on the node or is not a valid EROFS image.',
    'Build the environment again, or name the blob store that has it: `dsec up --blob`.',
    { infrastructure: true },
  ),
  layer_in_use: row(409, 'A live sandbox stands on this layer.', 'Stop it first.'),
  recipe_invalid: row(400, 'The recipe is not valid: `details.field`.', 'Correct the recipe.'),
  dockerfile_invalid: row(
    400,
    'The Dockerfile is not valid, or asks for what is not supported: `details.line`, `details.instruction`, `details.reason`.',
    'Correct the line.',
  ),
  build_failed: row(
    422,
    'A step of the environment build failed; its last output is in `details.output`.',
    'Correct the recipe, the package names, or the step of the Dockerfile (`details.line`).',
  ),
  image_not_found: row(
    404,
    'The registry has no such image, or does not show it to this account: `details.image`.',
    'Check the name and tag, and log in if it is private.',
  ),
  registry_unauthenticated: row(
    401,
    'The registry refused the account, or wants one: `details.registry`.',
    'Log in to the registry (an auth file as `docker login` writes it).',
  ),
  registry_rate_limited: row(
    429,
    'The registry answers no more requests of this account or address for now: `details.registry`, `details.retryAfterMs`.',
    'Try again later, log in, or use a mirror.',
    { retryable: true },
  ),
  registry_unavailable: row(
    502,
    'The registry does not answer, or only with errors: `details.registry`.',
    'Try again; use a mirror.',
    { retryable: true, infrastructure: true },
  ),
  layer_not_found: row(404, 'The blob store has no such layer: `details.layer`.', 'Build or push it again.'),
  layer_corrupt: row(
    502,
    'What the blob store or the disk holds is not what the layer is made of: `details.layer`, `details.digest`.',
    'Repair the store, or build the layer again.',
    { infrastructure: true },
  ),
  blob_unavailable: row(503, 'The blob store does not answer: `details.store`.', 'Try again; check the store.', {
    retryable: true,
    infrastructure: true,
  }),
  blob_full: row(507, 'The blob store takes no more: `details.store`.', 'Free space, or collect what is not used.', {
    infrastructure: true,
  }),
  image_corrupt: row(
    422,
    'The image archive is damaged: `details.layer` and `details.offset` say where.',
    'Fetch or save the image again.',
  ),
  image_unsupported: row(
    422,
    'The image uses a form that is not supported: `details.reason`.',
    'Save it as an OCI layout or with `docker save`.',
  ),
  pack_refused: row(
    422,
    'What a sandbox has written breaks a packing rule: `details.rules`, `details.paths`.',
    'Remove it, leave it out, or allow the rule to be broken; a dry run lists all.',
  ),
  image_architecture: row(
    422,
    'The image was made for another processor: `details.found`, `details.wanted`.',
    'Use an image for this architecture.',
  ),

  // Commands
  exec_not_found: row(
    404,
    'There is no such exec in the sandbox, or it ended so long ago that its record is gone.',
    'List the execs of the sandbox.',
  ),
  session_not_found: row(
    404,
    'There is no such session in the sandbox, or its shell has ended.',
    'Open a new session.',
  ),
  session_lost: row(409, 'The shell of the session ended while the command ran.', 'Open a new session.'),
  command_not_found: row(
    422,
    'The program to run does not exist: `details.program`. A shell reports this as exit code 127.',
    'Correct the name, or install the program in the environment.',
  ),
  command_not_executable: row(
    422,
    'The program to run may not be executed: `details.program`. A shell reports this as exit code 126.',
    'Set its x bit, or run it through its interpreter.',
  ),
  cwd_not_found: row(
    422,
    'The working directory does not exist or is no directory: `details.cwd`.',
    'Make it first, or correct `cwd`.',
  ),
  user_not_found: row(
    422,
    'The user or group does not exist in the sandbox: `details.user`.',
    'Use a name of its /etc/passwd, or a number.',
  ),
  shell_not_found: row(422, 'The environment has neither /bin/bash nor /bin/sh.', 'Run the program by its argv.'),
  argv_too_long: row(
    422,
    'Arguments and environment together, or one of them, exceed what the kernel takes (execve: E2BIG).',
    'Pass the data by a file or by stdin.',
  ),
  pids_exhausted: row(
    507,
    'The sandbox has as many processes as it may have.',
    'End some processes, or ask for more with `pids`.',
  ),
  stdin_closed: row(
    409,
    'The stdin of the command is closed or was not asked for.',
    'Start the command with `stdin: "open"`.',
  ),

  // Files
  file_not_found: row(404, 'There is no such file or directory: `details.path`.', 'Correct the path.'),
  file_exists: row(409, 'Something is already there: `details.path`.', 'Remove it, or allow overwriting.'),
  file_permission: row(
    403,
    'The user may not do this to the file: `details.path`.',
    'Use another user, or change the mode.',
  ),
  is_directory: row(400, 'A file was wanted and this is a directory: `details.path`.', 'Name a file, or use list.'),
  not_directory: row(400, 'A directory was wanted and this is none: `details.path`.', 'Name a directory.'),
  directory_not_empty: row(409, 'The directory is not empty: `details.path`.', 'Set `recursive`.'),
  not_regular_file: row(
    400,
    'Only regular files can be read and written: `details.path`.',
    'Read devices and pipes by a command.',
  ),
  file_error: row(
    422,
    'The kernel refused the file operation: `details.errno`.',
    'See `details.errno` and `details.path`.',
  ),
  archive_unsafe: row(
    422,
    'The archive has an entry that leaves its directory, or is a device: `details.entry`.',
    'Make the archive without it.',
  ),
  archive_invalid: row(422, 'The archive is damaged or of an unknown form: `details.offset`.', 'Make it again.'),

  // Ports
  port_closed: row(
    502,
    'Nothing listens on this port of the sandbox.',
    'Start the service, and wait until it listens.',
    { retryable: true },
  ),

  port_not_http: row(
    502,
    'The service on this port of the sandbox did not answer with well-formed HTTP.',
    'Correct the service, or reach it by a command.',
  ),

  // Keys and installation
  key_not_found: row(404, 'There is no such key.', '`dsec key ls` lists them.'),
  server_unreachable: row(
    503,
    'The server does not answer at its address.',
    'Start it with `dsec up`, or correct the endpoint.',
    { retryable: true, infrastructure: true },
  ),
  already_running: row(409, 'A server already runs on this data directory.', 'Use it, or stop it with `dsec down`.'),
  host_unsuitable: row(500, 'The host lacks something that dsec needs: `details.missing`.', 'See `dsec doctor`.'),
  config_invalid: row(400, 'The configuration is not valid: `details.field`.', 'Correct it.'),

  // Between processes, time and the unforeseen
  cancelled: row(499, 'The caller cancelled the operation.', 'Nothing.'),
  timeout: row(
    504,
    'The operation did not end in the time that the caller gave it.',
    'Give it more time; what was started may go on.',
  ),
  connection_lost: row(
    503,
    'The connection to the other process broke. The operation may have happened.',
    'Ask again; with an idempotency key it is safe.',
    { retryable: true, infrastructure: true },
  ),
  unavailable: row(503, 'A part of the platform is starting or restarting.', 'Try again shortly.', {
    retryable: true,
    infrastructure: true,
  }),
  protocol_error: row(
    502,
    'The other process sent something that is not in the protocol.',
    'Bring all parts to the same version.',
    { infrastructure: true },
  ),
  internal: row(500, 'A fault of the platform.', 'Report it with the request id.', { infrastructure: true }),
} as const satisfies Record<string, ErrorRow>;

export type ErrorCode = keyof typeof errorTable;

export const isErrorCode = (code: string): code is ErrorCode => Object.hasOwn(errorTable, code);

/** Public facts about an error: small, JSON, never a secret or a host path. */
export type ErrorDetails = Readonly<Record<string, string | number | boolean | readonly string[] | null>>;

const brand = Symbol.for('dsec.PlatformError');

/**
 * The one error class of dsec. `message` says what failed with which object and never repeats the cause's text; `details` is public,
 * `cause` stays in the process (a logger writes the chain).
 */
export class PlatformError extends Error {
  readonly code: ErrorCode;
  readonly details: ErrorDetails;
  readonly [brand] = true;

  constructor(
    code: ErrorCode,
    message: string,
    options: { readonly details?: ErrorDetails; readonly cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'PlatformError';
    this.code = code;
    this.details = options.details ?? {};
  }

  get status(): number {
    return errorTable[this.code].status;
  }

  get retryable(): boolean {
    return errorTable[this.code].retryable;
  }

  /** True when the platform, not the caller or the command, is at fault: such a failure must not be scored as a wrong answer. */
  get infrastructure(): boolean {
    // A sandbox that failed by its own doing says so. Details only ever take the blame off the platform: they may come from inside.
    return errorTable[this.code].infrastructure && this.details['infrastructure'] !== false;
  }

  get fix(): string {
    return errorTable[this.code].fix;
  }

  /** `instanceof` that survives two copies of this package in one process. */
  static is(value: unknown): value is PlatformError {
    return typeof value === 'object' && value !== null && brand in value;
  }

  /** What goes over a wire. */
  toWire(): WireError {
    return { code: this.code, message: this.message, details: this.details };
  }

  static fromWire(wire: WireError): PlatformError {
    const code = isErrorCode(wire.code) ? wire.code : 'internal';
    return new PlatformError(code, wire.message, {
      details: code === wire.code ? wire.details : { ...wire.details, code: wire.code },
    });
  }
}

/** The error object of the wire protocol and, with `retryable` and `fix` added, of the HTTP API. */
export interface WireError {
  readonly code: string;
  readonly message: string;
  readonly details: ErrorDetails;
}
