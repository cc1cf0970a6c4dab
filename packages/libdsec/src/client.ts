import { PlatformError, type AuditNote, type BehaviourEvent, type SandboxInfo } from '@dsec/contract';
import { platform } from '#platform';
import { Type } from 'typebox';
import { listAudit, type AuditFilter, type AuditList } from './audit-list.ts';
import { behaviourEvents, type EventsOptions } from './behaviour-events.ts';
import { bulkOutcomes, type BulkOutcome } from './bulk.ts';
import { createRequest, type ContainerRunArgs } from './container-args.ts';
import { Environments } from './environments.ts';
import { Api, idSegment } from './http/api.ts';
import type { CallOptions } from './http/deadline.ts';
import { fetchTransport, type Fetch } from './http/fetch-transport.ts';
import { defaultRetry, type RetryOptions } from './http/retry.ts';
import { parserOf } from './http/schema.ts';
import { Keys } from './keys.ts';
import type { Platform } from './platform/platform.ts';
import { systemTiming, type Timing } from './platform/timing.ts';
import { parseSandbox } from './sandbox-answers.ts';
import { listSandboxes, type SandboxFilter, type SandboxList } from './sandbox-list.ts';
import { Sandbox } from './sandbox.ts';

/** Where `dsec up` listens unless it is told otherwise. */
export const DEFAULT_ENDPOINT = 'http://127.0.0.1:7080';
/** Making a sandbox may wait for an environment to become ready on the node. */
const CREATE_TIMEOUT_MS = 120_000;

const parseHealth = parserOf(Type.Object({ version: Type.Optional(Type.String()) }), 'answer about health');

export interface ClientOptions {
  /** Address of the server. @default the environment variable DSEC_ENDPOINT (Node), else http://127.0.0.1:7080 */
  readonly endpoint?: string;
  /**
   * The unix socket of the same server, for a client on its machine: quicker than TCP. Links and ports still name the endpoint. Node only, and without
   * `fetch`. @default without an `endpoint` the environment variable DSEC_SOCKET, else TCP
   */
  readonly socketPath?: string;
  /** An API key. @default the environment variable DSEC_API_KEY (Node) */
  readonly apiKey?: string;
  /** How long calls that are safe to repeat are repeated. */
  readonly retry?: RetryOptions;
  /** Carries the requests instead of the SDK's own HTTP. @default `node:http` with kept connections; `fetch` in browsers */
  readonly fetch?: Fetch;
  /** @internal Time and chance, for simulations. */
  readonly timing?: Timing;
}

/** What a create takes besides its arguments. */
export interface RunOptions extends CallOptions {
  /** The same key for the same arguments makes one sandbox, however often it is asked. @default a fresh one */
  readonly idempotencyKey?: string;
}

/** Which sandboxes to stop: these, or all whose metadata has these entries. */
export type StopFilter =
  | { readonly sandboxIds: readonly string[] }
  | { readonly metadata: Readonly<Record<string, string>> };

/**
 * A server of dsec.
 *
 * Every failure is a `PlatformError` with a code of the error table; `retryable` says whether the same call may work later,
 * `infrastructure` whether the platform was at fault (then the attempt must not be scored). Besides those that a method names,
 * every call may throw `unauthenticated`, `permission_denied`, `invalid_argument`, `server_unreachable`, `connection_lost`,
 * `unavailable`, `too_many_requests`, `timeout`, `cancelled`, `protocol_error` and `internal`.
 *
 * Calls that are safe to repeat are repeated for `retry.budgetMs` when the connection breaks or the server restarts.
 *
 * @example
 * ```ts
 * const client = new DSecClient();
 * await client.open();
 * const sandbox = await client.runContainer({ containerImage: 'debian', memoryLimitMb: 512, cpuCoresLimit: 1, ttlRunningStop: 300 }, { timeoutMs: 120_000 });
 * const result = await sandbox.runShell('echo hello world');
 * console.log(result.stdout); // hello world
 * await sandbox.stop();
 * await client.close();
 * ```
 */
