import { lacking } from '@dsec/testkit';
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { DataDirectory } from './data-directory.ts';
import { keepServices } from './services-file.ts';

const lack = lacking('root');
const SERVICES = [
  { name: 'go', kind: 'goproxy', upstream: 'https://go.example', headers: { authorization: 'Bearer secret' } },
];

test('services are kept for root alone until others or none are named; a wrong file changes nothing', async (context) => {
  if (lack !== undefined) context.skip(lack);
  const directory = await mkdtemp(join(tmpdir(), 'dsec-services-'));
  try {
    const data = new DataDirectory(join(directory, 'data'));
    await mkdir(join(data.path, 'keys'), { recursive: true });
    expect(await keepServices(data, undefined)).toBeUndefined();
    const file = join(directory, 'services.json');
    await writeFile(file, JSON.stringify(SERVICES));
    const kept = await keepServices(data, file);
    if (kept === undefined) throw new Error('nothing is kept');
    expect(JSON.parse(await readFile(kept, 'utf8'))).toEqual(SERVICES);
    const { mode, uid } = await stat(kept);
    expect([mode & 0o777, uid]).toEqual([0o600, 0]);
    for (const wrong of ['{', '{}', JSON.stringify([...SERVICES, ...SERVICES]), '[{"name":"x","kind":"ftp"}]']) {
      await writeFile(file, wrong);
      await expect(keepServices(data, file)).rejects.toMatchObject({ code: 'config_invalid' });
    }
    await expect(keepServices(data, join(directory, 'nowhere'))).rejects.toMatchObject({ code: 'config_invalid' });
    expect(await keepServices(data, undefined)).toBe(kept);
    expect(JSON.parse(await readFile(kept, 'utf8'))).toEqual(SERVICES);
    expect(await keepServices(data, 'none')).toBeUndefined();
  } finally {
    await rm(directory, { recursive: true });
  }
});
