import { PlatformError } from '@dsec/contract';
import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import type { Context } from '../src/context.ts';
import { reportError } from '../src/report-error.ts';

function reported(error: unknown): string {
  const stderr = new PassThrough();
  reportError({ stderr } as unknown as Context, error);
  return String(stderr.read());
}

test('a detail that the advice names is printed, also when the message has its value', () => {
  const details = { field: 'policy', reason: 'is not JSON' };
  expect(reported(new PlatformError('invalid_argument', 'the policy in x.json is not JSON', { details }))).toBe(
    [
      'error: the policy in x.json is not JSON [invalid_argument]',
      '  field: policy',
      '  to do: Correct the field that `details.field` names.',
      '',
    ].join('\n'),
  );
});
