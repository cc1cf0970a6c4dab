import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { allowedDestinations, policyFile } from '../src/policy-file.ts';
import { sandboxArgs, type SandboxOptions } from '../src/sandbox-options.ts';

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-policy-'));
});
afterEach(() => rm(directory, { recursive: true }));

const file = async (content: string): Promise<string> => {
  const path = join(directory, 'policy.json');
  await writeFile(path, content);
  return path;
};

test.each([
  ['api.example.com', { to: 'api.example.com' }],
  ['*.example.com:8443', { to: '*.example.com', ports: [8443] }],
  ['10.0.0.0/8:20-30', { to: '10.0.0.0/8', ports: ['20-30'] }],
  ['192.0.2.1:53/udp', { to: '192.0.2.1', ports: [53], protocol: 'udp' }],
  ['192.0.2.1:53/tcp', { to: '192.0.2.1', ports: [53] }],
  ['2001:db8::/32', { to: '2001:db8::/32' }],
  ['[2001:db8::1]:443', { to: '2001:db8::1', ports: [443] }],
  ['[2001:db8::1]', { to: '2001:db8::1' }],
])('--allow %s is a rule', (text, rule) => {
  expect(allowedDestinations(text)).toEqual([{ action: 'allow', ...rule }]);
  expect(allowedDestinations('a.example', allowedDestinations(text))).toHaveLength(2);
});

test.each([
  '',
  ':443',
  'pypi',
  'a b.example',
  'a.example:',
  'a.example:http',
  'a.example:80/sctp',
  'a.example:1-2-3',
  'https://a.example',
  '[2001:db8::1',
  '10.0.0.1/8',
])('--allow %j is refused', (text) => {
  expect(() => allowedDestinations(text)).toThrow(/\.$/);
});

test('a policy is read from a file, also as the API has shown it', async () => {
  const update = { network: { rules: [{ action: 'allow', to: 'a.example' }] }, phase: null, version: 4 };
  expect(policyFile(await file(JSON.stringify({ ...update, changedAtMs: 1 })))).toEqual(update);
});

test.each([
  ['{', 'is not JSON'],
  ['[]', ''],
  ['null', ''],
  ['{"rules": []}', 'rules'],
  ['{"network": {"rules": [{"action": "allow"}]}}', 'network.rules.0.to'],
  ['{"network": {"rules": [{"action": "deny", "to": "a.example"}]}}', 'network.rules.0.to'],
  ['{"network": {"rules": [{"action": "allow", "to": "1.1.1.1", "ports": ["9-8"]}]}}', 'network.rules.0.ports'],
  ['{"phase": "setup"}', 'phase'],
  [`{"network": {"services": {"a": ${' '.repeat(4_000_000)}true}}}`, 'is larger'],
])('a file with %.60s is refused', async (content, message) => {
  const path = await file(content);
  expect(() => policyFile(path)).toThrow(
    expect.objectContaining({ code: 'invalid_argument', message: expect.stringContaining(message) as string }) as Error,
  );
});

test('a file that is not there is refused', () => {
  expect(() => policyFile(join(directory, 'none'))).toThrow('cannot be read');
});

test('options beside a file are added to it, and contradict it nowhere', () => {
  const args = (options: Partial<SandboxOptions>) => {
    const { policy, networkRules } = sandboxArgs('debian', { backend: 'container', ...options });
    return { policy, networkRules };
  };
  const rule = { action: 'deny', to: '10.0.0.0/8' } as const;
  const allow = allowedDestinations('a.example');
  expect(args({})).toEqual({});
  expect(args({ network: { npm: true } })).toEqual({ networkRules: { npm: true } });
  expect(args({ allow })).toEqual({ policy: { network: { rules: allow } } });
  expect(args({ profile: 'strict' })).toEqual({ policy: { profile: 'strict', network: {} } });
  expect(
    args({
      allow,
      network: { npm: true },
      profile: 'builder',
      policy: { network: { rules: [rule], services: { npm: false, pypi: true } }, phases: { solve: {} }, version: 7 },
    }),
  ).toEqual({
    policy: {
      profile: 'builder',
      network: { rules: [rule, ...allow], services: { npm: true, pypi: true } },
      phases: { solve: {} },
    },
  });
  expect(() => args({ profile: 'strict', policy: { profile: 'builder' } })).toThrow('another profile');
});
