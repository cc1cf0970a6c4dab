import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { testPlace } from '../build.fixture.ts';
import { AuthFile } from './auth-file.ts';
import { failure } from './registry.fixture.ts';

const auth = (pair: string): { readonly auth: string } => ({ auth: Buffer.from(pair).toString('base64') });
const fileWith = (content: unknown): AuthFile => AuthFile.parse(JSON.stringify(content));
const ada = { kind: 'password', username: 'ada', password: 'a:b' };

describe('an auth file', () => {
  it('has accounts by the name of the registry, however that is written', () => {
    const file = fileWith({
      auths: {
        'https://index.docker.io/v1/': auth('ada:a:b'),
        'ghcr.io': auth('ada:a:b\0\0'),
        'https://quay.io': { username: 'ada', password: 'a:b' },
        'localhost:5000': { identitytoken: 'i' },
        'r.example': { auth: '', registrytoken: 'r' },
        'part.example/team': auth('ada:a:b'),
      },
      HttpHeaders: { 'User-Agent': 'Docker-Client' },
      credsStore: '',
    });
    for (const registry of ['docker.io', 'ghcr.io', 'quay.io']) expect(file.account(registry)).toEqual(ada);
    expect(file.account('localhost:5000')).toEqual({ kind: 'identity', token: 'i' });
    expect(file.account('r.example')).toEqual({ kind: 'bearer', token: 'r' });
    for (const registry of ['localhost', 'part.example', 'other']) expect(file.account(registry)).toBeUndefined();
  });

  it.each([
    ['credHelpers', { credHelpers: { 'gcr.io': 'gcloud' }, auths: { 'gcr.io': auth('ada:x') } }],
    ['credsStore', { credsStore: 'desktop', auths: { 'gcr.io': {} } }],
  ])('that leaves an account to a program says so, for that registry (%s)', (field, content) => {
    const file = fileWith(content);
    expect(() => file.account('gcr.io')).toThrow(
      expect.objectContaining({
        code: 'config_invalid',
        details: { field, registry: 'gcr.io', reason: 'credential_helper' },
      }),
    );
    expect(file.account('ghcr.io')).toBeUndefined();
  });

  it('that is malformed is refused, and none of it repeated', () => {
    for (const text of ['{"auths": {"a.b": {"auth": "geheim', '{"auths": {"a.b": {"auth": ["geheim"]}}}', '[]']) {
      expect(() => AuthFile.parse(text)).toThrow(expect.objectContaining({ code: 'config_invalid' }));
      expect(() => AuthFile.parse(text)).toThrow(/^(?!.*geheim)/);
    }
    const file = fileWith({ auths: { 'a.b': auth('geheim-without-a-colon') } });
    expect(() => file.account('a.b')).toThrow(/^(?!.*geheim)/);
  });

  it('is where docker has it, or where it is said to be', async () => {
    await using place = await testPlace();
    const text = JSON.stringify({ auths: { 'a.b': auth('ada:a:b') } });
    await mkdir(join(place.path, 'home', '.docker'), { recursive: true });
    const home = join(place.path, 'home');
    const named = join(place.path, 'auth.json');
    await writeFile(named, text);
    expect((await AuthFile.find({ path: named })).account('a.b')).toEqual(ada);
    expect((await AuthFile.find({ variables: { HOME: home } })).account('a.b')).toBeUndefined();
    await writeFile(join(home, '.docker', 'config.json'), text);
    expect((await AuthFile.find({ variables: { HOME: home } })).account('a.b')).toEqual(ada);
    const elsewhere = { HOME: home, DOCKER_CONFIG: place.path };
    expect((await AuthFile.find({ variables: elsewhere })).account('a.b')).toBeUndefined();
    await writeFile(join(place.path, 'config.json'), text);
    expect((await AuthFile.find({ variables: elsewhere })).account('a.b')).toEqual(ada);
    expect((await failure(AuthFile.find({ path: join(place.path, 'nothing') }))).code).toBe('file_not_found');
    expect((await failure(AuthFile.find({ path: place.path }))).code).toBe('config_invalid');
    await writeFile(named, ' '.repeat(1024 * 1024 + 1));
    expect((await failure(AuthFile.find({ path: named }))).code).toBe('config_invalid');
  });

  it('of any content is read or refused (fuzz)', () => {
    const entry = fc.record({ auth: fc.string(), username: fc.string() }, { requiredKeys: [] });
    const content = fc.record(
      { auths: fc.dictionary(fc.string(), fc.oneof(entry, fc.jsonValue())), credsStore: fc.string() },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(
        fc.oneof(
          fc.json(),
          content.map((value) => JSON.stringify(value)),
        ),
        fc.string(),
        (text, registry) => {
          try {
            AuthFile.parse(text).account(registry);
          } catch (error) {
            if (!PlatformError.is(error) || error.code !== 'config_invalid') throw error;
          }
        },
      ),
      { numRuns: 1000 },
    );
  });
});
