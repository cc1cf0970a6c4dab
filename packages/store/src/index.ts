export { EmbeddedStore, type EmbeddedStoreOptions } from './embedded-store.ts';
export { StoreView, type StoreViewOptions } from './store-view.ts';
export {
  MAX_KEY_CHARS,
  MAX_RANGE,
  MAX_TXN_OPERATIONS,
  MAX_VALUE_BYTES,
  type Condition,
  type Entry,
  type Operation,
  type RangeOptions,
  type RangePage,
  type Store,
  type StoreEvent,
  type TxnResult,
  type WatchBatch,
  type WatchOptions,
  type WriteOptions,
  type WriteResult,
} from './store.ts';
