/** The policy of a sandbox from its create to its end, over a scripted launcher and a network in memory. */
import { PlatformError, type Policy, type PolicyRequest, type PolicyUpdate } from '@dsec/contract';
import type { WireClient } from '@dsec/native-link';
import { describe, expect, it } from 'vitest';
import type { JournalSink } from '../src/journal.ts';
import { JournalThread } from '../src/journal-thread.ts';
import { create, createMany, EdgeFixture, failureOf, get, stop, waitFor } from './edge-fixture.ts';
import { held, useScriptedNode } from './scripted-node.ts';

const on = useScriptedNode({ hasNetwork: true });

const OWNER = { keyId: 'k', project: 'p', isBuilder: false } as const;
const HERE = '192.0.2.7';
const THERE = '198.51.100.7';
const toHere: PolicyRequest = { network: { rules: [{ action: 'allow', to: HERE }] } };
const toThere: PolicyRequest = { network: { rules: [{ action: 'allow', to: THERE }] } };

const ask = async (client: WireClient, method: string, sandboxId: string, params: object = {}): Promise<Policy> =>
  (await client.call(method, { sandboxId, principal: OWNER, ...params })) as Policy;
const show = (sandboxId: string, params: object = {}) => ask(on.client, 'policy.get', sandboxId, params);
const set = (sandboxId: string, update: PolicyUpdate, params: object = {}) =>
  ask(on.client, 'policy.set', sandboxId, { update, ...params });
const enter = (sandboxId: string, phase: string | null, params: object = {}) =>
  ask(on.client, 'policy.phase', sandboxId, { request: { phase, ...params } });
const createWith = async (policy: PolicyRequest): Promise<string> =>
  (await create(on.client, { request: { policy } })).sandboxId;
const reaches = (sandboxId: string): readonly boolean[] =>
  [HERE, THERE].map((address) => on.network.reaches(sandboxId, address, 80));
const resolvConf = (sandboxId: string) => on.launcher.aether(sandboxId).files.get('/etc/resolv.conf');
const audit = () =>
  on.fixture.logger.records.filter(({ event }) => event === 'policy.change').map(({ fields }) => fields);

