/**
 * An npm registry, read only. The document of a package shows the versions that are allowed, with tarballs that are served here, and `latest` is the newest
 * of them; only such tarballs are handed out.
 */
import { MAX_KNOWN_TIMES } from './bounds.ts';
import { forward, HIDDEN, refuse, type Handling, type ServiceProtocol, type ServiceRequest } from './protocol.ts';
import { parseTarget } from './request-target.ts';
import type { UpstreamClient } from './upstream-client.ts';
import { compareVersions } from './version-order.ts';
import { momentOf, type VersionPins } from './version-pins.ts';

export interface NpmOptions {
  readonly upstream: UpstreamClient;
  /** Absent: every version exists. */
  readonly pins: VersionPins | undefined;
}

const PACKAGE = '(?:@[^/@]+/)?[^/@_.-][^/]*';
const DOCUMENT = new RegExp(`^/(${PACKAGE})$`);
const MANIFEST = new RegExp(`^/(${PACKAGE})/([^/-][^/]*)$`);
const TARBALL = new RegExp(`^/(${PACKAGE})/-/[^/]+\\.tgz$`);

type Members = Readonly<Record<string, unknown>>;

interface PackageDocument {
  readonly tags: Readonly<Record<string, string>>;
  readonly versions: Readonly<Record<string, Members>>;
  readonly text: string;
}

export class Npm implements ServiceProtocol {
  readonly #options: NpmOptions;
  /** Paths of tarballs that a document has shown. */
  readonly #shown = new Set<string>();

  constructor(options: NpmOptions) {
    this.#options = options;
  }

  async handle(request: ServiceRequest): Promise<Handling> {
    const { method, target } = request;
    if (method !== 'GET' && method !== 'HEAD') return refuse(405, 'the registry is read only');
    const tarball = TARBALL.exec(target.decoded)?.[1];
    if (tarball !== undefined) return await this.#tarball(tarball, request);
    const name = DOCUMENT.exec(target.decoded)?.[1];
    if (name !== undefined) {
      const document = await this.#document(name, request);
      return document === undefined ? refuse(404, 'there is no such package') : json(document.text);
    }
    const [, of, version] = MANIFEST.exec(target.decoded) ?? [];
    if (of === undefined || version === undefined) return refuse(404, 'the registry serves packages alone');
    const document = await this.#document(of, request);
    const manifest = document?.versions[document.tags[version] ?? version];
    return manifest === undefined ? refuse(404, 'there is no such version') : json(JSON.stringify(manifest));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#options.upstream[Symbol.asyncDispose]();
  }

  async #tarball(name: string, request: ServiceRequest): Promise<Handling> {
    if (this.#options.pins === undefined) return forward(request.target);
    // With its query: what the upstream makes of another one is not known.
    const place = `${request.target.decoded}${request.target.query}`;
    if (!this.#shown.has(place)) await this.#document(name, request);
    return this.#shown.has(place) ? forward(request.target) : refuse(403, HIDDEN);
  }

  /** What of a package exists here; undefined when there is no such package. */
  async #document(name: string, { origin, signal }: ServiceRequest): Promise<PackageDocument | undefined> {
    const { upstream, pins } = this.#options;
    // The short form of a document does not tell when versions came.
    const answer = await upstream.read(`/${name.replace('/', '%2f')}`, 'application/json', signal);
    const value = answer.status === 200 ? parseObject(answer.text) : undefined;
    if (value === undefined || !isMembers(value.versions)) return undefined;
    const times = isMembers(value.time) ? value.time : {};
    const versions: Record<string, Members> = {};
    for (const [version, manifest] of Object.entries(value.versions)) {
      const publishedMs = momentOf(times[version]);
      if (pins?.allows({ name, version, publishedMs }) === false || !isMembers(manifest)) continue;
      const placed = this.#placed(manifest, origin);
      if (placed !== undefined) versions[version] = placed;
    }
    const tags = tagsOf(value['dist-tags'], Object.keys(versions));
    const time = Object.fromEntries(
      Object.keys(versions).flatMap((version) => (times[version] === undefined ? [] : [[version, times[version]]])),
    );
    return { tags, versions, text: JSON.stringify({ name, 'dist-tags': tags, versions, time }) };
  }

  /** With its tarball where it is served here; undefined when it is on another server. */
  #placed(manifest: Members, origin: string): Members | undefined {
    const { dist } = manifest;
    if (!isMembers(dist) || typeof dist.tarball !== 'string' || !URL.canParse(dist.tarball)) return undefined;
    const url = new URL(dist.tarball);
    const target = this.#options.upstream.targetOf(url);
    const place = target === undefined ? undefined : parseTarget(target);
    if (target === undefined || place === undefined) return undefined;
    this.#shown.add(`${place.decoded}${place.query}`);
    const [oldest] = this.#shown;
    if (this.#shown.size > MAX_KNOWN_TIMES && oldest !== undefined) this.#shown.delete(oldest);
    return { ...manifest, dist: { ...dist, tarball: `${origin}${target}` } };
  }
}

/** Tags of what exists here; `latest` always names something when anything does. */
function tagsOf(given: unknown, versions: readonly string[]): Readonly<Record<string, string>> {
  const known = new Set(versions);
  const tags: Record<string, string> = {};
  for (const [tag, version] of Object.entries(isMembers(given) ? given : {})) {
    if (typeof version === 'string' && known.has(version)) tags[tag] = version;
  }
  const releases = versions.filter((version) => !version.includes('-'));
  const newest = (releases.length > 0 ? releases : versions).toSorted(compareVersions).at(-1);
  if (newest !== undefined) tags.latest ??= newest;
  return tags;
}

const json = (text: string): Handling => ({ kind: 'document', status: 200, type: 'application/json', text });

const isMembers = (value: unknown): value is Members =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function parseObject(text: string): Members | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isMembers(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
