/**
 * Posts the behaviour of sandboxes to where the operator wants it. The edge keeps what is not posted yet, up to its bound; what falls out, and what could
 * not be delivered in time, is counted and told with the next batch. How far it has come is kept, so that a restart neither begins anew nor forgets.
 */
import {
  WEBHOOK_TYPE,
  type BehaviourEvent,
  type BehaviourLine,
  type WebhookPayload,
  type WebhookSettings,
} from '@dsec/contract';
import { Backoff, BoundedQueue, withDeadline, type Clock, type Logger, type Random } from '@dsec/kit';
import type { WireStream } from '@dsec/native-link';
import type { Store } from '@dsec/store';
import type { EdgeLink } from '../edge/edge-link.ts';
import { checkBehaviourLine } from './behaviour-routes.ts';
import { signedHeaders } from './webhook-signature.ts';

/** Events of one post. */
export const MAX_BATCH = 100;
/** Lines that wait here; what is beyond waits in the edge. */
const MAX_WAITING = 2 * MAX_BATCH;
/** How long the first of a batch waits for others. */
export const GATHER_MS = 200;
/** How long one post may take. */
const POST_TIMEOUT_MS = 15_000;
/** How long one batch is tried. */
export const DELIVERY_MS = 600_000;
const RETRY = { baseMs: 500, maxMs: 60_000 } as const;
const RECONNECT = { baseMs: 100, maxMs: 5000 } as const;
const GONE = 410;
const ID_CHARS = 24;
/** How far it has come, in the store. */
const CURSOR_KEY = 'webhook/cursor';

export interface WebhookOptions {
  readonly settings: WebhookSettings;
  readonly edge: EdgeLink;
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
}

type Outcome = 'delivered' | 'given_up' | 'gone';

export class Webhook {
  readonly #options: WebhookOptions;
  readonly #lines = new BoundedQueue<BehaviourLine>(MAX_WAITING);
  /** Of the last event that was read. */
  #cursor: string | undefined;
  #lost: number | null = 0;

  constructor(options: WebhookOptions) {
    this.#options = options;
  }

  /** Until the signal aborts, or the receiver says that it is gone for good. */
  async run(signal: AbortSignal): Promise<void> {
    this.#cursor = (await this.#options.store.get(CURSOR_KEY))?.value;
    const ended = new AbortController();
    const all = AbortSignal.any([signal, ended.signal]);
    const reading = this.#read(all);
    try {
      await this.#post(all);
    } finally {
      ended.abort();
      await reading;
    }
  }

  /** Takes lines from the edge, again whenever the connection is lost. Never rejects. */
  async #read(signal: AbortSignal): Promise<void> {
    const { edge, settings, random, clock, logger } = this.#options;
    const backoff = new Backoff(RECONNECT, random);
    while (!signal.aborted) {
      let stream: WireStream | undefined;
      try {
        const after = this.#cursor === undefined ? {} : { after: this.#cursor };
        const kinds = settings.kinds === undefined ? {} : { kinds: settings.kinds };
        stream = await edge.open('behaviour.events', { ...after, ...kinds, follow: true }, { signal });
        for await (const item of stream) {
          if (item.type !== 'message') continue;
          backoff.reset();
          await this.#take(checkBehaviourLine(item.value, stream.method) as BehaviourLine, signal);
        }
      } catch (error) {
        if (!signal.aborted) logger.debug('webhook.stream', { outcome: 'lost', error });
      } finally {
        stream?.reset();
      }
      await clock.sleep(backoff.nextMs(), { signal }).catch(() => undefined);
    }
  }

  async #take(line: BehaviourLine, signal: AbortSignal): Promise<void> {
    if ('at' in line) return;
    await this.#lines.push(line, signal);
    if ('event' in line) this.#cursor = line.event.cursor;
  }

  /** Rejects only when the signal aborts. */
  async #post(signal: AbortSignal): Promise<void> {
    const { store, logger } = this.#options;
    for (;;) {
      const events = await this.#batch(signal);
      const last = events.at(-1);
      if (last === undefined) continue;
      const outcome = await this.#deliver(events, signal);
      if (outcome === 'gone') return;
      if (outcome === 'delivered') this.#lost = 0;
      else this.#lose(events.length);
      await store.put(CURSOR_KEY, last.cursor).catch((error: unknown) => {
        // After a restart these are posted again.
        logger.warn('webhook.cursor', { outcome: 'failed', error });
      });
    }
  }

  /** The next events, with others that come at the same time. */
  async #batch(signal: AbortSignal): Promise<readonly BehaviourEvent[]> {
    const events: BehaviourEvent[] = [];
    const add = (line: BehaviourLine | undefined): void => {
      if (line === undefined) return;
      if ('event' in line) events.push(line.event);
      else if ('lost' in line) this.#lose(line.lost);
    };
    add(await this.#lines.shift(signal));
    if (this.#lines.length < MAX_BATCH) await this.#options.clock.sleep(GATHER_MS, { signal });
    while (this.#lines.length > 0 && events.length < MAX_BATCH) add(await this.#lines.shift(signal));
    return events;
  }

  #lose(count: number | null): void {
    this.#lost = this.#lost === null || count === null ? null : this.#lost + count;
  }

  async #deliver(events: readonly BehaviourEvent[], signal: AbortSignal): Promise<Outcome> {
    const { clock, random, logger } = this.#options;
    const payload: WebhookPayload = {
      type: WEBHOOK_TYPE,
      timestamp: new Date(clock.now()).toISOString(),
      data: { events, lost: this.#lost },
    };
    const body = JSON.stringify(payload);
    // The same for every attempt: by it a receiver knows what it has already.
    const id = `msg_${random.base36(ID_CHARS)}`;
    const backoff = new Backoff(RETRY, random);
    const startedMs = clock.monotonicMs();
    for (let attempt = 1; ; attempt++) {
      const { status, error } = await this.#attempt(id, body, signal);
      signal.throwIfAborted();
      if (status !== undefined && status >= 200 && status < 300) {
        if (attempt > 1) logger.info('webhook.post', { outcome: 'ok', attempt, events: events.length });
        return 'delivered';
      }
      const fields = { attempt, events: events.length, status, error };
      if (status === GONE) {
        logger.error('webhook.post', { ...fields, outcome: 'gone' });
        return 'gone';
      }
      const waitMs = backoff.nextMs();
      if (clock.monotonicMs() + waitMs - startedMs > DELIVERY_MS) {
        logger.error('webhook.post', { ...fields, outcome: 'given_up' });
        return 'given_up';
      }
      if (attempt === 1) logger.warn('webhook.post', { ...fields, outcome: 'failed' });
      await clock.sleep(waitMs, { signal });
    }
  }

  /** Never rejects. */
  async #attempt(
    id: string,
    body: string,
    signal: AbortSignal,
  ): Promise<{ readonly status?: number; readonly error?: unknown }> {
    const { settings, clock } = this.#options;
    const headers = {
      'content-type': 'application/json',
      ...signedHeaders(settings.secret, { id, atMs: clock.now(), body }),
    };
    try {
      return await withDeadline(
        { clock, what: 'posting to the webhook', timeoutMs: POST_TIMEOUT_MS, signal },
        async (deadline) => {
          const response = await fetch(settings.url, {
            method: 'POST',
            headers,
            body,
            // What is signed for one address is for no other.
            redirect: 'manual',
            signal: deadline,
          });
          await response.body?.cancel();
          return { status: response.status };
        },
      );
    } catch (error) {
      return { error };
    }
  }
}
