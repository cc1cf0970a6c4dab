/**
 * The thread that merges layers, so that the event loop never waits for it. It is started while the process may still read its modules, and
 * opens files only when told, after the process has given up its privileges. One merge at a time.
 */
import { parentPort } from 'node:worker_threads';
import { PlatformError, type ErrorCode } from '@dsec/contract';
import { ensureSet, type EnsuredSet, type SetDirectories } from './write-set.ts';

export interface MergeRequest {
  readonly id: number;
  readonly directories: SetDirectories;
  readonly layers: readonly string[];
  readonly isForced: boolean;
}

export type MergeAnswer =
  /** Its modules are loaded. */
  | { readonly type: 'ready' }
  | { readonly type: 'made'; readonly id: number; readonly made: EnsuredSet }
  | {
      readonly type: 'failed';
      readonly id: number;
      readonly code: ErrorCode;
      readonly message: string;
      readonly details: PlatformError['details'];
      readonly cause: string;
    };

if (parentPort !== null) {
  const port = parentPort;
  const answer = (message: MergeAnswer): void => port.postMessage(message);
  const merge = async ({ id, directories, layers, isForced }: MergeRequest): Promise<void> => {
    try {
      const made = await ensureSet(directories, layers, { isForced });
      answer({ type: 'made', id, made });
    } catch (error) {
      const cause = error instanceof Error ? (error.stack ?? error.message) : String(error);
      const known = PlatformError.is(error)
        ? { code: error.code, message: error.message, details: error.details }
        : { code: 'internal' as const, message: 'the layers could not be put together', details: {} };
      answer({ type: 'failed', id, ...known, cause });
    }
  };
  let last = Promise.resolve();
  port.on('message', (request: MergeRequest) => {
    last = last.then(() => merge(request));
  });
  answer({ type: 'ready' });
}
