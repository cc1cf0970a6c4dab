/** The journal's thread, seen from the event loop. */
import { Worker } from 'node:worker_threads';
import { PlatformError } from '@dsec/contract';
import type { CompositionPageQuery, CountedPage } from './composition-counts.ts';
import type { JournalSink } from './journal.ts';
import type { JournalBatch, JournalContents } from './journal-store.ts';
import type { JournalAnswer, JournalRequest } from './journal-worker.ts';

export class JournalThread implements JournalSink {
  readonly #worker: Worker;
  #pending: PromiseWithResolvers<JournalAnswer> | undefined;
  #ended: Error | undefined;

  private constructor(worker: Worker, onLost: (error: Error) => void) {
    this.#worker = worker;
    worker.on('message', (answer: JournalAnswer) => {
      const pending = this.#pending;
      this.#pending = undefined;
      pending?.resolve(answer);
    });
    const end = (cause?: unknown): void => {
      if (this.#ended !== undefined) return;
      this.#ended = new PlatformError('internal', 'the thread of the journal has ended', { cause });
      if (this.#pending !== undefined || cause !== undefined) onLost(this.#ended);
      this.#pending?.reject(this.#ended);
    };
    worker.once('error', end);
    worker.once('exit', () => end());
  }

  /** Loads the thread's modules; `onLost` hears that it ended although nobody closed it. */
  static async start(onLost: (error: Error) => void): Promise<JournalThread> {
    const worker = new Worker(new URL('./journal-worker.ts', import.meta.url), { name: 'journal' });
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    worker.once('message', resolve);
    worker.once('error', reject);
    await promise;
    worker.removeListener('error', reject);
    return new JournalThread(worker, onLost);
  }

  async open(path: string, bootId: string, halfLifeMs?: number): Promise<JournalContents> {
    const answer = await this.#ask({ type: 'open', path, bootId, halfLifeMs });
    if (answer.type === 'opened') return answer.contents;
    throw failure(answer, 'the journal could not be opened');
  }

  async commit(batch: JournalBatch): Promise<void> {
    const answer = await this.#ask({ type: 'commit', batch });
    if (answer.type !== 'committed') throw failure(answer, 'the journal could not be written');
  }

  async compositions(query: CompositionPageQuery): Promise<CountedPage> {
    const answer = await this.#ask({ type: 'compositions', query });
    if (answer.type === 'compositions') return answer.page;
    throw failure(answer, 'the journal could not be read');
  }

  async close(): Promise<void> {
    if (this.#ended !== undefined) return;
    const exited = new Promise((resolve) => this.#worker.once('exit', resolve));
    await this.#ask({ type: 'close' });
    await exited;
  }

  /** One at a time: the journal waits for each answer. */
  #ask(request: JournalRequest): Promise<JournalAnswer> {
    if (this.#ended !== undefined) return Promise.reject(this.#ended);
    if (this.#pending !== undefined)
      return Promise.reject(new PlatformError('internal', 'the journal is asked twice at once'));
    this.#pending = Promise.withResolvers<JournalAnswer>();
    this.#worker.postMessage(request);
    return this.#pending.promise;
  }
}

function failure(answer: JournalAnswer, message: string): PlatformError {
  if (answer.type !== 'failed') return new PlatformError('internal', `${message}: unexpected answer ${answer.type}`);
  return new PlatformError(answer.isFull ? 'disk_full' : 'internal', message, { cause: new Error(answer.message) });
}
