/**
 * State with etcd's semantics: every write raises one revision of the whole store; a write may demand the revision that it was based
 * on; a watch delivers every change in the order of the revisions. Keys are printable ASCII and sort by byte.
 */

export interface Entry {
  readonly key: string;
  readonly value: string;
  /** Revision of the write that made the key. */
  readonly createRevision: number;
  /** Revision of the last write; what `ifRevision` compares with. */
  readonly modRevision: number;
}

/** Longest key. */
export const MAX_KEY_CHARS = 512;
/** Longest value, in bytes of UTF-8. */
export const MAX_VALUE_BYTES = 1024 * 1024;
/** Most operations in one transaction. */
export const MAX_TXN_OPERATIONS = 128;
/** Most entries in one page of a range. */
export const MAX_RANGE = 1000;

export interface RangeOptions {
  /** Default and most: `MAX_RANGE`. */
  readonly limit?: number;
  /** What the page before returned. */
  readonly cursor?: string | undefined;
}

export interface RangePage {
  readonly entries: readonly Entry[];
  /** Of the next page; undefined after the last. */
  readonly cursor: string | undefined;
  /** Revision of the store when the page was read: watch from the next one. */
  readonly revision: number;
}

export interface WriteOptions {
  /** Write only if the key's `modRevision` is this; 0: only if there is no such key. */
  readonly ifRevision?: number;
}

/** What a conditional write came to. A lost race is a value, not an error. */
export type WriteResult =
  | { readonly ok: true; readonly revision: number }
  | { readonly ok: false; readonly current: Entry | undefined };

export interface Condition {
  readonly key: string;
  /** 0: there is no such key. */
  readonly revision: number;
}

export type Operation =
  | { readonly kind: 'put'; readonly key: string; readonly value: string }
  | { readonly kind: 'delete'; readonly key: string };

export type TxnResult = { readonly ok: true; readonly revision: number } | { readonly ok: false };

export type StoreEvent =
  | { readonly kind: 'put'; readonly entry: Entry }
  | { readonly kind: 'delete'; readonly key: string; readonly revision: number };

/** Events of one or more revisions, or news that the asked revisions are no longer kept: range anew, then watch from there. */
export type WatchBatch =
  | { readonly kind: 'events'; readonly events: readonly StoreEvent[]; readonly revision: number }
  | { readonly kind: 'compacted'; readonly revision: number };

export interface WatchOptions {
  /** First revision to deliver; default: the next one. */
  readonly fromRevision?: number;
  readonly signal: AbortSignal;
}

export interface Store extends AsyncDisposable {
  get(key: string): Promise<Entry | undefined>;
  /** Entries whose key begins with `prefix`, by key. Pages are each consistent, not all together. */
  range(prefix: string, options?: RangeOptions): Promise<RangePage>;
  put(key: string, value: string, options?: WriteOptions): Promise<WriteResult>;
  /** Deleting what is not there is ok and changes no revision. */
  delete(key: string, options?: WriteOptions): Promise<WriteResult>;
  /** Does all operations, at one revision, if all conditions hold. No key may occur twice in the operations. */
  txn(conditions: readonly Condition[], operations: readonly Operation[]): Promise<TxnResult>;
  /** Ends quietly when the signal aborts. */
  watch(prefix: string, options: WatchOptions): AsyncIterable<WatchBatch>;
  close(): Promise<void>;
}