describe('a sandbox', () => {
  it('that is allowed nothing has no uplink, and costs the network no call', async () => {
    const { sandboxId, policy, networkRules } = await create(on.client, { request: { networkRules: { npm: false } } });
    expect([policy, networkRules]).toEqual([{ profile: 'default', phase: null, version: 1 }, { npm: false }]);
    await stop(on.client, sandboxId);
    expect(on.network.calls.filter((call) => call !== 'list')).toEqual([]);
    expect(on.launcher.created[0]).not.toHaveProperty('profile');
  });

  it('has its policy in force, and its resolver named, before its create is answered', async () => {
    const gate = held();
    on.network.script.open = () => gate.promise;
    const creating = createWith({ ...toHere, profile: 'builder' });
    await waitFor(() => on.network.calls.some((call) => call.startsWith('open')), 'the uplink');
    expect(await Promise.race([creating, Promise.resolve('waits')])).toBe('waits');
    gate.resolve();
    const sandboxId = await creating;
    expect(reaches(sandboxId)).toEqual([true, false]);
    expect(resolvConf(sandboxId)).toContain('nameserver 198.18.0.1\n');
    expect(on.launcher.created[0]).toMatchObject({ profile: 'builder' });
    expect(await show(sandboxId)).toMatchObject({ profile: 'builder', version: 1, network: { default: 'deny' } });
  });

  it('keeps its tripwires when its policy is replaced, and takes no others', async () => {
    const tripwires = ['/root/key', '/srv/answers'];
    const sandboxId = await createWith({ tripwires });
    expect(await show(sandboxId)).toMatchObject({ tripwires });
    expect(await set(sandboxId, toThere)).toMatchObject({ version: 2, tripwires });
    expect(await set(sandboxId, { tripwires })).toMatchObject({ version: 3, tripwires });
    const others = set(sandboxId, { tripwires: ['/root/key'] });
    await expect(others).rejects.toMatchObject({ details: { field: 'policy.tripwires' } });
  });

  it('opens the services of the short form, and says so', async () => {
    const { sandboxId, networkRules } = await create(on.client, {
      request: { networkRules: { pypi: true, cran: false } },
    });
    expect(networkRules).toEqual({ pypi: true, cran: false });
    expect(on.network.uplinks.get(sandboxId)?.policy.services).toEqual({ pypi: true, cran: false });
    const both = { networkRules: { npm: true }, policy: { network: { services: { pypi: true } } } };
    await expect(create(on.client, { request: both })).rejects.toMatchObject({
      code: 'invalid_argument',
      details: { field: 'networkRules' },
    });
  });

  it.each<[string, PolicyRequest, object]>([
    [
      'an unknown service',
      { network: { services: { cran: true } } },
      { code: 'service_unknown', details: { service: 'cran', services: ['npm', 'pypi'] } },
    ],
    ['one that only a phase opens', { phases: { setup: { services: { cran: true } } } }, { code: 'service_unknown' }],
    [
      'a rule that cannot be kept',
      { network: { rules: [{ action: 'deny', to: 'a.example' }] } },
      { code: 'invalid_argument', details: { field: 'policy.network.rules.0.to' } },
    ],
    [
      'a phase that it does not have',
      { phase: 'setup' },
      { code: 'invalid_argument', details: { field: 'policy.phase' } },
    ],
  ])('is not made with %s', async (_, policy, error) => {
    await expect(create(on.client, { request: { policy } })).rejects.toMatchObject(error);
    expect(on.launcher.created).toEqual([]);
    expect(await on.client.call('edge.info', {})).toMatchObject({ live: 0 });
  });

  it('is not made when its network cannot be, and nothing of it is left', async () => {
    on.network.script.open = () => Promise.reject(new PlatformError('no_capacity', 'no slot is free'));
    await expect(createWith(toHere)).rejects.toMatchObject({ code: 'no_capacity' });
    on.network.script.open = () => Promise.reject(new PlatformError('connection_lost', 'it broke'));
    await expect(createWith(toHere)).rejects.toMatchObject({ code: 'unavailable' });
    await waitFor(() => on.launcher.destroyed.length === 2 && on.network.uplinks.size === 0, 'the removal');
    expect(on.launcher.sandboxes.size).toBe(0);
  });

  it('shares its rules with those of the same bulk, as many as the node takes of them', async () => {
    const rules = Array.from({ length: 8192 }, () => ({ action: 'allow', to: HERE }) as const);
    const { items, result } = await createMany(on.client, 70, { request: { policy: { network: { rules } } } });
    expect(result).toEqual({ created: 64, failed: 6 });
    expect(items.filter((item) => 'error' in item).map((item) => 'error' in item && item.error)).toMatchObject(
      Array.from({ length: 6 }, () => ({ code: 'no_capacity', details: { resource: 'networkRules', limit: 524_288 } })),
    );
    const first = new Set(on.network.uplinks.values().map(({ policy }) => policy));
    expect(first.size).toBe(1);
    const wrong = await createMany(on.client, 2, { request: { policy: { phase: 'setup' } } });
    expect(wrong.items.map((item) => 'error' in item && item.error.code)).toEqual([
      'invalid_argument',
      'invalid_argument',
    ]);
  });

  it('leaves no uplink at its end, and is over only when that is closed', async () => {
    const sandboxId = await createWith(toHere);
    let failures = 2;
    on.network.script.close = () =>
      failures-- > 0 ? Promise.reject(new PlatformError('unavailable', 'away')) : Promise.resolve();
    expect(await stop(on.client, sandboxId)).toMatchObject({ state: 'stopped' });
    expect(on.network.uplinks.size).toBe(0);
    expect(failures).toBe(-1);
    await expect(show(sandboxId)).rejects.toMatchObject({ code: 'sandbox_ended' });
  });
});

