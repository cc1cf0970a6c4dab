import { ManualClock, Scope, SeededRandom } from '@dsec/kit';
import { EmbeddedStore, MAX_TXN_OPERATIONS, type Store } from '@dsec/store';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { hashSecret, storeKeyOf } from './key-record.ts';
import { Keys, MAX_KEYS } from './keys.ts';
import { DEFAULT_PROJECT, requireRight, type Right } from './principal.ts';

const ADMIN_SECRET = 'dsec_admin';
const unauthenticated = expect.objectContaining({ code: 'unauthenticated' }) as Error;

let store: EmbeddedStore;
let scope: Scope;
let clock: ManualClock;
beforeEach(() => {
  store = EmbeddedStore.open({ path: ':memory:', history: 5 });
  clock = new ManualClock();
  scope = new Scope({ clock });
});
afterEach(async () => {
  await scope.close();
  await store.close();
});

const open = (source: Store = store, seed = 1): Promise<Keys> =>
  Keys.open({ store: source, clock, scope, random: new SeededRandom(seed), adminKeySha256: hashSecret(ADMIN_SECRET) });
const request = { project: DEFAULT_PROJECT, name: 'mine', readOnly: false };

describe('Keys', () => {
  test('knows the admin key before there is any other, and no other', async () => {
    const keys = await open();
    expect(keys.authenticate(ADMIN_SECRET)).toEqual({
      keyId: 'admin',
      name: 'admin',
      project: 'default',
      right: 'admin',
    });
    for (const secret of ['', 'dsec_', 'dsec_admin ', 'x'.repeat(10_000), hashSecret(ADMIN_SECRET)]) {
      expect(() => keys.authenticate(secret)).toThrowError(unauthenticated);
    }
  });

  test('makes keys that work at once and says what they may do', async () => {
    const keys = await open();
    const full = await keys.create(request);
    const reader = await keys.create({ ...request, name: 'reader', readOnly: true });
    expect(full.key).toMatch(/^dsec_[0-9a-z]{48}$/);
    expect(keys.authenticate(full.key)).toEqual({
      keyId: full.info.keyId,
      name: 'mine',
      project: 'default',
      right: 'write',
    });
    expect(keys.authenticate(reader.key)).toMatchObject({ right: 'read' });
    expect(
      keys
        .list('default')
        .map(({ name }) => name)
        .toSorted(),
    ).toEqual(['mine', 'reader']);
    expect(keys.list('other')).toEqual([]);
  });

  test('keeps no secret in the store', async () => {
    const keys = await open();
    const { key } = await keys.create(request);
    expect(JSON.stringify(await store.range(''))).not.toContain(key.slice(5));
  });

  test('of as many as there may be, forgets a revoked one for a new one, and never a live one', async () => {
    const record = (index: number) => ({
      version: 1,
      keyId: `key_${String(index).padStart(16, '0')}`,
      project: DEFAULT_PROJECT,
      name: 'n',
      readOnly: true,
      builder: false,
      sha256: hashSecret(String(index)),
      createdAtMs: 1,
      revokedAtMs: index < 2 ? 9 - index : null,
    });
    const records = Array.from({ length: MAX_KEYS }, (_, index) => record(index));
    while (records.length > 0) {
      const operations = records
        .splice(0, MAX_TXN_OPERATIONS)
        .map((value) => ({ kind: 'put' as const, key: storeKeyOf(value.keyId), value: JSON.stringify(value) }));
      await store.txn([], operations);
    }
    const keys = await open();
    for (const left of [[record(0).keyId], []]) {
      const made = await keys.create(request);
      expect(keys.authenticate(made.key)).toMatchObject({ keyId: made.info.keyId });
      const revoked = keys.list(DEFAULT_PROJECT).filter(({ revokedAtMs }) => revokedAtMs !== null);
      expect(revoked.map(({ keyId }) => keyId)).toEqual(left);
    }
    await expect(keys.create(request)).rejects.toMatchObject({
      code: 'quota_exceeded',
      details: { resource: 'keys', limit: MAX_KEYS, current: MAX_KEYS },
    });
    expect(keys.list(DEFAULT_PROJECT)).toHaveLength(MAX_KEYS);
  });

  test('refuses a revoked key at once, and for good', async () => {
    const keys = await open();
    const { key, info } = await keys.create(request);
    await clock.advance(1000);
    const revoked = await keys.revoke('default', info.keyId);
    expect(revoked.revokedAtMs).toBe(clock.now());
    expect(() => keys.authenticate(key)).toThrowError(unauthenticated);
    await clock.advance(1000);
    expect(await keys.revoke('default', info.keyId)).toEqual(revoked);
    const again = await open();
    expect(() => again.authenticate(key)).toThrowError(unauthenticated);
  });

  test('finds only keys of the project that asks', async () => {
    const keys = await open();
    const { info } = await keys.create(request);
    await expect(keys.revoke('other', info.keyId)).rejects.toMatchObject({ code: 'key_not_found' });
    await expect(keys.revoke('default', 'knone')).rejects.toMatchObject({ code: 'key_not_found' });
    await expect(keys.revoke('default', 'admin')).rejects.toMatchObject({ code: 'key_not_found' });
  });

  test('follows what another process writes to the store', async () => {
    const here = await open();
    const there = await open(store, 2);
    const { key, info } = await there.create(request);
    await expect.poll(() => here.list('default').length).toBe(1);
    expect(here.authenticate(key)).toMatchObject({ keyId: info.keyId });
    await there.revoke('default', info.keyId);
    await expect.poll(() => here.list('default')[0]?.revokedAtMs).not.toBeNull();
    expect(() => here.authenticate(key)).toThrowError(unauthenticated);
    await store.delete(storeKeyOf(info.keyId));
    await expect.poll(() => here.list('default')).toEqual([]);
  });

  test('reads everything anew when it fell behind the history of the store', async () => {
    const there = await open(store, 2);
    const here = await open();
    const made = await Promise.all(Array.from({ length: 12 }, () => there.create(request)));
    await expect.poll(() => here.list('default').length).toBe(12);
    for (const { key } of made) expect(here.authenticate(key).right).toBe('write');
  });
});

test.each<[Right, Right, boolean]>([
  ['read', 'read', true],
  ['read', 'write', false],
  ['read', 'admin', false],
  ['write', 'read', true],
  ['write', 'write', true],
  ['write', 'admin', false],
  ['admin', 'read', true],
  ['admin', 'write', true],
  ['admin', 'admin', true],
])('a key with right %s asking for %s: %s', (right, wanted, isAllowed) => {
  const attempt = (): void => requireRight({ keyId: 'k', name: 'n', project: 'default', right }, wanted);
  if (isAllowed) expect(attempt).not.toThrow();
  else expect(attempt).toThrowError(expect.objectContaining({ code: 'permission_denied' }) as Error);
});
