import { expect, it } from 'vitest';
import { aPolicy, aRecord } from '../tests/records.ts';
import { decodeRecord, encodeRecord, endedPolicy } from './sandbox-record.ts';

it('a record of before there were policies closes what it closed', () => {
  const { policy: _policy, ...rest } = aRecord('sa');
  const old = { ...rest, version: 1, networkRules: { npm: false } };
  const policy = aPolicy({ network: { default: 'deny', rules: [], services: { npm: false }, ipLiterals: true } });
  expect(decodeRecord(JSON.stringify(old))).toEqual(aRecord('sa', { policy }));
  expect(() => decodeRecord(JSON.stringify({ ...old, networkRules: { npm: 'no' } }))).toThrow('policy');
  expect(() => decodeRecord(JSON.stringify({ ...rest, version: 1 }))).toThrow('policy');
  expect(() => decodeRecord('null')).toThrow('a record of the journal');
});

it('a record keeps a policy whole, and of a sandbox that has ended no rules', () => {
  const rules = [{ action: 'allow', to: 'a.example', ports: [443, '8000-8080'], protocol: 'tcp' }] as const;
  const network = { default: 'allow', rules, services: { npm: true }, ipLiterals: true } as const;
  const policy = aPolicy({ profile: 'builder', network, phases: { solve: network }, phase: 'solve', version: 7 });
  expect(decodeRecord(encodeRecord(aRecord('sa', { policy })))).toEqual(aRecord('sa', { policy }));
  expect(endedPolicy(policy)).toEqual(
    aPolicy({
      profile: 'builder',
      network: { default: 'deny', rules: [], services: { npm: true }, ipLiterals: true },
      version: 7,
    }),
  );
});
