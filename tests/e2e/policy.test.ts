/** Policies of sandboxes on a node that gives them no network: what closes holds, and what opens is refused with the reason. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Policy, PolicyUpdate } from '@dsec/contract';
import { expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';

const server = useServer();

const rules = [{ action: 'deny', to: '10.0.0.0/8', protocol: 'tcp' }] as const;
const closed = {
  network: { rules },
  phases: { setup: {}, solve: { services: { npm: false } } },
} satisfies PolicyUpdate;
const opening = { network: { rules: [{ action: 'allow', to: 'api.example.com' }] } } as const satisfies PolicyUpdate;

test('a policy is kept with its version and phase, whatever is killed', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox({ policy: { ...closed, phase: 'setup' } });
  expect(await sandbox.policy.get()).toMatchObject({
    profile: 'default',
    version: 1,
    phase: 'setup',
    network: { rules },
  });
  expect(await sandbox.policy.phase('solve')).toMatchObject({ version: 2, phase: 'solve' });
  expect((await sandbox.info()).networkRules).toEqual({ npm: false });
  for (const [index, role] of (['edge', 'launcher', 'apiserver'] as const).entries()) {
    await server().kill(role);
    expect(await sandbox.policy.get()).toMatchObject({ version: 2 + index, phase: 'solve', network: { rules } });
    expect(await sandbox.policy.set({ ...closed, version: 2 + index })).toMatchObject({
      version: 3 + index,
      phase: 'solve',
    });
  }
  expect((await failureOf(sandbox.policy.set({ ...closed, version: 4 }))).code).toBe('policy_stale');
  expect((await sandbox.exec(['true'])).exitCode).toBe(0);
  await sandbox.stop();
  expect((await failureOf(sandbox.policy.get())).code).toBe('sandbox_ended');
  expect((await failureOf(sandbox.policy.phase('setup'))).code).toBe('sandbox_ended');
});

test('what would open something is refused with the reason, and the policy before stays in force', async () => {
  for (const args of [
    { networkRules: { pypi: true } },
    { policy: opening },
    { policy: { phases: { setup: opening.network } } },
  ]) {
    const failure = await failureOf(server().sandbox(args));
    expect([failure.code, failure.status, failure.retryable]).toEqual(['network_unavailable', 501, false]);
    expect(failure.details['reason']).toContain('egress');
  }
  await using sandbox = await server().sandbox({ networkRules: { pypi: false } });
  const failure = await failureOf(sandbox.policy.set(opening));
  expect(failure.code).toBe('network_unavailable');
  expect(await sandbox.policy.get()).toMatchObject({ version: 1, network: { services: { pypi: false }, rules: [] } });
  expect((await sandbox.exec(['sh', '-c', 'ls /sys/class/net'])).stdout).toBe('lo\n');
  expect((await server().client.sandboxes().toArray()).map(({ sandboxId }) => sandboxId)).toEqual([sandbox.sandboxId]);
});

test('only who made a sandbox, or a builder, changes its policy', async () => {
  const { keys } = server().client;
  const made = async (options: { readonly readOnly?: boolean; readonly builder?: boolean }) =>
    server().connect({ apiKey: (await keys.create('k', options)).key });
  const [maker, agent, reader, builder] = [
    await made({}),
    await made({}),
    await made({ readOnly: true }),
    await made({ builder: true }),
  ];
  await using sandbox = await maker.runContainer({ containerImage: server().environment, memoryLimitMb: 64 });
  const as = (client: typeof maker) => client.getSandbox(sandbox.sandboxId);
  for (const client of [agent, reader]) {
    const other = await as(client);
    expect(await other.policy.get()).toMatchObject({ version: 1 });
    expect(await failureOf(other.policy.set(closed))).toMatchObject({ code: 'permission_denied', status: 403 });
    expect(await failureOf(other.policy.phase(null))).toMatchObject({ code: 'permission_denied' });
  }
  expect(await sandbox.policy.set(closed)).toMatchObject({ version: 2 });
  expect(await (await as(builder)).policy.phase('solve')).toMatchObject({ version: 3, phase: 'solve' });
});

test('dsec policy shows, replaces and enters; what it shows can be set again', { timeout: 120_000 }, async () => {
  const directory = await mkdtemp(join(tmpdir(), 'dsec-policy-'));
  const dsec = async (...args: readonly string[]) => {
    const { exitCode, stdout, stderrTail } = await server().cli(args);
    return { exitCode, out: stdout.toString(), err: stderrTail };
  };
  try {
    const file = join(directory, 'policy.json');
    await writeFile(file, JSON.stringify(closed));
    const created = await dsec('create', server().environment, '-m', '64', '--policy', file, '--profile', 'default');
    const sandboxId = created.out.trim();
    await using _sandbox = await server().client.getSandbox(sandboxId);
    const shown = await dsec('policy', sandboxId);
    expect(shown.out).toMatch(
      /^version 1, profile default\n[\s\S]*deny +10\.0\.0\.0\/8 +tcp\n[\s\S]*phase solve: [\s\S]*deny +npm +service\n/,
    );
    expect(await dsec('policy', sandboxId, '--phase', 'setup')).toMatchObject({ exitCode: 0, out: '' });
    const json = (await dsec('policy', sandboxId, '--json')).out;
    const policy = JSON.parse(json) as Policy;
    expect(policy).toMatchObject({ version: 2, phase: 'setup', profile: 'default' });
    expect(JSON.parse((await dsec('inspect', sandboxId)).out)).toMatchObject({ policy });
    await writeFile(file, json);
    expect(JSON.parse((await dsec('policy', sandboxId, '--set', file, '--phase', 'none', '--json')).out)).toMatchObject(
      { version: 3, phase: null },
    );
    const stale = await dsec('policy', sandboxId, '--set', file);
    expect([stale.exitCode, stale.err]).toEqual([1, expect.stringContaining('[policy_stale]')]);
    const refused = await dsec('create', server().environment, '--allow', 'api.example.com:443');
    expect([refused.exitCode, refused.out, refused.err]).toEqual([
      1,
      '',
      expect.stringMatching(/\[network_unavailable\][\s\S]*to do: /),
    ]);
    for (const args of [
      ['--allow', 'pypi'],
      ['--profile', 'root'],
      ['--policy', join(directory, 'none')],
    ]) {
      expect((await dsec('create', server().environment, ...args)).exitCode).not.toBe(0);
    }
    const profiles = await dsec('policy', 'profiles');
    for (const name of ['strict', 'default', 'builder']) expect(profiles.out).toContain(`${name}: `);
    expect(Object.keys(JSON.parse((await dsec('policy', 'profiles', '--json')).out) as object)).toEqual([
      'strict',
      'default',
      'builder',
    ]);
  } finally {
    await rm(directory, { recursive: true });
  }
});
