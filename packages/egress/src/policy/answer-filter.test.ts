import { completeNetworkPolicy, parsePrefix, type NetworkRule } from '@dsec/contract';
import { describe, expect, test } from 'vitest';
import { mayAnswer, type AnswerFilter } from './answer-filter.ts';
import { compilePolicy } from './compile.ts';

const node = parsePrefix('198.18.16.0/20');
const filter = (...to: readonly string[]): AnswerFilter => {
  const rules = to.map((destination): NetworkRule => ({ action: 'allow', to: destination }));
  return {
    opened: compilePolicy(completeNetworkPolicy({ rules }, { field: 'network' }), { services: new Set() }).opened,
    nodeNetworks: node.ok ? [node.prefix] : [],
  };
};

describe('an answer with', () => {
  test.each(['93.184.216.34', '2606:2800:220:1::1'])('%s is given', (address) => {
    expect(mayAnswer(address, filter())).toBe(true);
  });

  const closed = ['10.0.0.1', '172.16.0.1', '192.168.1.1', '100.64.0.1', 'fc00::1', 'fd00::1'];
  test.each(closed)('%s, which is private, is dropped, even where all addresses are allowed', (address) => {
    expect(mayAnswer(address, filter())).toBe(false);
    expect(mayAnswer(address, filter('0.0.0.0/0', '::/0'))).toBe(false);
  });

  test('what is private is given when a rule names it', () => {
    expect(mayAnswer('10.1.2.3', filter('10.1.0.0/16'))).toBe(true);
    expect(mayAnswer('10.2.2.3', filter('10.1.0.0/16'))).toBe(false);
  });

  const never = [
    '127.0.0.1',
    '0.0.0.0',
    '169.254.169.254',
    '224.0.0.1',
    '255.255.255.255',
    '198.18.16.1',
    '::1',
    'fe80::1',
    'fd00:ec2::254',
    '::ffff:8.8.8.8',
    '64:ff9b::808:808',
    '2002:808:808::1',
    'no address',
  ];
  test.each(never)('%s is dropped whatever is allowed', (address) => {
    expect(mayAnswer(address, filter('0.0.0.0/0', '::/0', '198.18.0.0/15', 'fd00::/8'))).toBe(false);
  });
});
