import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { describe, expect, it } from 'vitest';
import { testPlace } from './build.fixture.ts';
import { hostAptSources } from './apt-sources.ts';
import { parseRecipe } from './recipe.ts';
import { recipeHooks } from './recipe-hooks.ts';

const environments = join(import.meta.dirname, '../../../environments');

const invalid = (text: string): PlatformError => {
  try {
    parseRecipe(text);
  } catch (error) {
    if (PlatformError.is(error)) return error;
    throw error;
  }
  throw new Error('the recipe was taken');
};

describe('a recipe', () => {
  it('of this repository is valid and bears the name of its file', async () => {
    const files = (await readdir(environments)).filter((name) => name.endsWith('.yaml'));
    expect(files).toEqual(expect.arrayContaining(['base.yaml', 'debian.yaml']));
    for (const file of files) {
      const recipe = parseRecipe(await readFile(join(environments, file), 'utf8'));
      expect(`${recipe.name}.yaml`).toBe(file);
    }
  });

  it.each([
    ['an unknown key', 'name: a\npackage: [git]', 'package'],
    ['an unknown key deeper down', 'name: a\nusers: [{name: u, uid: 5, home: /x}]', 'users.0.home'],
    ['no name', 'packages: [git]', 'name'],
    ['a name with a space', 'name: "a b"', 'name'],
    ['a package that is an option', 'name: a\npackages: ["--help"]', 'packages.0'],
    ['a package that is a path', 'name: a\npackages: [./x.deb]', 'packages.0'],
    ['a package with a comma', 'name: a\npackages: ["git,curl"]', 'packages.0'],
    ['a suite with shell characters', 'name: a\nsuite: "a;b"', 'suite'],
    ['an env key with shell characters', 'name: a\nenv: {"A$(x)": b}', 'env.A$(x)'],
    ['an env value that is no text', 'name: a\nenv: {A: 1}', 'env.A'],
    ['a mode that is a number', 'name: a\nfiles: [{path: /a, content: x, mode: 0644}]', 'files.0.mode'],
    ['a relative file path', 'name: a\nfiles: [{path: a, content: x}]', 'files.0.path'],
    ['a file path with ..', 'name: a\nfiles: [{path: /a/../b, content: x}]', 'files.0.path'],
    ['a file of two origins', 'name: a\nfiles: [{path: /a, content: x, source: y}]', 'files.0'],
    ['a file of no origin', 'name: a\nfiles: [{path: /a}]', 'files.0'],
    ['root among its users', 'name: a\nusers: [{name: u, uid: 0}]', 'users.0.uid'],
    ['a uid beyond the range', 'name: a\nusers: [{name: u, uid: 65534}]', 'users.0.uid'],
    ['a user twice', 'name: a\nusers: [{name: u, uid: 5}, {name: u, uid: 6}]', 'users'],
    ['a relative workdir', 'name: a\nworkdir: here', 'workdir'],
    ['an unknown kind', 'name: a\nkind: layer', 'kind'],
    ['trees of a base', 'name: a\ntrees: [{path: /a, source: b}]', 'trees'],
    ['packages of a toolkit', 'name: a\nkind: toolkit\npackages: [git]', 'packages'],
    ['commands of a workspace', 'name: a\nkind: workspace\ncommands: [ls]', 'commands'],
    ['a workdir of a toolkit', 'name: a\nkind: toolkit\nworkdir: /a', 'workdir'],
    ['a tree path with ..', 'name: a\nkind: toolkit\ntrees: [{path: /a/.., source: b}]', 'trees.0.path'],
    ['a key twice', 'name: a\nname: b', ''],
    ['YAML aliases', 'name: &x a\ndescription: *x', ''],
    ['no YAML', 'name: [', ''],
    ['nothing', '', ''],
    ['a list', '- a', ''],
    ['megabytes', `name: a\ndescription: ${'x'.repeat(5_000_000)}`, ''],
  ])('with %s is refused, the field named', (_, text, field) => {
    const error = invalid(text);
    expect(error.code).toBe('recipe_invalid');
    expect(error.details['field']).toBe(field);
  });

  it('with commands and env too long together is refused', () => {
    const recipe = parseRecipe(`name: a\ncommands: ["${'x'.repeat(60_000)}"]\nenv: {A: "${'y'.repeat(100_000)}"}`);
    expect(() => recipeHooks(recipe, [])).toThrow(expect.objectContaining({ code: 'recipe_invalid' }));
  });
});

