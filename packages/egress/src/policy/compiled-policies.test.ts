import type { NetworkPolicyRequest } from '@dsec/contract';
import { expect, test } from 'vitest';
import { CompiledPolicies } from './compiled-policies.ts';

const to = (address: string): NetworkPolicyRequest => ({ rules: [{ action: 'allow', to: address }] });
const chars = (policy: NetworkPolicyRequest): number => JSON.stringify(policy).length;

test('equal policies are compiled once, whoever asks', () => {
  const policies = new CompiledPolicies(new Set());
  const first = policies.of(to('192.0.2.1'));
  expect(policies.of(to('192.0.2.1'))).toBe(first);
  expect(policies.of(to('192.0.2.2'))).not.toBe(first);
  expect(first.compiled.rules).toEqual([{ cidr: '192.0.2.1', ranges: [['tcp', 0, 65_535, true]] }]);
});

test('what was used longest ago makes room, and what alone is too much is not kept', () => {
  const policies = new CompiledPolicies(new Set(), 2 * chars(to('192.0.2.1')));
  const [one, two] = [policies.of(to('192.0.2.1')), policies.of(to('192.0.2.2'))];
  expect(policies.of(to('192.0.2.1'))).toBe(one);
  policies.of(to('192.0.2.3'));
  expect(policies.of(to('192.0.2.1'))).toBe(one);
  expect(policies.of(to('192.0.2.2'))).not.toBe(two);
  const large = {
    rules: Array.from({ length: 9 }, (_, index) => ({ action: 'allow', to: `192.0.2.${index}` }) as const),
  };
  expect(policies.of(large)).not.toBe(policies.of(large));
  expect(policies.chars).toBe(0);
});

test('what is refused is refused again', () => {
  const policies = new CompiledPolicies(new Set(['npm']));
  for (let i = 0; i < 2; i++) {
    expect(() => policies.of({ services: { pypi: true } })).toThrow('pypi');
    expect(() => policies.of({ rules: [{ action: 'deny', to: 'a.example' }] })).toThrow('a.example');
  }
  expect(policies.chars).toBe(0);
});
