import { lacking } from '@dsec/testkit';
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { APISERVER_USER, DataDirectory } from './data-directory.ts';
import { keepWebhook } from './webhook-file.ts';

const lack = lacking('root');
const SETTINGS = { url: 'https://alerts.example/dsec', secret: `whsec_${'A'.repeat(32)}`, kinds: ['tripwire'] };

test('a webhook is kept for the apiserver alone until another or none is named; a wrong file changes nothing', async (context) => {
  if (lack !== undefined) context.skip(lack);
  const directory = await mkdtemp(join(tmpdir(), 'dsec-webhook-'));
  try {
    const data = new DataDirectory(join(directory, 'data'));
    await mkdir(join(data.path, 'keys'), { recursive: true });
    expect(await keepWebhook(data, undefined)).toBeUndefined();
    const file = join(directory, 'webhook.json');
    await writeFile(file, JSON.stringify(SETTINGS));
    const kept = await keepWebhook(data, file);
    if (kept === undefined) throw new Error('nothing is kept');
    const { mode, uid } = await stat(kept);
    expect([mode & 0o777, uid]).toEqual([0o400, APISERVER_USER.uid]);
    for (const wrong of ['{', '{}', JSON.stringify({ ...SETTINGS, secret: 'short' }), '{"url":"ftp://x"}']) {
      await writeFile(file, wrong);
      await expect(keepWebhook(data, file)).rejects.toMatchObject({ code: 'config_invalid' });
    }
    await expect(keepWebhook(data, join(directory, 'nowhere'))).rejects.toMatchObject({ code: 'file_not_found' });
    expect(await keepWebhook(data, undefined)).toBe(kept);
    expect(JSON.parse(await readFile(kept, 'utf8'))).toEqual(SETTINGS);
    expect(await keepWebhook(data, 'none')).toBeUndefined();
  } finally {
    await rm(directory, { recursive: true });
  }
});
