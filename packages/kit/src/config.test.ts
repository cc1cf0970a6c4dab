import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Type } from 'typebox';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { loadConfig, printableConfig } from './config.ts';

const schema = Type.Object(
  {
    dataDir: Type.String(),
    port: Type.Integer({ minimum: 0, maximum: 65_535, default: 7070 }),
    isQuiet: Type.Optional(Type.Boolean()),
    mode: Type.Union([Type.Literal('a'), Type.Literal('b')], { default: 'a' }),
  },
  { additionalProperties: false },
);

let file: string;
let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'kit-config-'));
  file = join(directory, 'config.json');
});
afterAll(() => rm(directory, { recursive: true }));

const load = async (content: string, env: Record<string, string> = {}): Promise<unknown> => {
  await writeFile(file, content);
  return loadConfig(schema, { file, envPrefix: 'DSEC_TEST_', env });
};

test('takes defaults, then the file, then the variables', async () => {
  expect(await load('{"dataDir":"/a","mode":"b"}')).toEqual({ dataDir: '/a', port: 7070, mode: 'b' });
  expect(
    await load('{"dataDir":"/a"}', {
      DSEC_TEST_DATA_DIR: '/b',
      DSEC_TEST_PORT: '1',
      DSEC_TEST_IS_QUIET: 'true',
      DSEC_TEST_MODE: 'b',
      OTHER: 'x',
    }),
  ).toEqual({
    dataDir: '/b',
    port: 1,
    isQuiet: true,
    mode: 'b',
  });
});

test.each([
  ['an unknown key of the file', '{"dataDir":"/a","dataDri":"/b"}', {}, 'dataDri'],
  ['an unknown variable', '{"dataDir":"/a"}', { DSEC_TEST_DATADIR: '/b' }, 'DSEC_TEST_DATADIR'],
  ['a missing key', '{}', {}, 'dataDir'],
  ['a value out of range', '{"dataDir":"/a","port":70000}', {}, 'port'],
  ['a variable that is no number', '{"dataDir":"/a"}', { DSEC_TEST_PORT: 'many' }, 'DSEC_TEST_PORT'],
  ['a value that is none of the union', '{"dataDir":"/a","mode":"c"}', {}, 'mode'],
  ['a file that is no JSON', '{', {}, ''],
  ['a file that is no object', '[]', {}, ''],
])('refuses %s', async (_name, content, env, field) => {
  await expect(load(content, env)).rejects.toMatchObject({ code: 'config_invalid', details: { field } });
});

test('refuses a file that is not there', () => {
  expect(() => loadConfig(schema, { file: join(directory, 'none.json') })).toThrowError(
    expect.objectContaining({ code: 'config_invalid' }),
  );
});

test('does not print secrets', () => {
  expect(
    printableConfig({ adminKey: 'k', nested: { portToken: 't', keyId: 'id' }, list: [{ password: 'p' }] }),
  ).toEqual({
    adminKey: '[redacted]',
    nested: { portToken: '[redacted]', keyId: 'id' },
    list: [{ password: '[redacted]' }],
  });
});
