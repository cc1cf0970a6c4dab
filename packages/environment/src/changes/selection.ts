/** Which of the changes of a sandbox go into a layer. */
import { ByteString } from '@dsec/erofs';
import { PlatformError } from '@dsec/contract';
import type { ScrubRule } from './scrub-rules.ts';

/** Why something is left out: the rule's name; `platform` for what the sandbox did not write; `path` for what was not asked for. */
export type Omission = string;

/** What becomes of a path: kept, kept only as the way to something below it, or left out. */
export type Verdict =
  | { readonly kind: 'keep' }
  | { readonly kind: 'way' }
  | { readonly kind: 'omit'; readonly by: Omission };

const KEEP: Verdict = { kind: 'keep' };
const WAY: Verdict = { kind: 'way' };

export interface SelectionOptions {
  /** Absolute paths: only what is at or below one of them. @default everything */
  readonly paths?: readonly string[] | undefined;
  readonly rules?: readonly ScrubRule[] | undefined;
  /** Absolute paths that are left out as well, with what is below them. */
  readonly omit?: readonly string[] | undefined;
  /** Absolute paths that no rule applies to, nor to what is below them. Named in `omit` as well, a path is left out. */
  readonly keep?: readonly string[] | undefined;
}

/** Most paths of one kind that a caller may name. */
const MAX_NAMED_PATHS = 1000;

/**
 * Each sandbox's own: the kernel's file systems, and the files that tell it its name. The platform puts them there, so they are no change of the
 * sandbox, whatever it has written to them.
 */
const platform = /^(?:(?:proc|sys|dev)(?:\/|$)|etc\/(?:hostname|hosts|resolv\.conf)$)/;

/** Says of each path what becomes of it. A path is left out with all that is below it. */
export class Selection {
  readonly #only: readonly ByteString[];
  readonly #rules: readonly ScrubRule[];
  readonly #omit: readonly ByteString[];
  readonly #keep: readonly ByteString[];

  /** @throws PlatformError `invalid_argument` for a path that is not absolute or leads out of the root */
  constructor(options: SelectionOptions = {}) {
    this.#only = named(options.paths ?? [], 'paths').filter((path) => path !== '');
    // The root is everything.
    if ((options.paths ?? []).length > this.#only.length) this.#only = [];
    this.#rules = options.rules ?? [];
    this.#omit = named(options.omit ?? [], 'omit');
    this.#keep = named(options.keep ?? [], 'keep');
  }

  /** @param path without a slash at either end; the root is empty */
  judge(path: ByteString): Verdict {
    if (path === '') return WAY;
    if (platform.test(path)) return { kind: 'omit', by: 'platform' };
    if (this.#omit.some((omitted) => isWithin(path, omitted))) return { kind: 'omit', by: 'named' };
    if (!this.#keep.some((kept) => isWithin(path, kept))) {
      const rule = this.#rules.find(({ pattern }) => pattern.test(path));
      if (rule !== undefined) {
        // On the way to what is to stay.
        return this.#keep.some((kept) => isWithin(kept, path)) ? WAY : { kind: 'omit', by: rule.name };
      }
    }
    if (this.#only.length === 0 || this.#only.some((only) => isWithin(path, only))) return KEEP;
    return this.#only.some((only) => isWithin(only, path)) ? WAY : { kind: 'omit', by: 'path' };
  }
}

const isWithin = (path: ByteString, directory: ByteString): boolean =>
  directory === '' || path === directory || (path.startsWith(directory) && path[directory.length] === '/');

const named = (paths: readonly string[], field: string): ByteString[] => {
  if (paths.length > MAX_NAMED_PATHS) throw refused(field, `are more than ${MAX_NAMED_PATHS}`);
  return paths.map((path) => {
    const names = path.split('/').filter((name) => name !== '' && name !== '.');
    if (!path.startsWith('/')) throw refused(field, 'must be absolute');
    if (names.includes('..') || path.includes('\0')) throw refused(field, 'must not lead out of the root');
    return ByteString.fromText(names.join('/'));
  });
};

const refused = (field: string, reason: string): PlatformError =>
  new PlatformError('invalid_argument', `the paths in ${field} ${reason}`, { details: { field, reason } });