describe('a change', () => {
  it('is in force when it is answered, makes the version one more, and is logged with who made it', async () => {
    const sandboxId = await createWith(toHere);
    expect(await set(sandboxId, toThere)).toMatchObject({ version: 2, network: { rules: [{ to: THERE }] } });
    expect(reaches(sandboxId)).toEqual([false, true]);
    expect(await set(sandboxId, {})).toMatchObject({ version: 3, network: { rules: [] } });
    expect(reaches(sandboxId)).toEqual([false, false]);
    expect((await get(on.client, sandboxId)).policy).toEqual({ profile: 'default', phase: null, version: 3 });
    expect(audit()).toMatchObject([
      { sandboxId, keyId: 'k', project: 'p', action: 'set', outcome: 'ok', fromVersion: 1, toVersion: 2 },
      { sandboxId, keyId: 'k', project: 'p', action: 'set', outcome: 'ok', fromVersion: 2, toVersion: 3 },
    ]);
  });

  it('opens the uplink of a sandbox that had none, and names the resolver once', async () => {
    const sandboxId = await createWith({});
    await set(sandboxId, toHere);
    expect(reaches(sandboxId)).toEqual([true, false]);
    expect(resolvConf(sandboxId)).toContain('nameserver 198.18.0.1');
    on.launcher.aether(sandboxId).files.clear();
    await set(sandboxId, {});
    await set(sandboxId, toThere);
    expect(reaches(sandboxId)).toEqual([false, true]);
    expect(resolvConf(sandboxId)).toBeUndefined();
  });

  it('that cannot be put in force leaves no device behind', async () => {
    const sandboxId = await createWith({});
    on.network.script.opened = () => Promise.reject(new PlatformError('invalid_argument', 'too many ranges of ports'));
    await expect(set(sandboxId, toHere)).rejects.toMatchObject({ code: 'invalid_argument' });
    expect(await show(sandboxId)).toMatchObject({ version: 1 });
    await waitFor(() => on.network.uplinks.size === 0, 'the removal of the device');
    await expect(createWith(toHere)).rejects.toMatchObject({ code: 'invalid_argument' });
    await waitFor(() => on.network.uplinks.size === 0, 'the removal of the other');
  });

  it('holds although the sandbox has broken its own resolv.conf', async () => {
    const sandboxId = await createWith({});
    on.launcher.aether(sandboxId).files.set = () => {
      throw new PlatformError('disk_full', 'it is full');
    };
    expect(await set(sandboxId, toHere)).toMatchObject({ version: 2 });
    expect(reaches(sandboxId)).toEqual([true, false]);
  });

  it('goes by phases, and only to those that the policy has', async () => {
    const phases = { setup: toHere.network ?? {}, solve: {} };
    const sandboxId = await createWith({ phases, phase: 'setup' });
    expect(reaches(sandboxId)).toEqual([true, false]);
    expect(await enter(sandboxId, 'solve')).toMatchObject({ phase: 'solve', version: 2 });
    expect(reaches(sandboxId)).toEqual([false, false]);
    expect(await enter(sandboxId, 'solve')).toMatchObject({ phase: 'solve', version: 2 });
    await expect(enter(sandboxId, 'verify')).rejects.toMatchObject({
      code: 'invalid_argument',
      details: { field: 'policy.phase' },
    });
    await expect(enter(sandboxId, 'deploy')).rejects.toMatchObject({ code: 'invalid_argument' });
    await expect(set(sandboxId, { phases: { setup: {} } })).rejects.toMatchObject({
      details: { field: 'policy.phase' },
    });
    expect(await set(sandboxId, { ...toThere, phases })).toMatchObject({ phase: 'solve', version: 3 });
    expect(reaches(sandboxId)).toEqual([false, false]);
    expect(await enter(sandboxId, null, { version: 3 })).toMatchObject({ phase: null, version: 4 });
    expect(reaches(sandboxId)).toEqual([false, true]);
  });

  it('based on another version than the one in force is refused', async () => {
    const sandboxId = await createWith({});
    await set(sandboxId, { ...toHere, version: 1 });
    await expect(set(sandboxId, { ...toThere, version: 1 })).rejects.toMatchObject({
      code: 'policy_stale',
      details: { version: 2 },
    });
    await expect(enter(sandboxId, null, { version: 1 })).rejects.toMatchObject({ code: 'policy_stale' });
    expect(reaches(sandboxId)).toEqual([true, false]);
  });

  it('comes after the one that is under way', async () => {
    const sandboxId = await createWith(toHere);
    const gate = held();
    on.network.script.change = () => gate.promise;
    const both = [
      set(sandboxId, toThere),
      set(sandboxId, toHere),
      failureOf(set(sandboxId, { ...toThere, version: 1 })),
    ];
    await waitFor(() => on.network.calls.at(-1) === `change ${sandboxId}`, 'the first change');
    gate.resolve();
    expect(await Promise.all(both)).toMatchObject([{ version: 2 }, { version: 3 }, { code: 'policy_stale' }]);
    expect(reaches(sandboxId)).toEqual([true, false]);
  });

  it.each<[string, PolicyUpdate, object]>([
    ['of the profile', { profile: 'strict' }, { code: 'invalid_argument', details: { field: 'policy.profile' } }],
    [
      'of the tripwires',
      { tripwires: ['/root/key'] },
      { code: 'invalid_argument', details: { field: 'policy.tripwires' } },
    ],
    ['to an unknown service', { network: { services: { cran: true } } }, { code: 'service_unknown' }],
    [
      'to a rule that cannot be kept',
      { network: { rules: [{ action: 'allow', to: '127.0.0.1' }] } },
      { code: 'invalid_argument' },
    ],
    [
      'to more rules than a policy has',
      { network: { rules: Array.from({ length: 8193 }, () => ({ action: 'deny', to: HERE }) as const) } },
      { code: 'invalid_argument' },
    ],
  ])('%s is refused and logged, and the policy before stays in force', async (_, update, error) => {
    const sandboxId = await createWith(toHere);
    await expect(set(sandboxId, update)).rejects.toMatchObject(error);
    expect(reaches(sandboxId)).toEqual([true, false]);
    expect(await show(sandboxId)).toMatchObject({ version: 1 });
  });

  it('takes 8,192 rules', async () => {
    const rules = Array.from(
      { length: 8192 },
      (_, index) => ({ action: 'allow', to: `10.${index >> 8}.${index & 255}.0/24` }) as const,
    );
    const sandboxId = await createWith({});
    expect((await set(sandboxId, { network: { rules } })).network.rules).toHaveLength(8192);
    expect(on.network.reaches(sandboxId, '10.31.255.9', 1)).toBe(true);
  });
});

