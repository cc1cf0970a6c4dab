/** What a packed layer must be like, so that many sandboxes can stand on it for long. */
import type { PackAllowance, PackCheck } from '@dsec/contract';
import { ByteString } from '@dsec/erofs';
import type { Change } from './change-scan.ts';

/** The bounds of a pack when the caller names none. */
const defaultPackLimits = {
  /** Bytes of all files together. A base that everybody has is a few hundred MiB. */
  maxBytes: 8 * 2 ** 30,
  /** Entries: metadata of this many are tens of MiB on every node. */
  maxEntries: 500_000,
} as const;

export interface PackLimits {
  readonly maxBytes: number;
  readonly maxEntries: number;
}

export interface PackingOptions {
  readonly limits?: Partial<PackLimits> | undefined;
  /** Rules that may be broken. Those on devices, and on what no layer takes, are not among them. */
  readonly allow?: readonly PackAllowance[] | undefined;
}

/** Paths that a check names. */
const MAX_PATHS = 20;
/** A part of a limit from which on the pack warns. */
const WARN_PART = 0.5;
const SETUID_BITS = 0o6000;
const CAPABILITY = ByteString.fromText('security.capability');

interface PathRule {
  readonly rule: string;
  readonly level: 'warn' | 'fail';
  readonly message: string;
  readonly isMet: (change: Change) => boolean;
}

/** Data of services that ran, which no other sandbox should start from by accident. */
const mutableState =
  /^var\/lib\/(?:mysql|postgresql|redis|mongodb|elasticsearch|rabbitmq|docker|containerd)\/.|(?:^|\/)[^/]+(?:\.pid|\.lock|\.sock|-journal|-wal|-shm)$/s;
const runState = /^(?:run|tmp|var\/tmp|dev\/shm)\/./s;

const pathRules: readonly PathRule[] = [
  {
    rule: 'setuid',
    level: 'fail',
    message: 'files that run with the rights of their owner or group',
    isMet: ({ kind, entry }) => kind === 'file' && (entry.mode & SETUID_BITS) !== 0,
  },
  {
    rule: 'capabilities',
    level: 'fail',
    message: 'files that run with capabilities of their own',
    isMet: ({ kind, entry }) => kind === 'file' && entry.xattrs.has(CAPABILITY),
  },
  {
    rule: 'mutable-state',
    level: 'warn',
    message: 'databases, locks and pid files of services that ran',
    isMet: ({ kind, path }) => kind !== 'directory' && kind !== 'whiteout' && mutableState.test(path),
  },
  {
    rule: 'run-state',
    level: 'warn',
    message: 'files where those of one run belong',
    isMet: ({ kind, path }) => kind !== 'directory' && kind !== 'whiteout' && runState.test(path),
  },
  {
    rule: 'image-names',
    level: 'warn',
    message: 'names that mean something else in an OCI layer: the layer cannot be exported',
    isMet: ({ path }) => /(?:^|\/)\.wh\.[^/]*(?:\/|$)/s.test(path),
  },
];

/** Holds changes to the rules as they are gone through. */
export class PackingRules {
  readonly #limits: PackLimits;
  readonly #allowed: ReadonlySet<string>;
  readonly #met = new Map<string, { count: number; paths: string[] }>();
  #sockets = 0;
  readonly #socketPaths: string[] = [];

  constructor(options: PackingOptions = {}) {
    this.#limits = { ...defaultPackLimits, ...options.limits };
    this.#allowed = new Set(options.allow);
  }

  /** Takes in one change. */
  add(change: Change): void {
    if (change.verdict.kind === 'omit') return;
    if (change.kind === 'socket') {
      this.#sockets++;
      if (this.#socketPaths.length < MAX_PATHS) this.#socketPaths.push(shown(change.path));
      return;
    }
    for (const { rule, isMet } of pathRules) {
      if (!isMet(change)) continue;
      const met = this.#met.get(rule) ?? { count: 0, paths: [] };
      this.#met.set(rule, met);
      met.count++;
      if (met.paths.length < MAX_PATHS) met.paths.push(shown(change.path));
    }
  }

  /** @param kept what goes into the layer, all together */
  checks(kept: { readonly entries: number; readonly bytes: number }): PackCheck[] {
    return [
      bounded('size', kept.bytes, this.#limits.maxBytes, 'bytes of files'),
      bounded('entries', kept.entries, this.#limits.maxEntries, 'entries'),
      ...pathRules.map(({ rule, level, message }): PackCheck => {
        const { count, paths } = this.#met.get(rule) ?? { count: 0, paths: [] };
        const verdict = level === 'fail' && this.#allowed.has(rule) ? 'warn' : level;
        return count === 0
          ? { rule, level: 'pass', message: `no ${message}`, count, paths }
          : { rule, level: this.#isSilenced(rule, level) ? 'pass' : verdict, message, count, paths };
      }),
      {
        rule: 'sockets',
        level: this.#sockets === 0 ? 'pass' : 'warn',
        message: this.#sockets === 0 ? 'no sockets' : 'sockets, which are of a running program and are left out',
        count: this.#sockets,
        paths: this.#socketPaths,
      },
      // An archive with one is refused before this.
      { rule: 'devices', level: 'pass', message: 'no devices', count: 0, paths: [] },
    ];
  }

  /** A warning that the caller has allowed is none. */
  #isSilenced(rule: string, level: 'warn' | 'fail'): boolean {
    return level === 'warn' && this.#allowed.has(rule);
  }
}

const bounded = (rule: string, value: number, limit: number, unit: string): PackCheck => ({
  rule,
  level: value > limit ? 'fail' : value > limit * WARN_PART ? 'warn' : 'pass',
  message: `${value} ${unit} of at most ${limit}`,
  count: value,
  paths: [],
});

/** Of a longer path the end is left out. */
const MAX_SHOWN_CHARS = 512;

/** An absolute path for people to read. */
export const shown = (path: ByteString): string => `/${ByteString.toText(path)}`.slice(0, MAX_SHOWN_CHARS);
