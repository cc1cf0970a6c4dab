import { PlatformError } from '@dsec/libdsec';
import { expect } from 'vitest';

/** The typed error with which something fails; anything else, and success, is a failure of the test. */
export async function failureOf(work: PromiseLike<unknown>): Promise<PlatformError> {
  let value: unknown;
  try {
    value = await work;
  } catch (error) {
    if (!PlatformError.is(error)) throw error;
    expectClean(error);
    return error;
  }
  throw new Error(`it did not fail, but gave ${JSON.stringify(value)?.slice(0, 500)}`);
}

/** Nothing of the inside of the platform is in an error: no stack, no source file, no path of the host. */
function expectClean(error: PlatformError): void {
  const told = JSON.stringify(error.toWire());
  expect(told).not.toMatch(/\bat \S+ \(|node_modules|\.ts:\d|\.rs:\d|\/run\/s\/|launcher\.sock|journal\.db/);
  expect(error.message.length).toBeGreaterThan(0);
}
