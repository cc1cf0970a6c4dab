import { run, SystemClock } from '@dsec/kit';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { findDockerfile } from '../src/build-dockerfile.ts';
import { environmentName } from '../src/environment-name.ts';
import { readInput, readInputIfThere, statInput } from '../src/input-file.ts';

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-input-'));
});
afterEach(() => rm(directory, { recursive: true }));

const at = (name: string): string => join(directory, name);
const file = { what: 'recipe', maxBytes: 8 };

test('a file is read whole up to its limit, and absent is not unreadable', async () => {
  await writeFile(at('empty'), '');
  await writeFile(at('full'), '12345678');
  await writeFile(at('long'), '123456789');
  expect(await readInput(at('empty'), file)).toBe('');
  expect(await readInput(at('full'), file)).toBe('12345678');
  await expect(readInput(at('long'), file)).rejects.toMatchObject({ code: 'invalid_argument' });
  expect(await readInputIfThere(at('none'), file)).toBeUndefined();
  expect(await readInputIfThere(at('full/none'), file)).toBeUndefined();
});

test.each([
  ['a pipe without a writer', 'pipe', 'not_regular_file'],
  ['a link to a device without an end', 'zero', 'not_regular_file'],
  ['a directory', 'directory', 'is_directory'],
  ['a link to itself', 'loop', 'file_not_found'],
  ['a name that is too long', 'a'.repeat(5000), 'file_not_found'],
])('%s is refused and not read, also where none need be', async (_what, name, code) => {
  await run(['/usr/bin/mkfifo', at('pipe')], { clock: new SystemClock(), timeoutMs: 10_000 });
  await symlink('/dev/zero', at('zero'));
  await mkdir(at('directory'));
  await symlink('loop', at('loop'));
  await expect(readInput(at(name), file)).rejects.toMatchObject({ code });
  await expect(readInputIfThere(at(name), file)).rejects.toMatchObject({ code });
});

test('a path that the kernel refuses is a path to correct, also where a Dockerfile is looked for', async () => {
  await symlink('loop', at('loop'));
  for (const path of [at('loop'), at('a'.repeat(5000))]) {
    await expect(statInput(path, 'file')).rejects.toMatchObject({ code: 'file_not_found' });
    await expect(findDockerfile(path, undefined)).rejects.toMatchObject({ code: 'file_not_found' });
  }
});

test('a name that no environment can have is refused', () => {
  expect(environmentName('org/App__1:v2')).toBe('org/App__1:v2');
  for (const name of ['Bad Name', '', '../x', 'a\nb'])
    expect(() => environmentName(name)).toThrow(expect.objectContaining({ code: 'invalid_argument' }));
});
