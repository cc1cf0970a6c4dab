import { CreateSandboxSchema, ExecRequestSchema } from '@dsec/contract';
import { Type } from 'typebox';
import { expect, test } from 'vitest';
import { compileSchema } from './schema.ts';

const create = compileSchema(CreateSandboxSchema);
const exec = compileSchema(ExecRequestSchema);

test.each([
  [{}, 'environment', 'is missing'],
  [{ environment: 'a', memory: 1 }, 'memory', 'is not a known or well-formed name'],
  [{ environment: 'a', memoryMib: 0 }, 'memoryMib', 'must be >= 16'],
  [{ environment: 'a', memoryMib: '64' }, 'memoryMib', 'must be integer'],
  [{ environment: 'a', memoryMib: -1 }, 'memoryMib', 'must be >= 16'],
  [{ environment: 'a', memoryMib: 1e30 }, 'memoryMib', 'must be <= 1048576'],
  [{ environment: '../a' }, 'environment', 'does not have the required form'],
  [{ environment: 'a', backend: 'docker' }, 'backend', 'must be one of "container", "microvm", "fullvm", "fncall"'],
  [{ environment: 'a', env: { 'a$(b)': 'x' } }, 'env.a$(b)', 'is not a known or well-formed name'],
  [{ environment: 'a', env: { a: 1 } }, 'env.a', 'must be string'],
  [
    { environment: 'a', metadata: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`k${i}`, ''])) },
    'metadata',
    'must not have more than 64 properties',
  ],
  [null, '', 'must be object'],
  [[], '', 'must be object'],
])('names the field of %j', (value, field, reason) => {
  expect(() => create.parse(value)).toThrowError(
    expect.objectContaining({ code: 'invalid_argument', details: { field, reason } }),
  );
});

test('changes nothing of what it lets through', () => {
  const value = { environment: 'a', env: { A: '\u00e9\u{1f600}"\n' }, metadata: { 'k=&': 'v' } };
  const before = structuredClone(value);
  expect(create.parse(value)).toBe(value);
  expect(value).toEqual(before);
});

test('refuses NUL in arguments and takes everything else', () => {
  expect(exec.is({ argv: ['a\0b'] })).toBe(false);
  expect(exec.is({ argv: ['a', '', ' ', '\n', '$(rm -rf /)', '\u{1f600}'] })).toBe(true);
});

test('takes a script of 2 MB in less than 100 ms', () => {
  const value = { shell: 'echo \u00e9\n'.repeat(290_000) };
  const startedMs = performance.now();
  expect(exec.is(value)).toBe(true);
  expect(performance.now() - startedMs).toBeLessThan(100);
});

test('cuts a long name from outside', () => {
  const empty = compileSchema(Type.Object({}, { additionalProperties: false }));
  expect(() => empty.parse({ ['x'.repeat(10_000)]: 1 })).toThrowError(/^.{0,200}$/);
});