export class DSecClient implements AsyncDisposable {
  readonly environments: Environments;
  readonly keys: Keys;
  readonly #api: Api;
  readonly #platform: Platform;

  /** @throws PlatformError `config_invalid` for an endpoint that is no URL; `unauthenticated` without a key */
  constructor(options: ClientOptions = {}) {
    const apiKey = options.apiKey ?? platform.variable('DSEC_API_KEY') ?? '';
    if (!/^[\x21-\x7e]+$/.test(apiKey)) {
      throw new PlatformError(
        'unauthenticated',
        apiKey === '' ? 'no API key was given' : 'the API key has characters that no key has',
      );
    }
    const { fetch, timing = systemTiming } = options;
    const endpoint = endpointOf(options.endpoint ?? platform.variable('DSEC_ENDPOINT') ?? DEFAULT_ENDPOINT);
    // The variable belongs to the server that the variables name.
    const socketPath =
      options.socketPath ?? (options.endpoint === undefined ? platform.variable('DSEC_SOCKET') : undefined);
    const local = socketPath === undefined || socketPath === '' ? undefined : { endpoint, socketPath };
    this.#platform = fetch === undefined ? platform : { ...platform, fetch };
    this.#api = new Api({
      endpoint,
      apiKey,
      transport: fetch === undefined ? platform.transport(timing, local) : fetchTransport(fetch),
      timing,
      retry: { ...defaultRetry, ...options.retry },
    });
    this.environments = new Environments(this.#api);
    this.keys = new Keys(this.#api);
  }

  /**
   * Looks whether the server answers and knows the key, so that a wrong address or key shows at once. Not needed for other calls.
   * @throws PlatformError `server_unreachable`, `unauthenticated`
   */
  async open(options: CallOptions = {}): Promise<this> {
    await this.#api.json(
      { method: 'GET', path: '/health', what: 'asking for the health of the server', repeatable: 'always' },
      parseHealth,
      options,
    );
    const page = listSandboxes(this.#api, { ...options, pageSize: 1 }).pages();
    await page.next();
    await page.return();
    return this;
  }

  /**
   * Makes a container sandbox. Resolves when its first command would run at once.
   * @throws PlatformError `environment_not_found`, `no_capacity`, `quota_exceeded`, `network_unavailable`, `service_unknown`, `create_failed`,
   * `idempotency_conflict`; `timeoutMs` is 120,000 unless given
   */
  async runContainer(args: ContainerRunArgs, options: RunOptions = {}): Promise<Sandbox> {
    const { idempotencyKey, ...call } = options;
    const info = await this.#api.json(
      {
        method: 'POST',
        path: '/sandboxes',
        what: `making a sandbox of environment ${args.containerImage}`,
        headers: { 'idempotency-key': idempotencyKey ?? this.#api.timing.uniqueKey() },
        json: createRequest(args),
        repeatable: 'always',
      },
      parseSandbox,
      call,
      CREATE_TIMEOUT_MS,
    );
    return this.#sandbox(info);
  }

  /**
   * Makes `count` like sandboxes (up to 4,096) with one request. Each comes as it becomes ready, or with the error that it met;
   * one that fails stops none of the others.
   *
   * @example
   * ```ts
   * for await (const outcome of client.runContainers({ containerImage: 'debian', metadata: { job: '7' } }, { count: 4 })) {
   *   if ('error' in outcome) console.error(outcome.index, outcome.error.code);
   *   else console.log(outcome.index, (await outcome.sandbox.exec(['hostname'])).stdout);
   * }
   * await client.stopSandboxes({ metadata: { job: '7' } });
   * ```
   */
  async *runContainers(
    args: ContainerRunArgs,
    options: RunOptions & { readonly count: number },
  ): AsyncGenerator<BulkOutcome<Sandbox>, void, undefined> {
    const { idempotencyKey, count, ...call } = options;
    const request = {
      method: 'POST',
      path: '/sandboxes/bulk',
      what: `making ${count} sandboxes of environment ${args.containerImage}`,
      headers: { 'idempotency-key': idempotencyKey ?? this.#api.timing.uniqueKey() },
      json: { count, template: createRequest(args) },
      repeatable: 'always',
    } as const;
    for await (const outcome of bulkOutcomes(this.#api, request, call, count)) {
      yield 'error' in outcome ? outcome : { index: outcome.index, sandbox: this.#sandbox(outcome.sandbox) };
    }
  }

  /** A sandbox that runs already, also of another process. @throws PlatformError `invalid_id`, `sandbox_not_found` */
  async getSandbox(sandboxId: string, options: CallOptions = {}): Promise<Sandbox> {
    const path = `/sandboxes/${idSegment(sandboxId, 'sandboxId')}`;
    return this.#sandbox(
      await this.#api.json(
        { method: 'GET', path, what: `asking for sandbox ${sandboxId}`, repeatable: 'always' },
        parseSandbox,
        options,
      ),
    );
  }

  /** The sandboxes of the project. */
  sandboxes(filter: SandboxFilter = {}): SandboxList {
    return listSandboxes(this.#api, filter);
  }

  /** Stops many with one request. Resolves when nothing of them is left, to what became of each. */
  async stopSandboxes(which: StopFilter, options: CallOptions = {}): Promise<readonly BulkOutcome<SandboxInfo>[]> {
    const outcomes: BulkOutcome<SandboxInfo>[] = [];
    const json = 'sandboxIds' in which ? { sandboxIds: [...which.sandboxIds] } : { metadata: { ...which.metadata } };
    const request = {
      method: 'POST',
      path: '/sandboxes/stop',
      what: 'stopping sandboxes',
      json,
      repeatable: 'always',
    } as const;
    const expected = 'sandboxIds' in which ? new Set(which.sandboxIds).size : undefined;
    for await (const outcome of bulkOutcomes(this.#api, request, options, expected)) outcomes.push(outcome);
    return outcomes;
  }

  /**
   * Who did what, the newest first: every operation that an API key, a signed link or a port token let in, and who was refused. Nothing is asked before it is
   * iterated over. Only the admin key may.
   */
  audit(filter: AuditFilter = {}): AuditList {
    return listAudit(this.#api, filter);
  }

  /** @internal Has a verb of the CLI, which works on the machine of the server by itself, written to the audit log. */
  async noteOperation(note: AuditNote, options: CallOptions = {}): Promise<void> {
    const what = `writing ${note.verb} to the audit log`;
    await this.#api.done({ method: 'POST', path: '/audit', what, json: note, repeatable: 'unsent' }, options);
  }

  /**
   * What programs of the project's sandboxes tried that was denied, and which tripwires they touched, with the command that caused it: what the server keeps,
   * then as it happens, until the loop is left. A connection that breaks is made again, and nothing is told twice.
   *
   * @example
   * ```ts
   * const policy = { tripwires: ['/etc/shadow'] };
   * await using guarded = await client.runContainer({ containerImage: 'debian', memoryLimitMb: 128, policy });
   * await guarded.runShell('wc -c < /etc/shadow');
   * for await (const event of client.events({ sandboxId: guarded.sandboxId, kinds: ['tripwire'] })) {
   *   console.log(event.what, 'by', event.command?.join(' ')); // /etc/shadow by wc -c < /etc/shadow
   *   break;
   * }
   * ```
   */
  events(options: EventsOptions = {}): AsyncGenerator<BehaviourEvent, void, undefined> {
    return behaviourEvents(this.#api, options);
  }

  /** Closes idle connections. Sandboxes go on. */
  async close(): Promise<void> {
    await this.#api.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #sandbox(info: SandboxInfo): Sandbox {
    return new Sandbox(this.#api, info, this.#platform);
  }
}

function endpointOf(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || (url.protocol !== 'http:' && url.protocol !== 'https:')) {
    throw new PlatformError('config_invalid', `the endpoint ${text} is no http or https URL`, {
      details: { field: 'endpoint' },
    });
  }
  return url.href.replace(/\/+$/, '');
}
