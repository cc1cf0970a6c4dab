import { expect, test } from 'vitest';
import { mountPoints, mountPointsIn } from './mounts.ts';

test('mount points are the paths that they are, whatever is in them', () => {
  const lines = [
    '22 1 0:21 / / rw - ext4 /dev/a rw',
    '40 22 0:3 /a /d\\040e\\134\\0110/ü rw shared:1 - tmpfs b rw',
    '',
  ];
  expect(mountPointsIn(lines.join('\n'))).toEqual(['/', '/d e\\\t0/ü']);
});

test('those of this process are told', async () => {
  expect(await mountPoints()).toContain('/proc');
});
