import { SystemClock, SystemRandom } from '@dsec/kit';
import { chmod, mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  accountVariables,
  blobSettingsOf,
  checkEdgeMayRead,
  keepBlobSettings,
  openCheckedStore,
  readBlobSettings,
} from '../src/server/blob-settings.ts';
import { DataDirectory } from '../src/server/data-directory.ts';

const parts = { clock: new SystemClock(), random: new SystemRandom() };
const account = { endpoint: 'http://127.0.0.1:9000', accessKeyId: 'id', secretAccessKey: 'secret' };

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-blob-'));
});
afterEach(() => rm(directory, { recursive: true, force: true }));

test('a directory is named by a path or a URL', async () => {
  const url = `file://${directory}`;
  for (const name of [directory, `${directory}/`, relative(process.cwd(), directory), url]) {
    expect((await blobSettingsOf(name, {})).url.replace(/\/$/, '')).toBe(url);
  }
  const named = join(process.cwd(), 'files:of a:team');
  expect((await blobSettingsOf('files:of a:team', {})).url).toBe(pathToFileURL(named).href);
});

test('the account of a bucket comes from variables, or a file that one of them names, and is kept for the edge alone', async () => {
  const file = join(directory, 'account.json');
  await writeFile(file, JSON.stringify({ ...account, region: 'eu' }));
  const url = 's3://layers/team';
  const variables = { DSEC_BLOB_FILE: file, DSEC_BLOB_ACCESS_KEY_ID: 'other', DSEC_BLOB_REGION: '' };
  const settings = await blobSettingsOf(url, variables);
  expect(settings).toEqual({ ...account, region: 'eu', accessKeyId: 'other', url });
  expect(accountVariables(settings)).toEqual({
    AWS_ENDPOINT_URL: account.endpoint,
    AWS_REGION: 'eu',
    AWS_ACCESS_KEY_ID: 'other',
    AWS_SECRET_ACCESS_KEY: 'secret',
  });
  const data = new DataDirectory(directory);
  expect(await readBlobSettings(data)).toBeUndefined();
  await mkdir(join(directory, 'keys'));
  if (process.getuid?.() !== 0) return;
  await keepBlobSettings(data, settings);
  expect(await readBlobSettings(data)).toEqual(settings);
  expect((await stat(data.blobFile)).mode & 0o777).toBe(0o440);
});

test.each([
  ['http://host/bucket', {}],
  ['s3://bucket', {}],
  ['s3://bucket', { DSEC_BLOB_ENDPOINT: account.endpoint, DSEC_BLOB_ACCESS_KEY_ID: 'id' }],
  ['s3://bucket', { DSEC_BLOB_FILE: '/no/such/file' }],
  ['s3://bucket', { DSEC_BLOB_FILE: '/proc/self/status' }],
  ['s3://bucket', { DSEC_BLOB_FILE: '/dev/zero' }],
  ['file://host/x', {}],
])('%s with %o is refused', async (url, variables) => {
  await expect(blobSettingsOf(url, variables)).rejects.toMatchObject({ code: 'config_invalid' });
});

test('of an account that nobody gave the error names the variable', async () => {
  const { endpoint } = account;
  for (const [variables, missing] of [
    [{}, 'DSEC_BLOB_ENDPOINT'],
    [{ DSEC_BLOB_ENDPOINT: endpoint }, 'DSEC_BLOB_ACCESS_KEY_ID'],
    [{ DSEC_BLOB_ENDPOINT: endpoint, DSEC_BLOB_ACCESS_KEY_ID: 'id' }, 'DSEC_BLOB_SECRET_ACCESS_KEY'],
  ] as const) {
    await expect(blobSettingsOf('s3://bucket', variables)).rejects.toMatchObject({
      message: expect.stringContaining(`set ${missing}`) as string,
      details: { field: missing },
    });
  }
});

test('what is kept and damaged is refused', async () => {
  const data = new DataDirectory(directory);
  await mkdir(join(directory, 'keys'));
  for (const text of ['', '[]', '{"url":"x"}']) {
    await writeFile(data.blobFile, text);
    await expect(readBlobSettings(data), text).rejects.toMatchObject({ code: 'config_invalid' });
  }
  expect(await readFile(data.blobFile, 'utf8')).toBe('{"url":"x"}');
});

test('a store must be there, and the edge must get to it', async () => {
  const store = join(directory, 'store');
  const settings = await blobSettingsOf(store, {});
  await expect(openCheckedStore(settings, parts)).rejects.toMatchObject({
    code: 'blob_unavailable',
    message: expect.stringContaining(`${store} is not there: mount it`) as string,
  });
  await mkdir(store, { mode: 0o755 });
  await openCheckedStore(settings, parts);
  await chmod(directory, 0o700);
  await expect(checkEdgeMayRead(settings)).rejects.toMatchObject({
    code: 'config_invalid',
    details: { field: '--blob', path: directory },
  });
  await chmod(directory, 0o711);
  await checkEdgeMayRead(settings);
  await chmod(store, 0o711);
  await expect(checkEdgeMayRead(settings)).rejects.toMatchObject({ code: 'config_invalid', details: { path: store } });
});
