/**
 * Ends a connection that does not bring a request in time: the first one, and after each answer the next. Node's own limits hold only for a server that
 * listens itself.
 */
import type { Clock, Timer } from '@dsec/kit';

export class HeadDeadline {
  readonly #clock: Clock;
  readonly #ms: number;
  readonly #onOver: () => void;
  #timer: Timer | undefined;
  #requests = 0;
  #isClosed = false;

  constructor(clock: Clock, ms: number, onOver: () => void) {
    this.#clock = clock;
    this.#ms = ms;
    this.#onOver = onOver;
    this.#arm();
  }

  /** A request is there with its whole head. */
  begin(): void {
    this.#requests += 1;
    this.#timer?.cancel();
  }

  /** It is answered. */
  end(): void {
    this.#requests -= 1;
    if (this.#requests === 0 && !this.#isClosed) this.#arm();
  }

  /** The connection is gone; answers may end after it. */
  close(): void {
    this.#isClosed = true;
    this.#timer?.cancel();
  }

  #arm(): void {
    this.#timer?.cancel();
    this.#timer = this.#clock.setTimer(this.#ms, this.#onOver);
  }
}
