import { PlatformError } from '@dsec/contract';
import { expect, test } from 'vitest';
import { lackOf, parseNetwork } from './sandbox-network.ts';

test('a network is a CIDR of IPv4, or none', () => {
  expect(parseNetwork(undefined)).toEqual({ cidr: '198.18.0.0/15', isDemanded: false });
  expect(parseNetwork('none')).toEqual({ cidr: undefined, isDemanded: false });
  expect(parseNetwork('10.64.0.0/12')).toEqual({ cidr: '10.64.0.0/12', isDemanded: true });
});

test.each(['', 'off', '10.0.0.0', '10.0.0.1/24', '10.0.0.0/7', '10.0.0.0/29', 'fd00::/48', '10.0.0.0/33'])(
  'refuses %j as a network',
  (text) => {
    expect(() => parseNetwork(text)).toThrowError(
      expect.objectContaining({ code: 'config_invalid', details: { field: '--network' } }),
    );
  },
);

test('says what a daemon said last about why it did not start', () => {
  const failed = (output: string) =>
    new PlatformError('host_unsuitable', 'the egressd ended', { details: { missing: 'egressd', output } });
  expect(lackOf(failed('{"event":"x"}\n{"event":"not-started","message":"nft: no such table"}\n'))).toBe(
    'nft: no such table',
  );
  expect(lackOf(failed('{"event":"resolver.start","error":{"message":"address in use"}}'))).toBe('address in use');
  expect(lackOf(failed('Segmentation fault\n\n'))).toBe('Segmentation fault');
  expect(lackOf(failed(''))).toBe('the egressd ended');
});
