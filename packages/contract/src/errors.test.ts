import { expect, test } from 'vitest';
import { causeKinds, causeOf } from './cause.ts';
import { PlatformError } from './errors.ts';

test('a failed sandbox is held against the platform when its cause is, here and after a wire', () => {
  for (const kind of causeKinds) {
    const { infrastructure } = causeOf(kind, '');
    const error = new PlatformError('sandbox_failed', 'failed', { details: { cause: kind, infrastructure } });
    expect([kind, error.infrastructure]).toEqual([kind, infrastructure]);
    expect(PlatformError.fromWire(error.toWire()).infrastructure).toBe(infrastructure);
  }
  expect(new PlatformError('sandbox_failed', 'failed').infrastructure).toBe(true);
});

test('details put no blame on the platform that the code does not', () => {
  const details = { infrastructure: true };
  expect(new PlatformError('file_not_found', 'none', { details }).infrastructure).toBe(false);
});
