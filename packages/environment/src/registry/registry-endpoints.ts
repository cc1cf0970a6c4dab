import { PlatformError } from '@dsec/contract';
import type { Clock, Random } from '@dsec/kit';
import { AuthFile } from './auth-file.ts';
import { DOCKER_HUB, type ImageReference, isLoopback, parseRegistry } from './reference.ts';
import { RegistryClient } from './registry-client.ts';
import { isOfOneRegistry } from './registry-failure.ts';

/** How registries are reached. */
export interface RegistryAccess {
  /** Accounts. @default none */
  readonly auth?: AuthFile;
  /** For a registry, what has its images too: `host[:port][/path]`, asked in this order before itself. */
  readonly mirrors?: Readonly<Record<string, readonly string[]>>;
  /** Registries, as `host[:port]`, to which plain HTTP is spoken. This machine's own always are. */
  readonly insecure?: readonly string[];
  /** @default that of Node */
  readonly fetch?: typeof globalThis.fetch;
  /** Longest wait for the head of an answer. @default 30,000 */
  readonly answerTimeoutMs?: number;
  /** Longest wait for the next bytes. @default 60,000 */
  readonly silenceTimeoutMs?: number;
  /** Most attempts in a row of one request. @default 6 */
  readonly attempts?: number;
}

/** Where the API of the Docker Hub is. */
const HUB_API_HOST = 'registry-1.docker.io';
const DEFAULT_ATTEMPTS = 6;
/** A mirror that fails has a registry behind it that need not be kept waiting. */
const MIRROR_ATTEMPTS = 2;

export interface EndpointContext {
  readonly clock: Clock;
  readonly random: Random;
}

/** The registry of an image and its mirrors, one standing in for the other. */
export class RegistryEndpoints {
  readonly #clients: readonly RegistryClient[];
  /** Of the one that had the image: those before it have not. */
  #first = 0;

  private constructor(clients: readonly RegistryClient[]) {
    this.#clients = clients;
  }

  /** @throws PlatformError `invalid_argument` for a malformed mirror, `config_invalid` for an account that cannot be had */
  static forPull(reference: ImageReference, access: RegistryAccess, context: EndpointContext): RegistryEndpoints {
    const mirrors = (access.mirrors?.[reference.registry] ?? []).map((text) => mirrorOf(text, reference.repository));
    const places = [...mirrors, reference];
    return new RegistryEndpoints(
      places.map((place, index) => {
        const isMirror = index < mirrors.length;
        const attempts = Math.min(access.attempts ?? DEFAULT_ATTEMPTS, isMirror ? MIRROR_ATTEMPTS : Infinity);
        return clientOf(place, { access, context, attempts, actions: 'pull' });
      }),
    );
  }

  /** Those that may have the image, best first. */
  get clients(): readonly RegistryClient[] {
    return this.#clients.slice(this.#first);
  }

  /** Asks one after the other; the error of the last, the registry itself, is what counts. */
  async any<T>(ask: (client: RegistryClient) => Promise<T>): Promise<T> {
    for (let index = this.#first; ; index++) {
      const client = this.#clients[index];
      if (client === undefined) throw new PlatformError('internal', 'There is no registry to ask');
      try {
        const answer = await ask(client);
        this.#first = index;
        return answer;
      } catch (error) {
        if (index === this.#clients.length - 1 || !isOfOneRegistry(error)) throw error;
      }
    }
  }
}

/** The registry of an image that is to be pushed: never a mirror. */
export const pushClient = (
  reference: ImageReference,
  access: RegistryAccess,
  context: EndpointContext,
): RegistryClient =>
  clientOf(reference, { access, context, attempts: access.attempts ?? DEFAULT_ATTEMPTS, actions: 'pull,push' });

interface Place {
  readonly registry: string;
  readonly repository: string;
}

const clientOf = (
  { registry, repository }: Place,
  options: {
    readonly access: RegistryAccess;
    readonly context: EndpointContext;
    readonly attempts: number;
    readonly actions: 'pull' | 'pull,push';
  },
): RegistryClient => {
  const { access, context, attempts, actions } = options;
  const { auth = AuthFile.none, fetch = globalThis.fetch, answerTimeoutMs, silenceTimeoutMs } = access;
  const isPlainAllowed = (at: URL): boolean =>
    isLoopback(at.hostname) || (access.insecure ?? []).some((each) => each.toLowerCase() === at.host);
  const host = registry === DOCKER_HUB ? HUB_API_HOST : registry;
  const plain = new URL(`http://${host}`);
  return new RegistryClient({
    registry,
    url: isPlainAllowed(plain) ? plain : new URL(`https://${host}`),
    repository,
    actions,
    attempts,
    account: auth.account(registry),
    random: context.random,
    http: {
      clock: context.clock,
      fetch,
      isPlainAllowed,
      ...(answerTimeoutMs === undefined ? {} : { answerTimeoutMs }),
      ...(silenceTimeoutMs === undefined ? {} : { silenceTimeoutMs }),
    },
  });
};

const mirrorOf = (text: string, repository: string): Place => {
  const [host = '', ...path] = text.split('/');
  const registry = parseRegistry(host);
  if (registry === undefined || path.some((part) => !/^[a-z0-9][a-z0-9._-]{0,127}$/.test(part))) {
    throw new PlatformError('invalid_argument', 'A mirror is a host, perhaps with a port and a path', {
      details: { field: 'mirrors' },
    });
  }
  return { registry, repository: [...path, repository].join('/') };
};
