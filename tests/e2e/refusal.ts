import { errorTable, isErrorCode } from '@dsec/contract';
import { expect } from 'vitest';

/** The code of a refusal, whose body is complete and shows nothing of the inside. */
export async function refusal(answer: Response | Promise<Response>): Promise<string> {
  const { status, headers, ...rest } = await readAll(await answer);
  expect(headers.get('content-type')).toMatch(/^application\/json/);
  const body = JSON.parse(rest.text) as { readonly error?: Readonly<Record<string, unknown>> };
  const { error } = body;
  expect(Object.keys(error ?? {}).toSorted()).toEqual([
    'code',
    'details',
    'fix',
    'infrastructure',
    'message',
    'requestId',
    'retryable',
  ]);
  const code = String(error?.['code']);
  expect(isErrorCode(code)).toBe(true);
  if (isErrorCode(code)) expect(status).toBe(errorTable[code].status);
  expect(rest.text).not.toMatch(/node_modules|\bat \S+ \(|\.ts:\d|\.rs:\d|\/run\/|\.sock|SQLITE/);
  expect(String(error?.['requestId']).length).toBeGreaterThan(0);
  return code;
}

async function readAll(
  answer: Response,
): Promise<{ readonly status: number; readonly headers: Headers; readonly text: string }> {
  return { status: answer.status, headers: answer.headers, text: await answer.text() };
}
