/** Time and chance as the SDK sees them. Injected, so that a test or a simulation can drive both. */
export interface Timing {
  /** Milliseconds of a clock that never goes backwards. */
  monotonicMs(): number;
  /** Calls `fire` once after `delayMs`, unless the returned function is called before. */
  timer(delayMs: number, fire: () => void): () => void;
  /** A number in [0, 1), for the jitter of retries. */
  random(): number;
  /** A text that nobody else has: an idempotency key. */
  uniqueKey(): string;
}

/**
 * The clock of this process. The SDK has its own because it also runs in browsers, where the Node parts of the platform
 * cannot be loaded; nothing else in it reads a clock.
 */
export const systemTiming: Timing = {
  // oxlint-disable-next-line no-restricted-properties -- the one clock of the SDK, which is injected from here
  monotonicMs: () => performance.now(),
  timer: (delayMs, fire) => {
    // oxlint-disable-next-line no-restricted-globals -- the one timer of the SDK, which is injected from here
    const handle = setTimeout(fire, Math.min(delayMs, MAX_TIMER_MS));
    return () => clearTimeout(handle);
  },
  // oxlint-disable-next-line no-restricted-properties -- jitter needs no secrecy; ids come from WebCrypto
  random: () => Math.random(),
  // Pages that were not fetched over TLS have no randomUUID, which is ten times as fast.
  uniqueKey: () => crypto.randomUUID?.() ?? hex(crypto.getRandomValues(new Uint8Array(16))),
};

/** The longest delay that `setTimeout` takes (a signed 32-bit number); a longer one would fire at once. */
const MAX_TIMER_MS = 2_147_483_647;

const hex = (bytes: Uint8Array): string => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
