import { SystemClock, SystemRandom } from '@dsec/kit';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { readObject } from './object-store.ts';
import { BUCKET, S3Server } from './s3-server.fixture.ts';
import { checkStore, openStore, parseBlobSettings, storeDirectory } from './store-settings.ts';

const parts = { clock: new SystemClock(), random: new SystemRandom() };
const account = { endpoint: 'http://127.0.0.1:1', accessKeyId: 'id', secretAccessKey: 'secret' };

test.each([
  ['nothing', undefined],
  ['no object', 'file:///x'],
  ['no URL', {}],
  ['a path', { url: '/x' }],
  ['another scheme', { url: 'http://host/x' }],
  ['a file of another host', { url: 'file://host/x' }],
  ['a bucket without an account', { url: 's3://bucket' }],
  ['a bucket without a secret', { ...account, url: 's3://bucket', secretAccessKey: undefined }],
  ['no bucket', { ...account, url: 's3://' }],
  ['a bucket of a wrong form', { ...account, url: 's3://Bucket_' }],
  ['a prefix of a wrong form', { ...account, url: 's3://bucket/../x' }],
  ['an endpoint with a path', { ...account, url: 's3://bucket', endpoint: 'http://host/x' }],
  ['an unknown member', { url: 'file:///x', password: 'x' }],
])('%s is no blob store', (_, value) => {
  expect(() => parseBlobSettings(value)).toThrow(expect.objectContaining({ code: 'config_invalid' }));
});

test('a directory is opened by its URL, and one that is away is unavailable', async () => {
  const root = await mkdtemp(join(tmpdir(), 'dsec settings-'));
  const settings = parseBlobSettings({ url: pathToFileURL(root).href });
  expect(storeDirectory(settings)).toBe(root);
  const store = openStore(settings, parts);
  await checkStore(store);
  await rm(root, { recursive: true });
  await expect(checkStore(store)).rejects.toMatchObject({ code: 'blob_unavailable' });
});

test('a bucket is opened with its account, and a prefix of it is a store of its own', async () => {
  await using server = await S3Server.start(parts.clock);
  const settings = { ...server.account, endpoint: `${server.endpoint}/`, url: `s3://${BUCKET}/team/a` };
  const store = openStore(parseBlobSettings(settings), parts);
  await checkStore(store);
  for (const key of ['layers/1', 'layers/2', 'layers/3']) await store.put(key, Buffer.from(key));
  expect([...server.objects.keys()]).toEqual(['team/a/layers/1', 'team/a/layers/2', 'team/a/layers/3']);
  const first = await store.list('layers/', { limit: 2 });
  expect(first.objects.map(({ key }) => key)).toEqual(['layers/1', 'layers/2']);
  const rest = await store.list('layers/', { cursor: first.cursor });
  expect(rest.objects.map(({ key }) => key)).toEqual(['layers/3']);
  expect(await store.head('layers/1')).toMatchObject({ key: 'layers/1', sizeBytes: 8 });
  expect((await readObject(store, 'layers/2', { maxBytes: 100 }))?.toString()).toBe('layers/2');
  await store.delete('layers/2');
  expect(await store.head('layers/2')).toBeUndefined();
  const other = openStore(parseBlobSettings({ ...settings, url: `s3://${BUCKET}/team/b` }), parts);
  expect((await other.list('')).objects).toEqual([]);
});
