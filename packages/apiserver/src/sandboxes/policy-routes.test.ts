import { limits, PlatformError, type Policy } from '@dsec/contract';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Fixture, image, sandboxInfo, type Ask } from '../apiserver.fixture.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
  await fixture.services.environments.put({ name: 'debian', image });
});
afterEach(() => fixture[Symbol.asyncDispose]());

const rules = [{ action: 'allow', to: 'api.example.com', ports: [443, '8000-8080'] }] as const;
const policy: Policy = {
  profile: 'default',
  network: { default: 'deny', rules, services: { npm: false }, ipLiterals: true },
  phases: { solve: { default: 'deny', rules: [], services: {}, ipLiterals: true } },
  phase: null,
  version: 3,
  changedAtMs: 9,
};
const ask = (method: string, route: string, options: Ask = {}) =>
  fixture.ask(method, `/sandboxes/${fixture.sandboxId}/${route}`, options);
const keyOf = async (options: { readonly readOnly?: boolean; readonly builder?: boolean } = {}): Promise<string> =>
  (await fixture.services.keys.create({ project: 'default', name: 'k', readOnly: false, ...options })).key;

describe('the policy of a sandbox', () => {
  test('is shown, and comes back as the edge has it', async () => {
    fixture.edge.on('policy.get', () => Promise.resolve(policy));
    const answer = await ask('GET', 'policy', { key: await keyOf({ readOnly: true }) });
    expect([answer.status, answer.json()]).toEqual([200, policy]);
    expect(fixture.edge.last('policy.get')).toMatchObject({
      sandboxId: fixture.sandboxId,
      principal: { project: 'default', isBuilder: false },
    });
  });

  test('is replaced by what is sent, for whom the edge is told', async () => {
    fixture.edge.on('policy.set', () => Promise.resolve(policy));
    const update = { network: { rules }, version: 2 };
    for (const [key, isBuilder] of [
      [await keyOf(), false],
      [await keyOf({ builder: true }), true],
      [undefined, true],
    ] as const) {
      const answer = await ask('PUT', 'policy', { json: update, ...(key === undefined ? {} : { key }) });
      expect([answer.status, answer.json()]).toEqual([200, policy]);
      expect(fixture.edge.last('policy.set')).toMatchObject({ update, principal: { isBuilder } });
    }
  });

  test('goes to a phase, and out of it', async () => {
    fixture.edge.on('policy.phase', () => Promise.resolve(policy));
    for (const request of [{ phase: 'solve' }, { phase: null, version: 3 }]) {
      expect((await ask('POST', 'phase', { json: request })).status).toBe(200);
      expect(fixture.edge.last('policy.phase')).toMatchObject({ request });
    }
  });

  test('is not for those who may not change it', async () => {
    const key = await keyOf({ readOnly: true });
    expect((await ask('PUT', 'policy', { key, json: {} })).error).toMatchObject({ code: 'permission_denied' });
    expect((await ask('POST', 'phase', { key, json: { phase: null } })).error.code).toBe('permission_denied');
    expect((await ask('PUT', 'policy', { key: null, json: {} })).status).toBe(401);
    expect(fixture.edge.calls).toEqual([]);
    for (const [code, status] of [
      ['permission_denied', 403],
      ['sandbox_not_found', 404],
      ['policy_stale', 409],
      ['sandbox_not_ready', 409],
      ['sandbox_ended', 410],
      ['network_unavailable', 501],
      ['service_unknown', 400],
    ] as const) {
      fixture.edge.on('policy.set', () => Promise.reject(new PlatformError(code, 'no', { details: { version: 4 } })));
      const answer = await ask('PUT', 'policy', { json: {} });
      expect([answer.status, answer.error.code, answer.error.details]).toEqual([status, code, { version: 4 }]);
    }
  });

  test('that the edge makes up is not passed on', async () => {
    fixture.edge.on('policy.get', () => Promise.resolve({ ...policy, network: { default: 'deny' } }));
    expect((await ask('GET', 'policy')).error.code).toBe('protocol_error');
  });

  test.each<[string, string, string, unknown, string]>([
    [
      'PUT',
      'policy',
      'a rule without an action',
      { network: { rules: [{ to: '1.1.1.1' }] } },
      'network.rules.0.action',
    ],
    [
      'PUT',
      'policy',
      'another action',
      { network: { rules: [{ action: 'log', to: '1.1.1.1' }] } },
      'network.rules.0.action',
    ],
    ['PUT', 'policy', 'a member that there is none of', { network: { allow: [] } }, 'network.allow'],
    [
      'PUT',
      'policy',
      'junk among ports',
      { network: { rules: [{ ...rules[0], ports: [443, '80-'] }] } },
      'network.rules.0.ports.1',
    ],
    ['PUT', 'policy', 'a version of 0', { version: 0 }, 'version'],
    ['PUT', 'policy', 'what only the platform says', { changedAtMs: 1 }, 'changedAtMs'],
    ['PUT', 'policy', 'another profile than there are', { profile: 'root' }, 'profile'],
    [
      'PUT',
      'policy',
      'more rules than a policy has',
      { network: { rules: new Array(limits.networkRules + 1).fill(rules[0]) } },
      'network.rules',
    ],
    ['POST', 'phase', 'no phase', {}, 'phase'],
    ['POST', 'phase', 'another phase than there are', { phase: 'deploy' }, 'phase'],
  ])('%s %s refuses %s and names the field', async (method, route, _, json, field) => {
    const answer = await ask(method, route, { json });
    expect([answer.status, answer.error.code, answer.error.details['field']]).toEqual([400, 'invalid_argument', field]);
    expect(fixture.edge.calls).toEqual([]);
  });
});

test('a create carries its policy to the edge as it was sent', async () => {
  fixture.edge.on('sandbox.create', () => Promise.resolve(sandboxInfo(fixture.sandboxId)));
  const sent = { profile: 'strict', network: { rules }, phases: { setup: {} }, phase: 'setup' };
  const answer = await fixture.ask('POST', '/sandboxes', { json: { environment: 'debian', policy: sent } });
  expect(answer.status).toBe(201);
  expect(fixture.edge.last('sandbox.create')).toMatchObject({ request: { policy: sent } });
});
