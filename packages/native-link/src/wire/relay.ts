/** Joins two streams frame by frame: the payloads are passed on as they are, and so is the credit. */
import { PlatformError } from '@dsec/contract';
import { sniffCloseCode } from '@dsec/wire';

import { Stream } from './stream.ts';
import type { StreamTap, WireServerStream, WireStream } from './stream-api.ts';

/** How a relayed stream ended. */
export type RelayOutcome =
  /** The far server answered; `code` is that of its error, if it was one. */
  | { readonly end: 'closed'; readonly code?: string }
  /** The near client lost interest or went away. */
  | { readonly end: 'reset' }
  /** The connection to the far server broke, or the far server is at fault. */
  | { readonly end: 'lost'; readonly error: PlatformError };

export interface RelayOptions {
  /** Called at once when the stream is over. */
  readonly onClose?: (outcome: RelayOutcome) => void;
  /**
   * What the near client is told when the far connection breaks; default: the error as it is. A promise holds the answer back until the
   * reason is known: it must settle soon, and the near client may go away meanwhile.
   */
  readonly lost?: (error: PlatformError) => PlatformError | Promise<PlatformError>;
}

/** What comes in at `from` goes out at `to`. */
class Relay implements StreamTap {
  readonly #from: Stream;
  readonly #to: Stream;
  readonly #joint: Joint;

  constructor(from: Stream, to: Stream, joint: Joint) {
    this.#from = from;
    this.#to = to;
    this.#joint = joint;
  }

  payload(type: number, channel: number, chunk: Buffer, start: number, end: number): void {
    this.#to.forward(type, channel, chunk, start, end);
  }

  end(): void {
    this.#to.end();
  }

  window(grant: number): void {
    this.#to.grant(grant);
  }

  close(chunk: Buffer, start: number, end: number): void {
    const code = sniffCloseCode(chunk, start, end);
    if (!this.#joint.end(code === undefined ? { end: 'closed' } : { end: 'closed', code })) return;
    this.#to.closeRaw(chunk, start, end);
    this.#joint.done();
  }

  broken(error: PlatformError): void {
    const isNear = this.#from.isServer;
    if (!this.#joint.end(isNear ? { end: 'reset' } : { end: 'lost', error })) return;
    if (isNear) {
      this.#to.reset(error);
      this.#joint.done();
      return;
    }
    const told = this.#joint.lost?.(error) ?? error;
    if (PlatformError.is(told)) this.#tell(told);
    else void told.catch(() => error).then((reason) => this.#tell(reason));
  }

  #tell(error: PlatformError): void {
    this.#to.fail(error);
    this.#joint.done();
  }
}

/** The end of both directions: it comes once, whichever stream ends first. */
class Joint {
  readonly promise: Promise<RelayOutcome>;
  readonly lost: RelayOptions['lost'];
  readonly #onClose: RelayOptions['onClose'];
  readonly #resolve: (outcome: RelayOutcome) => void;
  #outcome: RelayOutcome | undefined;

  constructor(options: RelayOptions) {
    const { promise, resolve } = Promise.withResolvers<RelayOutcome>();
    this.promise = promise;
    this.lost = options.lost;
    this.#onClose = options.onClose;
    this.#resolve = resolve;
  }

  /** False when it is over already. */
  end(outcome: RelayOutcome): boolean {
    if (this.#outcome !== undefined) return false;
    this.#outcome = outcome;
    return true;
  }

  /** Tells of the end, once both streams are over. */
  done(): void {
    if (this.#outcome === undefined) return;
    this.#onClose?.(this.#outcome);
    this.#resolve(this.#outcome);
  }
}

/**
 * Joins a stream that a near client opened here with one that was opened to a far server, until either ends. Nothing may have been
 * written to or taken from them before; what came in meanwhile is passed on first. Each side's frames are held to the protocol
 * and to their credit; the JSON in them is not read, except for the code of an error.
 *
 * @returns how it ended; never rejects
 * @throws PlatformError `internal` when one of them is in use: close both then
 */
export const relay = (near: WireServerStream, far: WireStream, options: RelayOptions = {}): Promise<RelayOutcome> => {
  if (!(near instanceof Stream) || !(far instanceof Stream) || !near.isServer || far.isServer) {
    throw new PlatformError('internal', 'A relay joins a stream of a server with a stream of a client.');
  }
  const joint = new Joint(options);
  if (near.isOver) {
    joint.end({ end: 'reset' });
    far.reset();
    joint.done();
    return joint.promise;
  }
  const early = far.outcome;
  near.attach(new Relay(near, far, joint));
  far.attach(new Relay(far, near, joint));
  // The far stream may have ended before the two were joined; what it had sent is on its way by now.
  if (
    early !== undefined &&
    joint.end('error' in early ? { end: 'closed', code: early.error.code } : { end: 'closed' })
  ) {
    if ('error' in early) near.fail(early.error);
    else near.close(early.ok);
    joint.done();
  }
  return joint.promise;
};
