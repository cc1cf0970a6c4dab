/** Pages of a simple package index: PEP 503 (HTML), PEP 691 and 700 (JSON). Read from either, written as either. */
import { momentOf } from './version-pins.ts';

export const JSON_TYPE = 'application/vnd.pypi.simple.v1+json';
export const HTML_TYPE = 'application/vnd.pypi.simple.v1+html';

export interface IndexFile {
  readonly filename: string;
  /** Absolute. */
  readonly url: URL;
  readonly publishedMs: number | undefined;
  /** Further members of PEP 691, as they came. */
  readonly more: Readonly<Record<string, unknown>>;
}

/** What of a file is handed on; everything else might tell of files that are hidden. */
const KEPT = [
  'hashes',
  'requires-python',
  'core-metadata',
  'dist-info-metadata',
  'gpg-sig',
  'yanked',
  'size',
  'upload-time',
];

/** Undefined for what is no page of an index. */
export function parsePage(type: string, text: string, base: URL): readonly IndexFile[] | undefined {
  if (type === JSON_TYPE || type === 'application/json') return parseJson(text, base);
  if (type === HTML_TYPE || type === 'text/html' || type === 'application/xhtml+xml') return parseHtml(text, base);
  return undefined;
}

function parseJson(text: string, base: URL): readonly IndexFile[] | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!isRecord(value) || !Array.isArray(value.files)) return undefined;
  return value.files.flatMap((file: unknown) => {
    if (!isRecord(file) || typeof file.filename !== 'string' || typeof file.url !== 'string') return [];
    if (!URL.canParse(file.url, base.href)) return [];
    const more = Object.fromEntries(
      KEPT.flatMap((key) => (file[key] === undefined ? [] : [[key, file[key]] as const])),
    );
    return [
      { filename: file.filename, url: new URL(file.url, base), publishedMs: momentOf(file['upload-time']), more },
    ];
  });
}

const ANCHOR = /<a\s([^>]*)>([^<]*)<\/a>/gi;
const ATTRIBUTE = /([a-z-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')/gi;

/** Anchors with their attributes are all that there is to such a page (PEP 503). */
function parseHtml(text: string, base: URL): readonly IndexFile[] {
  const files: IndexFile[] = [];
  for (const [, attributes = '', label = ''] of text.matchAll(ANCHOR)) {
    const values = new Map<string, string>();
    for (const [, name = '', double, single] of attributes.matchAll(ATTRIBUTE)) {
      values.set(name.toLowerCase(), unescapeHtml(double ?? single ?? ''));
    }
    const href = values.get('href');
    if (href === undefined || !URL.canParse(href, base.href)) continue;
    const url = new URL(href, base);
    const hash = /^#([a-z0-9]+)=([0-9a-f]+)$/.exec(url.hash);
    url.hash = '';
    const python = values.get('data-requires-python');
    const metadata = values.get('data-core-metadata') ?? values.get('data-dist-info-metadata');
    const yanked = values.get('data-yanked');
    const more = {
      hashes: hash?.[1] === undefined ? {} : { [hash[1]]: hash[2] },
      ...(python === undefined ? {} : { 'requires-python': python }),
      ...(metadata === undefined ? {} : { 'core-metadata': hashesOf(metadata) }),
      ...(yanked === undefined ? {} : { yanked: yanked === '' ? true : yanked }),
    };
    files.push({ filename: unescapeHtml(label).trim(), url, publishedMs: undefined, more });
  }
  return files;
}

const hashesOf = (text: string): unknown => {
  const [algorithm, digest] = text.split('=');
  return algorithm !== undefined && digest !== undefined ? { [algorithm]: digest } : true;
};

export interface Page {
  readonly project: string;
  readonly versions: readonly string[];
  /** `href` is where the sandbox finds it. */
  readonly files: readonly (IndexFile & { readonly href: string })[];
}

export const writeJson = ({ project, versions, files }: Page): string =>
  JSON.stringify({
    meta: { 'api-version': '1.1' },
    name: project,
    versions,
    files: files.map(({ filename, href, more }) => ({ filename, url: href, hashes: {}, ...more })),
  });

export function writeHtml({ project, files }: Page): string {
  const title = escapeHtml(`Links for ${project}`);
  const lines = files.map(
    (file) => `<a href="${escapeHtml(hrefWithHash(file))}"${attributesOf(file)}>${escapeHtml(file.filename)}</a><br/>`,
  );
  return `<!DOCTYPE html>\n<html><head><meta name="pypi:repository-version" content="1.1"><title>${title}</title></head><body>\n<h1>${title}</h1>\n${lines.join('\n')}\n</body></html>\n`;
}

function hrefWithHash({ href, more }: Page['files'][number]): string {
  const hashes = isRecord(more.hashes) ? more.hashes : {};
  const [best] = typeof hashes.sha256 === 'string' ? ['sha256'] : Object.keys(hashes);
  return best === undefined ? href : `${href}#${best}=${String(hashes[best])}`;
}

function attributesOf({ more }: IndexFile): string {
  const attributes: string[] = [];
  const python = more['requires-python'];
  if (typeof python === 'string') attributes.push(` data-requires-python="${escapeHtml(python)}"`);
  const metadata = more['core-metadata'] ?? more['dist-info-metadata'];
  if (metadata !== undefined && metadata !== false) {
    const [first] = isRecord(metadata) ? Object.entries(metadata) : [];
    const value = first === undefined ? 'true' : `${first[0]}=${String(first[1])}`;
    attributes.push(` data-core-metadata="${escapeHtml(value)}"`, ` data-dist-info-metadata="${escapeHtml(value)}"`);
  }
  const { yanked } = more;
  if (yanked === true || typeof yanked === 'string') {
    attributes.push(` data-yanked="${escapeHtml(yanked === true ? '' : yanked)}"`);
  }
  return attributes.join('');
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};
const escapeHtml = (text: string): string => text.replaceAll(/[&<>"']/g, (character) => ENTITIES[character] ?? '');
const NAMED: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" };
const unescapeHtml = (text: string): string =>
  text.replaceAll(
    /&(?:#([0-9]{1,7})|#x([0-9a-fA-F]{1,6})|([a-z]+));/g,
    (whole, decimal?: string, hex?: string, name?: string) => {
      const code = decimal !== undefined ? Number(decimal) : hex !== undefined ? Number.parseInt(hex, 16) : undefined;
      if (code !== undefined) return code <= 0x10ffff ? String.fromCodePoint(code) : whole;
      return NAMED[name ?? ''] ?? whole;
    },
  );
