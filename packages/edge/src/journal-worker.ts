/**
 * The thread that owns the journal's file, so that the event loop never waits for the disk. It is started while the process may still
 * read its modules, and opens the file when told, after the process has given up its privileges.
 */
import { parentPort } from 'node:worker_threads';
import type { CompositionPageQuery, CountedPage } from './composition-counts.ts';
import { JournalStore, type JournalBatch, type JournalContents } from './journal-store.ts';

export type JournalRequest =
  | { readonly type: 'open'; readonly path: string; readonly bootId: string; readonly halfLifeMs: number | undefined }
  | { readonly type: 'commit'; readonly batch: JournalBatch }
  | { readonly type: 'compositions'; readonly query: CompositionPageQuery }
  | { readonly type: 'close' };

export type JournalAnswer =
  /** Its modules are loaded. */
  | { readonly type: 'ready' }
  | { readonly type: 'opened'; readonly contents: JournalContents }
  | { readonly type: 'committed' }
  | { readonly type: 'compositions'; readonly page: CountedPage }
  | { readonly type: 'closed' }
  | { readonly type: 'failed'; readonly message: string; readonly isFull: boolean };

/** SQLITE_FULL; SQLITE_IOERR comes from a full disk too, when it is the log that cannot grow. */
const SQLITE_FULL = 13;

if (parentPort !== null) {
  const port = parentPort;
  let store: JournalStore | undefined;
  const answer = (message: JournalAnswer): void => port.postMessage(message);
  port.on('message', (request: JournalRequest) => {
    try {
      switch (request.type) {
        case 'open':
          store = new JournalStore(request.path, request.halfLifeMs);
          answer({ type: 'opened', contents: store.open(request.bootId) });
          break;
        case 'commit':
          if (store === undefined) throw new Error('the journal is not open');
          store.commit(request.batch);
          answer({ type: 'committed' });
          break;
        case 'compositions':
          if (store === undefined) throw new Error('the journal is not open');
          answer({ type: 'compositions', page: store.compositions(request.query) });
          break;
        case 'close':
          store?.[Symbol.dispose]();
          store = undefined;
          answer({ type: 'closed' });
          port.close();
          break;
      }
    } catch (error) {
      const isFull = error instanceof Error && 'errcode' in error && error.errcode === SQLITE_FULL;
      answer({ type: 'failed', message: error instanceof Error ? error.message : String(error), isFull });
    }
  });
  answer({ type: 'ready' });
}
