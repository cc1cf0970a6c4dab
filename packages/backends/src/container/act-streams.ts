/** What launcher and resolver tell of the behaviour of sandboxes, in one form. */
import { PlatformError } from '@dsec/contract';
import type { Logger } from '@dsec/kit';
import type { DeniedAct, MessageStream, RefusedAct } from '@dsec/native-link';
import type { Act, ActObserver } from '../act.ts';

export const actOfDenied = ({ event: { id, ...act } }: DeniedAct): Act => ({ sandboxId: id, ...act });

export const actOfRefused = ({ event: { id, reason, ...act } }: RefusedAct): Act => ({
  sandboxId: id,
  outcome: reason,
  ...act,
});

export interface ActStreamOptions<T> {
  readonly stream: MessageStream<T>;
  readonly actOf: (told: T) => Act;
  readonly observer: ActObserver;
  readonly logger: Logger;
  /** Who tells. */
  readonly name: string;
}

/**
 * Passes on what a stream tells until it ends. Never rejects: its end must not cost the connection, on which more depends.
 */
export async function followActs<T extends { readonly lost?: number }>(options: ActStreamOptions<T>): Promise<void> {
  const { stream, actOf, observer, logger, name } = options;
  try {
    for await (const told of stream) {
      if (told.lost !== undefined) observer.onActsLost(told.lost);
      observer.onAct(actOf(told));
    }
  } catch (error) {
    // With the connection it comes again.
    if (PlatformError.is(error) && error.code === 'connection_lost') return;
    logger.warn('behaviour.stream', { source: name, outcome: 'ended', error });
  }
}
