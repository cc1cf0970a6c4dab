import { chmod, link, mkdir, symlink, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { ByteString } from '@dsec/erofs';
import { describe, expect, it } from 'vitest';
import { checkLayer, mounted, opened, testPlace, tool } from './build.fixture.ts';
import { parseRecipe } from './recipe.ts';
import { buildRecipe } from './recipe-build.ts';

const codeOf = async (work: Promise<unknown>): Promise<string> => {
  const error: unknown = await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  return PlatformError.is(error) ? `${error.code} ${String(error.details['field'])}` : String(error);
};

describe('a toolkit or workspace', () => {
  it('is its files and trees, as they are, and belongs to root', async () => {
    await using place = await testPlace();
    const source = join(place.path, 'kit');
    await mkdir(join(source, 'bin/empty'), { recursive: true });
    await writeFile(join(source, 'bin/tool'), '#!/bin/sh\n', { mode: 0o755 });
    await writeFile(Buffer.concat([Buffer.from(`${source}/bin/`), Buffer.from([0xff, 0x0a])]), 'odd');
    await writeFile(join(source, 'large'), Buffer.alloc(700_000, 'x'));
    await link(join(source, 'large'), join(source, 'same'));
    await symlink('bin/tool', join(source, 'short'));
    await symlink('/no/where', join(source, 'broken'));
    await chmod(join(source, 'bin'), 0o2750);
    await utimes(join(source, 'bin/tool'), 1_000_000_000, 1_000_000_000.25);
    await tool('mkfifo', join(source, 'fifo'));
    await writeFile(join(place.path, 'motd'), 'hello\n');
    const recipe = parseRecipe(`
name: kit:1
kind: toolkit
trees: [{path: /opt/kit, source: kit}]
files:
  - {path: /root/.bashrc, content: "alias k=tool\\n", mode: "0600", owner: "1000:100"}
  - {path: /etc/motd, source: motd}
  - {path: /opt/kit/bin/tool2, content: "2"}
  - {path: /opt/kit/large, content: small}
env: {PATH: /opt/kit/bin}
`);
    const build = () => buildRecipe(place.context, { recipe, directory: place.path });
    const built = await build();
    expect(built.config).toEqual({
      env: { PATH: '/opt/kit/bin' },
      user: '',
      workdir: '',
      entrypoint: [],
      cmd: [],
      labels: {},
    });
    await checkLayer(place.context, built);
    await using image = await opened(place.context, built);
    const paths = (await image.paths()).map((path) => ByteString.toText(ByteString.fromText(path)));
    expect(paths.filter((path) => !path.includes('\ufffd'))).not.toContain('opt/kit/fifo');
    expect([
      await image.text('opt/kit/bin/tool'),
      await image.text('etc/motd'),
      await image.text('opt/kit/large'),
    ]).toEqual(['#!/bin/sh\n', 'hello\n', 'small']);
    expect(await image.text('opt/kit/same')).toBe('x'.repeat(700_000));
    const at = join(place.path, 'mnt');
    await using _ = await mounted(place.context, built, at);
    const { stdout } = await tool('find', at, '-mindepth', '1', '-printf', '%P %m %U:%G %T@ %l\\n');
    const lines = stdout.toString().split('\n');
    expect(lines).toEqual(
      expect.arrayContaining([
        'opt/kit/bin/tool 755 0:0 1000000000.2500000000 ',
        expect.stringMatching(/^opt\/kit\/bin 2750 0:0 /),
        expect.stringMatching(/^opt\/kit\/bin\/empty 755 0:0 /),
        expect.stringMatching(/^opt\/kit\/short 777 0:0 .* bin\/tool$/),
        expect.stringMatching(/^opt\/kit\/broken 777 0:0 .* \/no\/where$/),
        expect.stringMatching(/^root 700 0:0 /),
        'root/.bashrc 600 1000:100 0.0000000000 ',
      ]),
    );
    // Equal content is an equal layer.
    expect((await build()).layers).toEqual(built.layers);
  });

  it('of no files is an empty layer', async () => {
    await using place = await testPlace();
    const recipe = parseRecipe('name: w\nkind: workspace\nworkdir: /project');
    const built = await buildRecipe(place.context, { recipe, directory: place.path });
    expect(built.config.workdir).toBe('/project');
    await checkLayer(place.context, built);
  });

  it.each([
    ['a tree that is not there', 'trees: [{path: /a, source: no}]', 'recipe_invalid trees.0.source'],
    ['a tree that is a file', 'trees: [{path: /a, source: file}]', 'recipe_invalid trees.0.source'],
    ['a tree outside', 'trees: [{path: /a, source: ../..}]', 'recipe_invalid trees.0.source'],
    ['a file outside', 'files: [{path: /a, source: /etc/hostname}]', 'recipe_invalid files.0.source'],
    ['a file that is a directory', 'files: [{path: /a, source: .}]', 'recipe_invalid files.0.source'],
    ['an owner by name', 'files: [{path: /a, content: x, owner: games}]', 'recipe_invalid files.0.owner'],
    ['an owner beyond the range', 'files: [{path: /a, content: x, owner: "70000"}]', 'recipe_invalid files.0.owner'],
  ])('with %s is refused and leaves nothing', async (_name, text, code) => {
    await using place = await testPlace();
    await writeFile(join(place.path, 'file'), 'x');
    const recipe = parseRecipe(`name: a\nkind: toolkit\n${text}`);
    expect(await codeOf(buildRecipe(place.context, { recipe, directory: place.path }))).toBe(code);
    expect(await place.layers()).toEqual([]);
  });
});