describe('who may not', () => {
  it('change a policy learns it, and is logged; who is of another project learns nothing', async () => {
    const sandboxId = await createWith(toHere);
    const agent = { principal: { keyId: 'agent', project: 'p', isBuilder: false } };
    const builder = { principal: { keyId: 'other', project: 'p', isBuilder: true } };
    const stranger = { principal: { keyId: 'k', project: 'elsewhere', isBuilder: true } };
    expect(await show(sandboxId, agent)).toMatchObject({ version: 1 });
    await expect(set(sandboxId, toThere, agent)).rejects.toMatchObject({ code: 'permission_denied' });
    await expect(
      ask(on.client, 'policy.phase', sandboxId, { ...agent, request: { phase: null } }),
    ).rejects.toMatchObject({
      code: 'permission_denied',
    });
    for (const method of ['policy.get', 'policy.set', 'policy.phase']) {
      const params = { 'policy.get': {}, 'policy.set': { update: {} }, 'policy.phase': { request: { phase: null } } }[
        method
      ];
      await expect(ask(on.client, method, sandboxId, { ...params, ...stranger })).rejects.toMatchObject({
        code: 'sandbox_not_found',
      });
    }
    expect(reaches(sandboxId)).toEqual([true, false]);
    expect(await set(sandboxId, toThere, builder)).toMatchObject({ version: 2 });
    expect(audit().map(({ keyId, outcome }) => [keyId, outcome])).toEqual([
      ['agent', 'permission_denied'],
      ['agent', 'permission_denied'],
      ['k', 'sandbox_not_found'],
      ['k', 'sandbox_not_found'],
      ['other', 'ok'],
    ]);
  });
});

