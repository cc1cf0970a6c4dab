import { PlatformError } from '@dsec/contract';

/** Why something cannot be copied. */
export class CopyFault extends Error {
  override readonly name = 'CopyFault';
  readonly reason: string;

  constructor(reason: string, message: string) {
    super(message);
    this.reason = reason;
  }
}

export const contextChanged = (cause?: unknown): PlatformError =>
  new PlatformError('build_failed', 'a file of the context changed while it was copied', {
    details: { reason: 'context_changed' },
    cause,
  });
