import { chmod, mkdir, symlink, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { PlatformError } from '@dsec/contract';
import { describe, expect, it } from 'vitest';
import { hostArchitecture } from '../host-architecture.ts';
import { tarOf } from '../tar/tar.fixture.ts';
import { dockerfilePlace, type DockerfilePlace } from './dockerfile.fixture.ts';
import type { StepEvent } from './dockerfile-build.ts';

const outcomes = (events: readonly StepEvent[]): readonly string[] =>
  events.filter(({ outcome }) => outcome !== 'begun').map(({ instruction, outcome }) => `${instruction} ${outcome}`);

const commands = ({ ran }: DockerfilePlace): string[] => ran.splice(0).map(({ argv }) => argv.at(-1) ?? '');

describe('a build', () => {
  it('has the settings that the instructions say, on top of those of the base', async () => {
    await using place = await dockerfilePlace();
    const { image } = await place.build(
      [
        'ARG global=g',
        'FROM base',
        'ARG global given=unused own=o$global',
        'ENV a=1 b=2',
        'ENV a=3 old=$a$b$of PATH=/opt:$PATH',
        'ENV said=$global-$given-$own',
        'WORKDIR /srv',
        'WORKDIR sub/../deep',
        'USER app:50',
        'LABEL x="y $a" "z.z"=1',
        'EXPOSE 80 $a/udp 8000-8001',
        'SHELL ["/bin/bash", "-ec"]',
        'CMD run $it',
      ].join('\n'),
      { buildArgs: { given: 'from outside' } },
    );
    expect(image.config).toEqual({
      env: { PATH: '/opt:/usr/bin', of: 'base', a: '3', b: '2', old: '12base', said: 'g-from outside-og' },
      user: 'app:50',
      workdir: '/srv/deep',
      entrypoint: [],
      cmd: ['/bin/bash', '-ec', 'run $it'],
      labels: { x: 'y 3', 'z.z': '1' },
      exposedPorts: ['80/tcp', '3/udp', '8000/tcp', '8001/tcp'],
    });
    expect(await place.text(image, 'srv')).toBe('deep there up');
  });

  it('forgets the command of the base with an ENTRYPOINT of its own, but not one that it says itself', async () => {
    await using place = await dockerfilePlace();
    const own = await place.build('FROM base\nCMD ["mine"]\nENTRYPOINT ["x"]');
    expect([own.image.config.entrypoint, own.image.config.cmd]).toEqual([['x'], ['mine']]);
    const without = await place.build('FROM base\nENTRYPOINT x');
    expect([without.image.config.entrypoint, without.image.config.cmd]).toEqual([['/bin/sh', '-c', 'x'], []]);
  });

  it('runs commands on the layers so far, with the variables of ENV before those of ARG', async () => {
    await using place = await dockerfilePlace();
    const { image } = await place.build(
      'FROM base\nARG of=arg x=1\nARG unset\nUSER app\nWORKDIR /srv\nRUN one\nRUN ["two", "a b"]\nRUN nothing',
      { buildArgs: { http_proxy: 'http://proxy' } },
    );
    expect(place.ran.map(({ argv, env, line }) => [line, argv, env])).toEqual([
      [6, ['/bin/sh', '-c', 'one'], { http_proxy: 'http://proxy', PATH: '/usr/bin', of: 'base', x: '1' }],
      [7, ['two', 'a b'], expect.anything()],
      [8, ['/bin/sh', '-c', 'nothing'], expect.anything()],
    ]);
    expect(place.ran[1]?.image.config).toMatchObject({ user: 'app', workdir: '/srv' });
    // The base, and one for each command that has changed something.
    expect(image.layers).toHaveLength(3);
    expect(image.layers.slice(1)).toEqual(place.ran[1]?.image.layers);
    expect(await place.text(image, 'ran')).toBe('a-b one');
  });

  it('runs documents by the shell, by the program that they name, or as input', async () => {
    await using place = await dockerfilePlace();
    await place.build(
      'FROM base\nRUN <<A\na $x\nA\nRUN <<A\n#!/usr/bin/env -S python3 -u\nb\nA\nRUN cat <<A >/x && <<-"B" y\nc\nA\n\td\nB',
    );
    expect(place.ran.map(({ argv, script }) => [argv, script?.content])).toEqual([
      [['/bin/sh', '-c', 'a $x\n'], undefined],
      [['/usr/bin/env', '-S python3 -u', expect.stringContaining('/dev/shm/')], '#!/usr/bin/env -S python3 -u\nb\n'],
      [['/bin/sh', '-c', 'cat <<A >/x && <<-"B" y\nc\nA\nd\nB'], undefined],
    ]);
  });

  it('copies from the context, as a COPY says', async () => {
    await using place = await dockerfilePlace();
    await place.write({
      'a.txt': 'a',
      'b.txt': 'b',
      'dir/one': '1',
      'dir/deep/two': '2',
      'dir/left.out': 'x',
      'with space': 's',
    });
    await chmod(join(place.context, 'a.txt'), 0o751);
    await symlink('one', join(place.context, 'dir/link'));
    await symlink('dir', join(place.context, 'to-dir'));
    const { image } = await place.build(
      [
        'FROM base',
        'COPY a.txt /srv',
        'COPY *.txt /all/',
        'COPY dir /copied',
        'COPY --chown=app:staff --chmod=0640 dir/deep /owned/x',
        'COPY --chown=app a.txt /owned/a',
        'COPY to-dir /through/',
        'COPY a.txt /bin/tool',
        'COPY ["with space", "/"]',
        'COPY . /everything/',
        'WORKDIR /w',
        'COPY b.txt c',
        'COPY <<A <<"B" b.txt /docs/',
        'of ${of}, "quoted" \\$',
        'A',
        'of ${of}',
        'B',
      ].join('\n'),
      { dockerignore: '**/*.out\n# comment\nb*\n!b.txt' },
    );
    expect(await place.text(image, 'srv/a.txt')).toBe('a');
    expect(await place.text(image, 'srv/there')).toBe('of the base');
    expect(await place.text(image, 'all')).toBe('a.txt b.txt');
    expect(await place.text(image, 'copied')).toBe('deep link one');
    expect(await place.text(image, 'copied/link')).toBe('-> one');
    expect(await place.text(image, 'through')).toBe('deep link one');
    expect(await place.text(image, 'bin')).toBe('-> usr/bin');
    expect(await place.text(image, 'usr/bin/tool')).toBe('a');
    expect(await place.text(image, 'with space')).toBe('s');
    expect(await place.text(image, 'everything')).toBe('a.txt b.txt dir to-dir with space');
    expect(await place.text(image, 'w/c')).toBe('b');
    expect(await place.text(image, 'docs/A')).toBe('of base, "quoted" $\n');
    expect(await place.text(image, 'docs/B')).toBe('of ${of}\n');
    const metadata = async (path: string) => {
      const { mode, uid, gid } = (await place.node(image, path))?.metadata ?? {};
      return [mode, uid, gid];
    };
    expect(await metadata('srv/a.txt')).toEqual([0o751, 0, 0]);
    expect(await metadata('owned/x/two')).toEqual([0o640, 1000, 50]);
    expect(await metadata('owned')).toEqual([0o755, 1000, 50]);
    expect(await metadata('owned/a')).toEqual([0o751, 1000, 1001]);
    // A directory that was there keeps what it was.
    expect(await metadata('usr/bin')).toEqual([0o711, 0, 0]);
  });

  it('copies from stages and other environments, with the owners that the files have there', async () => {
    await using place = await dockerfilePlace();
    const { image, events } = await place.build(
      [
        'FROM base AS one',
        'RUN make it',
        'FROM base AS unused',
        'RUN never',
        'FROM one AS two',
        'RUN more',
        'FROM base',
        'COPY --from=two /ran /out/',
        'COPY --from=0 --chown=0 /ran/m* /first/',
        'COPY --from=base /srv/there /other',
        'COPY --from=one /srv/up/passwd /accounts',
      ].join('\n'),
    );
    expect(commands(place)).toEqual(['make it', 'more']);
    expect(outcomes(events).filter((each) => each.startsWith('FROM'))).toHaveLength(3);
    expect(await place.text(image, 'out')).toBe('make-it more');
    expect((await place.node(image, 'out/more'))?.metadata).toMatchObject({ uid: 1000, mode: 0o600 });
    expect((await place.node(image, 'first/make-it'))?.metadata).toMatchObject({ uid: 0 });
    expect(await place.text(image, 'other')).toBe('of the base');
    expect(await place.text(image, 'accounts')).toContain('app:');
    // Nothing of the stages but what was copied.
    expect(await place.text(image, 'ran')).toBeUndefined();
  });

  it('ends with the stage that is asked for, and makes only what that needs', async () => {
    await using place = await dockerfilePlace();
    const text = 'FROM base AS a\nRUN a\nFROM base AS b\nRUN b\nFROM a\nCOPY --from=b /ran /x';
    await place.build(text, { target: 'B' });
    expect(commands(place)).toEqual(['b']);
    await place.build(text, { target: '0' });
    expect(commands(place)).toEqual(['a']);
  });

  it('unpacks archives of ADD, and copies with COPY what they are', async () => {
    await using place = await dockerfilePlace();
    const tar = tarOf({ name: 'in/file', content: 'x', uid: 7 }, { name: 'srv', type: '5' });
    await place.write({
      'a.tar': tar,
      'a.tgz': gzipSync(tar),
      'plain.gz': gzipSync('no archive'),
      'odd.gz': '\x1f\x8bodd',
    });
    const { image } = await place.build(
      'FROM base\nADD a.tar /\nADD a.tgz /two/\nADD plain.gz odd.gz /files/\nCOPY a.tar /files/',
    );
    expect(await place.text(image, 'in/file')).toBe('x');
    expect((await place.node(image, 'two/in/file'))?.metadata.uid).toBe(7);
    expect(await place.text(image, 'srv/there')).toBe('of the base');
    expect(await place.text(image, 'files')).toBe('a.tar odd.gz plain.gz');
  });

  it('may begin with nothing', async () => {
    await using place = await dockerfilePlace();
    await place.write({ tool: 'static' });
    const { image } = await place.build('FROM scratch\nCOPY tool /tool\nENTRYPOINT ["/tool"]');
    expect(await place.text(image, '/')).toBe('dev etc proc run sys tmp tool');
    expect(image.config).toMatchObject({ user: 'root', workdir: '/', entrypoint: ['/tool'] });
  });

  it('knows what it is built for', async () => {
    await using place = await dockerfilePlace();
    await place.build('FROM --platform=$BUILDPLATFORM base\nARG TARGETARCH TARGETOS\nRUN x');
    expect(place.ran[0]?.env).toMatchObject({ TARGETARCH: hostArchitecture(), TARGETOS: 'linux' });
  });

  it('has no variables but those that it was told of', async () => {
    await using place = await dockerfilePlace();
    const { image } = await place.build('ARG toString\nFROM base${valueOf}\nARG constructor\nENV a=<$toString>\nRUN x');
    expect(image.config.env['a']).toBe('<>');
    expect(Object.keys(place.ran[0]?.env ?? {}).sort()).toEqual(['PATH', 'a', 'of']);
  });

  it('tells of arguments that nobody asks for', async () => {
    await using place = await dockerfilePlace();
    const { warnings } = await place.build('FROM base\nARG a\nVOLUME /x', {
      buildArgs: { a: '1', typo: '2', no_proxy: 'x' },
    });
    expect(warnings.map(({ message }) => message)).toEqual([
      expect.stringContaining('volumes'),
      expect.stringContaining('typo'),
    ]);
  });
});

describe('a build that was made before', () => {
  const text = 'FROM base\nRUN one\nCOPY src /src/\nRUN two\nARG v\nRUN three\nWORKDIR /w';

  it('makes nothing again', async () => {
    await using place = await dockerfilePlace();
    await place.write({ 'src/a': '1', 'src/b': '2' });
    const first = await place.build(text);
    expect(commands(place)).toEqual(['one', 'two', 'three']);
    await utimes(join(place.context, 'src/a'), 1, 1);
    const second = await place.build(text);
    expect(commands(place)).toEqual([]);
    expect(second.image).toEqual(first.image);
    expect(outcomes(second.events).every((each) => each.endsWith('reused'))).toBe(true);
  });

  it('makes again only what comes behind a change', async () => {
    await using place = await dockerfilePlace();
    await place.write({ 'src/a': '1' });
    await place.build(text);
    commands(place);
    const cases: [string, string, () => Promise<unknown>, Record<string, string>, string[]][] = [
      ['a later command', text.replace('three', 'third'), () => Promise.resolve(), {}, ['third']],
      ['a value that later commands see', text, () => Promise.resolve(), { v: '1' }, ['three']],
      ['a file', text, () => place.write({ 'src/a': '2' }), {}, ['two', 'three']],
      ['a mode', text, () => chmod(join(place.context, 'src/a'), 0o700), {}, ['two', 'three']],
      ['a new file', text, () => place.write({ 'src/new': '' }), {}, ['two', 'three']],
      ['a file that is not copied', text, () => place.write({ other: '' }), {}, []],
      ['the first command', text.replace('one', 'uno'), () => Promise.resolve(), {}, ['uno', 'two', 'three']],
      ['a variable', text.replace('RUN one', 'ENV x=1\nRUN one'), () => Promise.resolve(), {}, ['one', 'two', 'three']],
      ['a user', text.replace('RUN two', 'USER app\nRUN two'), () => Promise.resolve(), {}, ['two', 'three']],
      ['a label', text.replace('RUN two', 'LABEL a=b\nRUN two'), () => Promise.resolve(), {}, []],
    ];
    for (const [what, changed, change, buildArgs, expected] of cases) {
      await change();
      await place.build(changed, { buildArgs });
      expect([what, commands(place)]).toEqual([what, expected]);
    }
  });

  it('goes on behind what succeeded after a command has failed', async () => {
    await using place = await dockerfilePlace();
    const failing = 'FROM base\nRUN one\nRUN fail\nRUN two';
    const before = await place.place.layers();
    await expect(place.build(failing)).rejects.toMatchObject({
      code: 'build_failed',
      details: { line: 3, exitCode: 3 },
    });
    expect(commands(place)).toEqual(['one', 'fail']);
    // Whole layers, and nothing that is half of one.
    expect((await place.place.layers()).filter((name) => name.startsWith('.'))).toEqual([]);
    expect(await place.place.layers()).toHaveLength(before.length + 1);
    await place.build(failing.replace('fail', 'works'));
    expect(commands(place)).toEqual(['works', 'two']);
  });

  it('makes all of it again when told to', async () => {
    await using place = await dockerfilePlace();
    const first = await place.build('FROM base\nRUN one');
    commands(place);
    const second = await place.build('FROM base\nRUN one', { reuse: false });
    expect(commands(place)).toEqual(['one']);
    expect(second.image).toEqual(first.image);
  });
});

describe('a build that cannot be', () => {
  it.each([
    ['a file that is not there', 'COPY missing /x', 'source_missing'],
    ['a pattern that fits nothing', 'COPY *.none /x/', 'source_missing'],
    ['a file that the context leaves out', 'COPY hidden /x', 'source_missing'],
    ['a path out of the context', 'COPY ../x /x', 'outside_context'],
    ['a path out of the context in the middle', 'COPY a/../../x /x', 'outside_context'],
    ['a link out of the context', 'COPY out /x', 'source_missing'],
    ['a link to the root', 'COPY root/etc/passwd /x', 'source_missing'],
    ['a link to itself', 'COPY loop /x', 'source_missing'],
    ['a file that is no directory', 'COPY file/x /x', 'source_missing'],
    ['something remote', 'ADD https://example.com/x /x', 'remote_source'],
    ['a repository', 'ADD git@example.com:x.git /x', 'remote_source'],
    ['several sources for one name', 'COPY file other /srv', 'destination'],
    ['a place through a file', 'COPY file /srv/there/x', 'destination'],
    ['a place through links round and round', 'COPY file /loop/x', 'destination'],
    ['a directory over a file', 'COPY dir /srv/there', 'destination'],
    ['a file over a directory', 'COPY dir2 /', 'destination'],
    ['an archive of a form that is not read', 'ADD a.tar.xz /', 'archive_compression'],
    ['an owner that nobody is', 'COPY --chown=nobody-at-all file /x', 'owner'],
    ['a group that nobody has', 'COPY --chown=app:none file /x', 'owner'],
    ['an owner beyond what a sandbox has', 'COPY --chown=70000 file /x', 'owner'],
    ['a mode of letters', 'COPY --chmod=u+x file /x', 'mode'],
    ['no value for a name that needs one', 'WORKDIR ${x:?is needed}', 'word'],
    ['a quote without an end', 'ENV a="b', 'word'],
    ['a port that is none', 'EXPOSE http', 'port'],
    ['ports backwards', 'EXPOSE 9-1', 'port'],
    ['a user that is none', 'USER a b', 'user'],
    ['a variable that is none', 'ENV 1a=b', 'env_name'],
    ['a program by a relative name', 'RUN <<A\n#!python3\nA', 'interpreter'],
  ])('for %s is refused with the line', async (_, instruction, reason) => {
    await using place = await dockerfilePlace();
    await place.write({ file: 'x', other: 'y', hidden: 'z', 'a.tar.xz': '', 'dir/x': '', 'dir2/srv': '' });
    await mkdir(join(place.context, 'a'));
    await symlink('../../../../../../etc/passwd', join(place.context, 'out'));
    await symlink('/', join(place.context, 'root'));
    await symlink('loop', join(place.context, 'loop'));
    const before = await place.place.layers();
    const error: unknown = await place.build(`FROM base\nLABEL a=b\n${instruction}`, { dockerignore: 'hidden' }).then(
      () => undefined,
      (caught: unknown) => caught,
    );
    if (!PlatformError.is(error)) throw new Error('a PlatformError was expected', { cause: error });
    expect([error.code, error.details]).toMatchObject([
      'dockerfile_invalid',
      { line: 3, reason, instruction: instruction.split(' ')[0] },
    ]);
    expect(await place.place.layers()).toEqual(before);
    expect(commands(place)).toEqual([]);
  });

  it('names the stages that there are, when there is none of the name', async () => {
    await using place = await dockerfilePlace();
    await expect(place.build('FROM base AS a\nFROM base AS b', { target: 'c' })).rejects.toMatchObject({
      details: { reason: 'no_stage', stages: ['a', 'b'] },
    });
    await expect(place.build('FROM base AS a\nFROM base AS A')).rejects.toMatchObject({
      details: { reason: 'stage_twice', line: 2 },
    });
    // A later stage is none to copy from; the name is then that of an environment.
    await expect(place.build('FROM base\nCOPY --from=b /x /y\nFROM base AS b', { target: '0' })).rejects.toMatchObject({
      code: 'environment_not_found',
    });
    await expect(place.build('FROM ${none}')).rejects.toMatchObject({ details: { reason: 'from', line: 1 } });
    await expect(place.build('FROM --platform=linux/riscv64 base')).rejects.toMatchObject({
      code: 'image_architecture',
    });
  });

  it('for more layers than a sandbox can stand on says so', { timeout: 60_000 }, async () => {
    await using place = await dockerfilePlace();
    const runs = Array.from({ length: 70 }, (_, index) => `RUN ${index}`);
    await expect(place.build(['FROM base', ...runs].join('\n'))).rejects.toMatchObject({
      details: { reason: 'too_many_layers', line: 65 },
    });
  });

  it('without a context copies only documents', async () => {
    await using place = await dockerfilePlace();
    const { image } = await place.build('FROM base\nCOPY <<A /a\nx\nA', { directory: undefined });
    expect(await place.text(image, 'a')).toBe('x\n');
    await expect(place.build('FROM base\nCOPY a /a', { directory: undefined })).rejects.toMatchObject({
      details: { reason: 'source_missing' },
    });
  });
});