describe('a change at the wrong time', () => {
  it('is refused while the sandbox is made', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const creating = createWith(toHere);
    await waitFor(() => on.launcher.created.length === 1, 'the create');
    const sandboxId = String(on.launcher.created[0]?.id);
    await expect(set(sandboxId, toThere)).rejects.toMatchObject({ code: 'sandbox_not_ready' });
    gate.resolve();
    await creating;
    expect(reaches(sandboxId)).toEqual([true, false]);
  });

  it('is refused while the sandbox is stopped', async () => {
    const sandboxId = await createWith(toHere);
    const gate = held();
    on.launcher.script.destroy = () => gate.promise;
    const stopping = stop(on.client, sandboxId);
    await waitFor(async () => (await get(on.client, sandboxId)).state === 'stopping', 'the stop');
    await expect(set(sandboxId, toThere)).rejects.toMatchObject({
      code: 'sandbox_ended',
      details: { cause: 'stopped' },
    });
    gate.resolve();
    await stopping;
    expect(on.network.uplinks.size).toBe(0);
  });

  it('that the end overtakes is refused, and leaves nothing', async () => {
    const sandboxId = await createWith(toHere);
    const gate = held();
    on.network.script.changed = () => gate.promise;
    const changing = failureOf(set(sandboxId, toThere));
    await waitFor(() => on.network.calls.at(-1) === `change ${sandboxId}`, 'the change');
    const stopping = stop(on.client, sandboxId);
    await waitFor(() => on.launcher.destroyed.includes(sandboxId), 'the end');
    gate.resolve();
    expect(await changing).toMatchObject({ code: 'sandbox_ended' });
    expect(await stopping).toMatchObject({ state: 'stopped', policy: { version: 1 } });
    expect(on.network.uplinks.size).toBe(0);
  });
});

describe('a network that does not answer', () => {
  it('fails the change, and gets the policy of before when it is back', async () => {
    const sandboxId = await createWith(toHere);
    on.network.script.changed = () =>
      Promise.reject(new PlatformError('connection_lost', 'it broke after all was done'));
    await expect(set(sandboxId, toThere)).rejects.toMatchObject({ code: 'unavailable' });
    expect(await show(sandboxId)).toMatchObject({ version: 1, network: { rules: [{ to: HERE }] } });
    on.network.script.changed = () => Promise.resolve();
    await waitFor(() => reaches(sandboxId)[0] === true, 'the policy of before');
    expect(await set(sandboxId, toThere)).toMatchObject({ version: 2 });
  });

  it("is given every policy again when it comes back, and rid of what is nobody's", async () => {
    const [open, closed] = [await createWith(toHere), await createWith({})];
    on.network.goAway();
    await expect(set(open, toThere)).rejects.toMatchObject({ code: 'unavailable' });
    on.network.uplinks.clear();
    on.network.comeBack();
    await waitFor(() => reaches(open)[0] === true, 'the policy');
    expect([...on.network.uplinks.keys()]).toEqual([open]);
    await on.network.open(closed, { default: 'allow', rules: [], services: {}, ipLiterals: true });
    await on.launcher.addStray('stray');
    await on.network.open('stray', { default: 'allow', rules: [], services: {}, ipLiterals: true });
    on.network.comeBack();
    await waitFor(() => on.network.uplinks.size === 1, 'the end of the others');
    expect(reaches(closed)).toEqual([false, false]);
  });
});

describe('a restarted edge', () => {
  it('keeps policies with their versions, and puts them in force again', async () => {
    const sandboxId = await createWith({ ...toHere, phases: { solve: {} } });
    await set(sandboxId, { ...toThere, phases: { solve: {} } });
    on.network.uplinks.clear();
    await on.restart();
    await waitFor(() => reaches(sandboxId)[1] === true, 'the policy');
    expect(await show(sandboxId)).toMatchObject({ version: 2, phase: null, network: { rules: [{ to: THERE }] } });
    expect(resolvConf(sandboxId)).toContain('nameserver');
    expect(await enter(sandboxId, 'solve')).toMatchObject({ version: 3 });
    await on.restart();
    await waitFor(() => reaches(sandboxId)[1] === false, 'the phase');
    expect(await show(sandboxId)).toMatchObject({ version: 3, phase: 'solve' });
    await stop(on.client, sandboxId);
    expect(on.network.uplinks.size).toBe(0);
  });

  it('closes what a sandbox without a permission has left open', async () => {
    const sandboxId = await createWith({});
    await on.fixture[Symbol.asyncDispose]();
    await on.network.open(sandboxId, { default: 'allow', rules: [], services: {}, ipLiterals: true });
    on.fixture = await EdgeFixture.start(on.options());
    await waitFor(() => on.network.uplinks.size === 0, 'the closing');
  });

  it('reads what it wrote before there were policies', async () => {
    const { sandboxId } = await create(on.client, { request: { networkRules: { npm: false } } });
    await on.fixture[Symbol.asyncDispose]();
    on.fixture = await EdgeFixture.start({ ...on.options(), journal: new OldJournal(await JournalThread.start(fail)) });
    expect(await show(sandboxId)).toMatchObject({
      profile: 'default',
      version: 1,
      network: { services: { npm: false } },
    });
  });
});