describe('the apt sources of the machine', () => {
  const release = (id: string, codename: string) => `ID=${id}\nVERSION_CODENAME=${codename}\n`;

  const sourcesOf = async (
    files: Readonly<Record<string, string>>,
    osRelease: string,
    suite = 'host',
    components?: string[],
  ) => {
    await using place = await testPlace();
    await mkdir(join(place.path, 'sources.list.d'));
    for (const [name, content] of Object.entries(files)) await writeFile(join(place.path, name), content);
    await writeFile(join(place.path, 'os-release'), osRelease);
    return await hostAptSources(suite, components, {
      directory: place.path,
      osRelease: join(place.path, 'os-release'),
    });
  };

  const deb822 = [
    'Types: deb deb-src',
    '# a comment',
    'URIs: http://one.example/debian',
    'Suites: bookworm bookworm-updates bookworm-backports',
    'Components: main contrib',
    'Signed-By:',
    ' -----BEGIN PGP PUBLIC KEY BLOCK-----',
    ' .',
    ' AAAA',
    '',
    'Types: deb',
    'URIs: http://third.example/tools',
    'Suites: bookworm',
    'Components: stable',
    '',
    'Enabled: no',
    'Types: deb',
    'URIs: http://off.example/debian',
    'Suites: bookworm',
    'Components: main',
  ].join('\n');

  it('are those of the release alone, with their keys', async () => {
    const { suite, text } = await sourcesOf({ 'sources.list.d/a.sources': deb822 }, release('debian', 'bookworm'));
    expect(suite).toBe('bookworm');
    expect(text).toBe(
      [
        'types: deb',
        'uris: http://one.example/debian',
        'suites: bookworm bookworm-updates',
        'components: main contrib',
        'signed-by: ',
        ' -----BEGIN PGP PUBLIC KEY BLOCK-----',
        ' .',
        ' AAAA',
        '',
      ].join('\n'),
    );
  });

  it('are read from the one-line form too', async () => {
    const { text } = await sourcesOf(
      {
        'sources.list':
          '# old\ndeb [arch=amd64,arm64 signed-by=/k.gpg] http://one.example/ubuntu jammy main universe # x\ndeb-src http://one.example/ubuntu jammy main\n',
      },
      release('ubuntu', 'jammy'),
      'host',
      ['main'],
    );
    expect(text).toBe(
      'types: deb\nuris: http://one.example/ubuntu\nsuites: jammy\ncomponents: main\narchitectures: amd64 arm64\nsigned-by: /k.gpg\n',
    );
  });

  it('serve another release of the same distribution', async () => {
    const { suite, text } = await sourcesOf(
      { 'sources.list.d/a.sources': deb822 },
      release('debian', 'bookworm'),
      'trixie',
    );
    expect(suite).toBe('trixie');
    expect(text).toContain('suites: trixie trixie-updates\n');
  });

  it('that cannot make the release are a fault of the host', async () => {
    const files = { 'sources.list': 'deb http://one.example/ubuntu jammy main\n' };
    await expect(sourcesOf(files, release('ubuntu', 'jammy'), 'bookworm')).rejects.toMatchObject({
      code: 'host_unsuitable',
    });
    await expect(sourcesOf({}, '')).rejects.toMatchObject({ code: 'host_unsuitable' });
  });
});
