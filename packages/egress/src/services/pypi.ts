/**
 * A simple package index, for pip and uv. The page of a project shows the files whose versions are allowed, and only such files are handed out: who
 * guesses the URL of another one gets nothing. Pages are asked for as JSON, which alone tells when a file came.
 */
import { MAX_KNOWN_TIMES } from './bounds.ts';
import { forward, HIDDEN, refuse, type Handling, type ServiceProtocol, type ServiceRequest } from './protocol.ts';
import { HTML_TYPE, JSON_TYPE, parsePage, writeHtml, writeJson, type IndexFile, type Page } from './pypi-page.ts';
import type { UpstreamClient } from './upstream-client.ts';
import type { VersionPins } from './version-pins.ts';

/** What is asked of the upstream. */
const ACCEPT = `${JSON_TYPE}, ${HTML_TYPE};q=0.2, text/html;q=0.1`;
/** Where files of another server are served. */
const FILES_ROOT = '/+files';
const METADATA_SUFFIX = '.metadata';

export interface PypiOptions {
  readonly upstream: UpstreamClient;
  /** Where files are that are not on the upstream. */
  readonly files: UpstreamClient | undefined;
  /** Absent: every version exists. */
  readonly pins: VersionPins | undefined;
}

export class Pypi implements ServiceProtocol {
  readonly #options: PypiOptions;
  /** Targets of files that a page has shown, so that a download asks for no page again. What was allowed once stays so. */
  readonly #shown = new Set<string>();

  constructor(options: PypiOptions) {
    this.#options = options;
  }

  async handle(request: ServiceRequest): Promise<Handling> {
    const { target, method } = request;
    if (method !== 'GET' && method !== 'HEAD') return refuse(405, 'the index is read only');
    const project = /^\/simple\/([^/]+)\/?$/.exec(target.decoded)?.[1];
    if (project !== undefined) return await this.#page(project, request);
    if (/^\/simple\/?$/.test(target.decoded)) return forward(target);
    return await this.#file(request);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#options.upstream[Symbol.asyncDispose]();
    await this.#options.files?.[Symbol.asyncDispose]();
  }

  async #page(project: string, request: ServiceRequest): Promise<Handling> {
    const files = await this.#files(normalizeName(project), request);
    if (files === undefined) return refuse(404, 'there is no such project');
    const versions = [...new Set(files.map(({ filename }) => versionOf(filename)?.version ?? ''))].filter(
      (text) => text !== '',
    );
    const page: Page = { project: normalizeName(project), versions, files };
    return wantsJson(request.accept)
      ? { kind: 'document', status: 200, type: JSON_TYPE, text: writeJson(page) }
      : { kind: 'document', status: 200, type: 'text/html; charset=utf-8', text: writeHtml(page) };
  }

  async #file(request: ServiceRequest): Promise<Handling> {
    const { path, decoded, query } = request.target;
    // With its query: what the upstream makes of another one is not known.
    const whole = `${path.endsWith(METADATA_SUFFIX) ? path.slice(0, -METADATA_SUFFIX.length) : path}${query}`;
    const filename = decoded.slice(decoded.lastIndexOf('/') + 1);
    const version = versionOf(
      filename.endsWith(METADATA_SUFFIX) ? filename.slice(0, -METADATA_SUFFIX.length) : filename,
    );
    if (version === undefined) return refuse(404, 'there is no such file');
    if (this.#options.pins !== undefined && !this.#shown.has(whole)) await this.#files(version.name, request);
    if (this.#options.pins !== undefined && !this.#shown.has(whole)) return refuse(403, HIDDEN);
    if (!path.startsWith(`${FILES_ROOT}/`)) return forward(request.target);
    if (this.#options.files === undefined) return refuse(404, 'there is no such file');
    return { kind: 'forward', where: 'files', target: `${path.slice(FILES_ROOT.length)}${query}` };
  }

  /** The files of a project that exist here; undefined when there is no such project. */
  async #files(project: string, { origin, signal }: ServiceRequest): Promise<Page['files'] | undefined> {
    const { upstream, pins } = this.#options;
    const target = `/simple/${project}/`;
    const { status, type, text } = await upstream.read(target, ACCEPT, signal);
    const files = status === 200 ? parsePage(type, text, upstream.urlOf(target)) : undefined;
    return files?.flatMap((file) => {
      const place = this.#placeOf(file);
      if (place === undefined || !isAllowed(file, project, pins)) return [];
      this.#show(place);
      return [{ ...file, href: `${origin}${place}` }];
    });
  }

  /** Where a file is served here; undefined when it is on a server that is not part of the service. */
  #placeOf({ url }: IndexFile): string | undefined {
    const own = this.#options.upstream.targetOf(url);
    if (own !== undefined) return own;
    const other = this.#options.files?.targetOf(url);
    return other === undefined ? undefined : `${FILES_ROOT}${other}`;
  }

  #show(path: string): void {
    this.#shown.add(path);
    const [oldest] = this.#shown;
    if (this.#shown.size > MAX_KNOWN_TIMES && oldest !== undefined) this.#shown.delete(oldest);
  }
}

function isAllowed({ filename, publishedMs }: IndexFile, project: string, pins: VersionPins | undefined): boolean {
  if (pins === undefined) return true;
  const version = versionOf(filename);
  return version?.name === project && pins.allows({ ...version, publishedMs });
}

/** PEP 503. */
export const normalizeName = (name: string): string => name.toLowerCase().replaceAll(/[-_.]+/g, '-');

const WHEEL = /^([^-]+)-([^-]+)(?:-[^-]+)?-[^-]+-[^-]+-[^-]+\.whl$/;
const SOURCE = /^(.+)-([^-]+)\.(?:tar\.(?:gz|bz2|xz)|tgz|zip)$/;
const EGG = /^([^-]+)-([^-]+)(?:-[^-]+)*\.(?:egg|exe|msi)$/;

/** Name and version of a file (PEP 427, 625); undefined for a file of another form. */
function versionOf(filename: string): { readonly name: string; readonly version: string } | undefined {
  const [, name, version] = WHEEL.exec(filename) ?? SOURCE.exec(filename) ?? EGG.exec(filename) ?? [];
  return name === undefined || version === undefined ? undefined : { name: normalizeName(name), version };
}

/** JSON where it is named with no less weight than HTML (RFC 9110 12.5.1). */
function wantsJson(accept: string): boolean {
  const weights = new Map<string, number>();
  for (const part of accept.split(',').slice(0, 32)) {
    const [type = '', ...params] = part.split(';').map((piece) => piece.trim().toLowerCase());
    const weight = Number(params.find((param) => param.startsWith('q='))?.slice(2) ?? 1);
    weights.set(type, Number.isNaN(weight) ? 0 : weight);
  }
  const html = Math.max(weights.get(HTML_TYPE) ?? 0, weights.get('text/html') ?? 0);
  const json = Math.max(weights.get(JSON_TYPE) ?? 0, weights.get('application/vnd.pypi.simple.latest+json') ?? 0);
  return json > 0 && json >= html;
}
