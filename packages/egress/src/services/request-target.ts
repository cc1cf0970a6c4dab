/** The target of a request, checked so that it stays below the path of the upstream whatever the upstream makes of it. */
import { MAX_TARGET_CHARS } from './bounds.ts';

export interface RequestTarget {
  /** As it was sent; begins with `/`. */
  readonly path: string;
  /** The path with its escapes resolved. */
  readonly decoded: string;
  /** With its `?`, or empty. */
  readonly query: string;
}

/** Undefined for what is no path, or leads out of its root in one reading or another. */
export function parseTarget(target: string | undefined): RequestTarget | undefined {
  if (target === undefined || target.length > MAX_TARGET_CHARS) return undefined;
  if (!/^\/[\x21-\x7e]*$/.test(target) || target.includes('#')) return undefined;
  const at = target.indexOf('?');
  const path = at < 0 ? target : target.slice(0, at);
  const decoded = decode(path);
  // A second round of escapes is nobody's name, and some servers resolve it.
  if (decoded === undefined || /%[0-9a-fA-F]{2}/.test(decoded) || /[\\\p{Cc}]/u.test(decoded)) return undefined;
  const segments = decoded.slice(1).split('/');
  if (
    segments.some(
      (segment, index) => segment === '.' || segment === '..' || (segment === '' && index < segments.length - 1),
    )
  ) {
    return undefined;
  }
  return { path, decoded, query: at < 0 ? '' : target.slice(at) };
}

function decode(path: string): string | undefined {
  try {
    return decodeURIComponent(path);
  } catch {
    return undefined;
  }
}
