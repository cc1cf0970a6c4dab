/**
 * A proxy of Go modules with pinned versions (https://go.dev/ref/mod#goproxy-protocol). The time of a version is that of its `.info`; a branch name is
 * the version that the upstream makes of it. `@latest` is worked out here, from what is left.
 */
import { Semaphore } from '@dsec/kit';
import { GO_LOOKUPS, MAX_GO_VERSIONS, MAX_KNOWN_TIMES } from './bounds.ts';
import { forward, HIDDEN, refuse, type Handling, type ServiceProtocol, type ServiceRequest } from './protocol.ts';
import type { UpstreamClient } from './upstream-client.ts';
import { compareVersions } from './version-order.ts';
import { momentOf, type VersionPins } from './version-pins.ts';

interface Info {
  readonly version: string;
  readonly publishedMs: number | undefined;
  readonly text: string;
}

const SUFFIX = /^(.+)\.(info|mod|zip)$/;
const CANONICAL = /^v[0-9]+\.[0-9]+\.[0-9]+(?:[-+].*)?$/;

export class GoProxy implements ServiceProtocol {
  readonly #upstream: UpstreamClient;
  readonly #pins: VersionPins;
  /** `module@version` → when; only of canonical versions, which never change. */
  readonly #times = new Map<string, number | undefined>();
  readonly #lookups = new Semaphore({ permits: GO_LOOKUPS, maxWaiting: 64 * MAX_GO_VERSIONS });

  constructor(upstream: UpstreamClient, pins: VersionPins) {
    this.#upstream = upstream;
    this.#pins = pins;
  }

  async handle(request: ServiceRequest): Promise<Handling> {
    const { path, decoded, query } = request.target;
    if (request.method !== 'GET' && request.method !== 'HEAD') return refuse(405, 'a proxy of modules is read only');
    // Sums of what was downloaded; they open nothing.
    if (decoded.startsWith('/sumdb/')) return forward(request.target);
    // Escapes have no place in these paths, capitals are written as `!a`; nor has a query.
    if (path !== decoded || query !== '') return refuse(404, 'there is no such module');
    const latest = /^\/(.+)\/@latest$/.exec(path)?.[1];
    if (latest !== undefined) return await this.#latest(latest, request.signal);
    const [, module, file] = /^\/(.+)\/@v\/([^/]+)$/.exec(path) ?? [];
    if (module === undefined || file === undefined) return refuse(404, 'there is no such module');
    if (file === 'list') return await this.#list(module, request.signal);
    return await this.#file(module, file, request);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#upstream[Symbol.asyncDispose]();
  }

  async #file(module: string, file: string, { target, signal }: ServiceRequest): Promise<Handling> {
    const [, escaped, suffix] = SUFFIX.exec(file) ?? [];
    if (escaped === undefined) return refuse(404, 'there is no such file of a module');
    if (suffix !== 'info') {
      // Only a name that always means the same may be looked up first and fetched afterwards.
      if (!CANONICAL.test(escaped)) return refuse(404, 'a file needs a canonical version');
      return (await this.#isVisible(module, escaped, signal)) ? forward(target) : refuse(403, HIDDEN);
    }
    const info = await this.#info(module, escaped, signal);
    if (info === undefined) return refuse(404, 'there is no such version');
    if (!this.#allows(module, info)) return refuse(403, HIDDEN);
    return json(info.text);
  }

  async #list(module: string, signal: AbortSignal): Promise<Handling> {
    const versions = await this.#visible(module, signal);
    if (versions === undefined) return refuse(404, 'there is no such module');
    return {
      kind: 'document',
      status: 200,
      type: 'text/plain; charset=utf-8',
      text: versions.map((version) => `${version}\n`).join(''),
    };
  }

  async #latest(module: string, signal: AbortSignal): Promise<Handling> {
    const versions = (await this.#visible(module, signal)) ?? [];
    const releases = versions.filter((version) => !version.includes('-'));
    const newest = (releases.length > 0 ? releases : versions).toSorted(compareVersions).at(-1);
    if (newest !== undefined) {
      const info = await this.#info(module, newest, signal);
      if (info !== undefined && this.#allows(module, info)) return json(info.text);
    }
    // A module without tagged versions has one of its last commit.
    const answer = await this.#upstream.read(`/${module}/@latest`, '*/*', signal);
    const info = answer.status === 200 ? parseInfo(answer.text) : undefined;
    return info !== undefined && versions.length === 0 && this.#allows(module, info)
      ? json(info.text)
      : refuse(404, 'no version of this module is available here');
  }

  /** Undefined without such a module. */
  async #visible(module: string, signal: AbortSignal): Promise<readonly string[] | undefined> {
    const list = await this.#upstream.read(`/${module}/@v/list`, '*/*', signal);
    if (list.status !== 200) return undefined;
    const versions = list.text.split('\n').flatMap((line) => {
      // Some proxies write the time behind it.
      const [version = ''] = line.trim().split(/\s+/);
      return CANONICAL.test(version) ? [version] : [];
    });
    // The newest, when there are more than can be looked up.
    const some = versions.toSorted(compareVersions).slice(-MAX_GO_VERSIONS);
    const visible = await Promise.all(some.map((version) => this.#isVisible(module, version, signal)));
    return some.filter((_version, index) => visible[index] === true);
  }

  async #isVisible(module: string, version: string, signal: AbortSignal): Promise<boolean> {
    const name = unescape(module);
    if (!this.#pins.isListed(name, version)) return false;
    if (!this.#pins.needsTimes) return true;
    const key = `${module}@${version}`;
    if (!this.#times.has(key)) {
      const info = await this.#info(module, version, signal);
      if (info !== undefined && info.version !== version) return false;
      this.#times.set(key, info?.publishedMs);
      const [oldest] = this.#times.keys();
      if (this.#times.size > MAX_KNOWN_TIMES && oldest !== undefined) this.#times.delete(oldest);
    }
    return this.#pins.allows({ name, version, publishedMs: this.#times.get(key) });
  }

  async #info(module: string, version: string, signal: AbortSignal): Promise<Info | undefined> {
    const path = `/${module}/@v/${version}.info`;
    const answer = await this.#lookups.run(() => this.#upstream.read(path, '*/*', signal), signal);
    return answer.status === 200 ? parseInfo(answer.text) : undefined;
  }

  #allows(module: string, { version, publishedMs }: Info): boolean {
    return this.#pins.allows({ name: unescape(module), version, publishedMs });
  }
}

/** Capitals are written as `!a` in paths. */
const unescape = (module: string): string =>
  module.replaceAll(/!([a-z])/g, (_match, letter: string) => letter.toUpperCase());

const json = (text: string): Handling => ({ kind: 'document', status: 200, type: 'application/json', text });

/** Only what is known is handed on. */
function parseInfo(text: string): Info | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (typeof value !== 'object' || value === null || !('Version' in value) || typeof value.Version !== 'string')
    return undefined;
  const time = 'Time' in value ? value.Time : undefined;
  const publishedMs = momentOf(time);
  return {
    version: value.Version,
    publishedMs,
    text: JSON.stringify({ Version: value.Version, ...(publishedMs === undefined ? {} : { Time: time }) }),
  };
}
