import { expect, test } from 'vitest';
import { findingsOf } from './examine-kernel.ts';

const check = (name: string, ok: boolean, detail: string, required = true): object => ({ name, ok, required, detail });

test('what is refused to a user who is not root is not called missing from the kernel', () => {
  const findings = findingsOf({
    checks: [
      check('root', false, 'does not run as root'),
      check('kernel', false, '5.10.0'),
      check('pidfd', true, 'works'),
      check('erofs-file', false, 'Operation not permitted (1)'),
      check('kvm', false, '/dev/kvm: Permission denied (os error 13)', false),
    ],
  });
  expect(findings.map(({ name, isPresent, detail }) => [name, isPresent, detail])).toEqual([
    ['kernel: kernel', false, '5.10.0'],
    ['kernel: pidfd', true, 'works'],
    ['kernel: the rest', false, 'only root can try erofs-file, kvm'],
  ]);
});

test('what is refused to root is missing', () => {
  const findings = findingsOf({
    checks: [check('root', true, 'runs as root'), check('user-namespaces', false, 'Operation not permitted (1)')],
  });
  expect(findings).toEqual([
    expect.objectContaining({ name: 'kernel: user-namespaces', isPresent: false, isNeeded: true }),
  ]);
});
