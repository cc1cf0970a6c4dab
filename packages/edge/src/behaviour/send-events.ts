/** A stream of events to an apiserver: what is kept, then what happens, as fast as it is taken. */
import type { WireServerStream } from '@dsec/native-link';
import type { Listener } from './event-ring.ts';

export interface SendOptions {
  /** Goes on with what happens, until the other side has lost interest. */
  readonly isFollowing: boolean;
}

/** Ends the listener. */
export async function sendEvents(
  stream: WireServerStream,
  events: Listener,
  { isFollowing }: SendOptions,
): Promise<object> {
  using listener = events;
  for (;;) {
    const line = listener.take();
    if (line !== undefined) await stream.message(line);
    else if (isFollowing) await listener.more(stream.signal);
    else return {};
  }
}
