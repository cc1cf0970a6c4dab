import {
  BehaviourLineSchema,
  PlatformError,
  type BehaviourEvent,
  type BehaviourKind,
  type BehaviourLine,
} from '@dsec/contract';
import type { Api } from './http/api.ts';
import { Deadline } from './http/deadline.ts';
import { errorOfLine } from './http/error-body.ts';
import { ndjson } from './http/ndjson.ts';
import { isRepeatable, Retries } from './http/retry.ts';
import { parserOf } from './http/schema.ts';

const parseLine = parserOf<typeof BehaviourLineSchema, BehaviourLine>(
  BehaviourLineSchema,
  'line of a stream of events',
);
const WHAT = 'listening to events';

/** Which events to hear of, and from when on. */
export interface EventsOptions {
  /** Of this sandbox alone. @default all of the project */
  readonly sandboxId?: string;
  /** Of these kinds alone. @default all */
  readonly kinds?: readonly BehaviourKind[];
  /** The `cursor` of the event to go on after, or `now`. @default all that the server keeps: the newest 4,096 of all sandboxes */
  readonly after?: string;
  /** Goes on with what happens until the loop is left; else it ends when all that is kept was told. @default true */
  readonly follow?: boolean;
  /**
   * Hears how many events were lost before the next one, because this side was too slow or the server was asked again too late; null: nobody knows how many,
   * since the server was restarted.
   */
  readonly onLost?: (count: number | null) => void;
  /** Ends it; the loop then throws `cancelled`. */
  readonly signal?: AbortSignal | undefined;
}

/** Goes on after the last event when the connection breaks. */
export async function* behaviourEvents(
  api: Api,
  { sandboxId: sandbox, kinds, follow = true, onLost, signal, ...options }: EventsOptions,
): AsyncGenerator<BehaviourEvent, void, undefined> {
  using deadline = new Deadline(api.timing, WHAT, { signal });
  const retries = new Retries(api.timing, api.retry);
  let { after } = options;
  for (;;) {
    try {
      const query = { sandbox, kind: kinds?.join(','), after, follow };
      const response = await api.send(
        { method: 'GET', path: '/events', what: WHAT, query, repeatable: 'always' },
        deadline,
      );
      for await (const value of ndjson(response.body, WHAT)) {
        retries.reset();
        const line = lineOf(value);
        if (line === undefined) continue;
        if ('lost' in line) onLost?.(line.lost);
        else {
          after = 'at' in line ? line.at : line.event.cursor;
          if ('event' in line) yield line.event;
        }
      }
      if (!follow) return;
      throw new PlatformError('connection_lost', `${WHAT}: the stream ended`);
    } catch (error) {
      if (!isRepeatable(error, 'always') || (error.code === 'server_unreachable' && !api.hasAnswered)) throw error;
      if (!(await retries.next(deadline))) throw error;
    }
  }
}

/** Undefined for a keepalive. */
function lineOf(value: unknown): BehaviourLine | undefined {
  if (typeof value === 'object' && value !== null) {
    if ('keepalive' in value) return undefined;
    if ('error' in value) throw errorOfLine(value.error, WHAT);
  }
  return parseLine(value);
}