describe('a journal that cannot be written', () => {
  it('fails the change, and the policy before is in force again', async () => {
    await on.fixture[Symbol.asyncDispose]();
    const sink = new FailingJournal(await JournalThread.start(fail));
    on.fixture = await EdgeFixture.start({ ...on.options(), journal: sink });
    const sandboxId = await createWith(toHere);
    sink.isFull = true;
    await expect(set(sandboxId, toThere)).rejects.toMatchObject({ code: 'disk_full' });
    expect(await show(sandboxId)).toMatchObject({ version: 1 });
    await waitFor(() => reaches(sandboxId)[0] === true, 'the policy of before');
    sink.isFull = false;
    expect(await set(sandboxId, toThere)).toMatchObject({ version: 2 });
  });
});

it('a change that was not journalled is not there after a restart, although something else of its sandbox was', async () => {
  await on.fixture[Symbol.asyncDispose]();
  const sink = new HeldJournal(await JournalThread.start(fail));
  on.fixture = await EdgeFixture.start({ ...on.options(), journal: sink });
  const sandboxId = await createWith(toHere);
  sink.gate = held();
  const changing = failureOf(set(sandboxId, toThere));
  await waitFor(() => sink.isHeld, 'the record of the change');
  const patching = on.client.call('sandbox.patch', { sandboxId, patch: { ttlSeconds: 1000 } });
  // Answered in order: the record of the patch waits behind the other.
  await get(on.client, sandboxId);
  sink.gate.reject(new PlatformError('disk_full', 'no room'));
  expect(await changing).toMatchObject({ code: 'disk_full' });
  await patching;
  await on.fixture.edge.lifecycle.parts.journal.idle();
  await on.restart();
  expect(await show(sandboxId)).toMatchObject({ version: 1, network: { rules: [{ to: HERE }] } });
});

const fail = (error: Error): never => {
  throw error;
};

/** Passes everything on. */
class OtherJournal implements JournalSink {
  readonly #journal: JournalSink;
  constructor(journal: JournalSink) {
    this.#journal = journal;
  }
  open(...args: Parameters<JournalSink['open']>): ReturnType<JournalSink['open']> {
    return this.#journal.open(...args);
  }
  commit(...args: Parameters<JournalSink['commit']>): ReturnType<JournalSink['commit']> {
    return this.#journal.commit(...args);
  }
  compositions(...args: Parameters<JournalSink['compositions']>): ReturnType<JournalSink['compositions']> {
    return this.#journal.compositions(...args);
  }
  close(): Promise<void> {
    return this.#journal.close();
  }
}

class FailingJournal extends OtherJournal {
  isFull = false;
  override commit(...args: Parameters<JournalSink['commit']>): Promise<void> {
    if (this.isFull) return Promise.reject(new PlatformError('disk_full', 'no room'));
    return super.commit(...args);
  }
}

/** Holds the next transaction until the gate lets it go on or fail. */
class HeldJournal extends OtherJournal {
  gate: PromiseWithResolvers<void> | undefined;
  isHeld = false;
  override async commit(...args: Parameters<JournalSink['commit']>): Promise<void> {
    if (this.gate !== undefined && !this.isHeld) {
      this.isHeld = true;
      await this.gate.promise;
    }
    await super.commit(...args);
  }
}

/** Shows its records as version 1 had them. */
class OldJournal extends OtherJournal {
  override async open(...args: Parameters<JournalSink['open']>): ReturnType<JournalSink['open']> {
    const opened = await super.open(...args);
    const bodies = opened.bodies.map((body) => {
      const { policy, ...rest } = JSON.parse(body) as { policy: Policy };
      return JSON.stringify({ ...rest, version: 1, networkRules: policy.network.services });
    });
    return { ...opened, bodies };
  }
}
