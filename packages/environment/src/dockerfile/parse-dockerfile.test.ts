import { PlatformError } from '@dsec/contract';
import { SystemClock } from '@dsec/kit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type DockerfileInstruction, parseDockerfile } from './parse-dockerfile.ts';

const parsed = (text: string): readonly DockerfileInstruction[] => parseDockerfile(text).instructions;

/** What is after the FROM, without where it stands. */
const one = (text: string): unknown => {
  const [, found] = parsed(`FROM base\n${text}`);
  const {
    line: _line,
    instruction: _instruction,
    text: _text,
    ...rest
  } = found ?? { line: 0, instruction: '', text: '' };
  return rest;
};

const shell = (text: string) => ({ form: 'shell', text });
const exec = (...argv: string[]) => ({ form: 'exec', argv });
const copy = { from: undefined, owner: undefined, mode: undefined, heredocs: [] };

describe('a Dockerfile', () => {
  it.each([
    ['RUN apk add  git', { kind: 'run', command: shell('apk add  git'), heredocs: [] }],
    ['run ["/bin/x", "a b"]', { kind: 'run', command: exec('/bin/x', 'a b'), heredocs: [] }],
    ['RUN [ -e /x ]', { kind: 'run', command: shell('[ -e /x ]'), heredocs: [] }],
    ["RUN ['/bin/x']", { kind: 'run', command: shell("['/bin/x']"), heredocs: [] }],
    ['RUN --network=none true', { kind: 'run', command: shell('true'), heredocs: [] }],
    ['COPY a b /c/', { kind: 'copy', sources: ['a', 'b'], destination: '/c/', ...copy }],
    ['COPY ["a b", "c"]', { kind: 'copy', sources: ['a b'], destination: 'c', ...copy }],
    [
      'COPY --from=build --chown=1:2 --chmod=755 --link a .',
      { kind: 'copy', sources: ['a'], destination: '.', ...copy, from: 'build', owner: '1:2', mode: '755' },
    ],
    ['ADD x.tar /', { kind: 'add', sources: ['x.tar'], destination: '/', ...copy }],
    [
      'ENV a=1 b="2 3" c=\\$x',
      {
        kind: 'env',
        pairs: [
          ['a', '1'],
          ['b', '"2 3"'],
          ['c', '\\$x'],
        ],
      },
    ],
    ['ENV a some words', { kind: 'env', pairs: [['a', 'some words']] }],
    ['LABEL "a.b"=c', { kind: 'label', pairs: [['"a.b"', 'c']] }],
    [
      'ARG x y=1',
      {
        kind: 'arg',
        args: [
          { name: 'x', value: undefined },
          { name: 'y', value: '1' },
        ],
      },
    ],
    ['WORKDIR /a b', { kind: 'workdir', value: '/a b' }],
    ['USER app:app', { kind: 'user', value: 'app:app' }],
    ['SHELL ["/bin/bash", "-c"]', { kind: 'shell', argv: ['/bin/bash', '-c'] }],
    ['ENTRYPOINT ["x"]', { kind: 'entrypoint', command: exec('x') }],
    ['CMD x $y', { kind: 'cmd', command: shell('x $y') }],
    ['CMD []', { kind: 'cmd', command: exec() }],
    ['EXPOSE 80 $p/udp', { kind: 'expose', ports: ['80', '$p/udp'] }],
  ])('has %s', (text, expected) => {
    expect(one(text)).toEqual(expected);
  });

  it('counts lines as people do, whatever is joined, left out or in documents', () => {
    const text = [
      '\uFEFF# syntax=docker/dockerfile:1', // 1
      '# a comment', // 2
      'ARG v=1', // 3
      'FROM base:$v AS Build', // 4
      'RUN one \\', // 5
      '  # in between', // 6
      '', // 7
      '  && two', // 8
      'COPY <<A <<-"B" /x/', // 9
      'first', // 10
      'A', // 11
      '\tsecond $v', // 12
      '\tB', // 13
      'RUN three\r', // 14
    ].join('\n');
    const found = parsed(text);
    expect(found.map(({ line, instruction }) => [line, instruction])).toEqual([
      [3, 'ARG'],
      [4, 'FROM'],
      [5, 'RUN'],
      [9, 'COPY'],
      [14, 'RUN'],
    ]);
    expect(found[1]).toMatchObject({ image: 'base:$v', stage: 'build' });
    expect(found[2]).toMatchObject({ command: { text: 'one   && two' } });
    expect(found[3]).toMatchObject({
      heredocs: [
        { name: 'A', content: 'first\n', isExpanded: true },
        { name: 'B', content: 'second $v\n', isExpanded: false },
      ],
    });
    expect(found[4]).toMatchObject({ command: { text: 'three' } });
  });

  it('may have another escape character', () => {
    const found = parsed('# escape=`\nFROM base\nRUN a\\\nRUN b `\n c');
    expect(found.slice(1).map((each) => each.kind === 'run' && each.command)).toEqual([shell('a\\'), shell('b  c')]);
  });

  it('does not go on after an escaped escape', () => {
    expect(parsed('FROM base\nRUN a\\\\\nRUN b')).toHaveLength(3);
  });

  it('may say what has no meaning here, and is told so', () => {
    const { instructions, warnings } = parseDockerfile(
      'FROM base\nVOLUME /data\nSTOPSIGNAL 9\nHEALTHCHECK NONE\nMAINTAINER me\nRUN --mount=type=cache,target=/c true',
    );
    expect(instructions.map(({ kind }) => kind)).toEqual(['from', 'run']);
    expect(warnings.map(({ line, instruction }) => [line, instruction])).toEqual([
      [2, 'VOLUME'],
      [3, 'STOPSIGNAL'],
      [4, 'HEALTHCHECK'],
      [5, 'MAINTAINER'],
      [6, 'RUN'],
    ]);
  });
});

describe('a Dockerfile that is wrong', () => {
  it.each([
    ['nothing', '', 1, '', 'no_from'],
    ['only comments', '# a\n\n# b', 1, '', 'no_from'],
    ['only ARG', 'ARG a=1\nARG b', 2, '', 'no_from'],
    ['something before FROM', '\nRUN x\nFROM base', 2, 'RUN', 'no_from'],
    ['an unknown instruction', 'FROM base\n\nFETCH x', 3, 'FETCH', 'unknown_instruction'],
    ['ONBUILD', 'FROM base\nONBUILD RUN x', 2, 'ONBUILD', 'unsupported_instruction'],
    ['FROM without an image', 'FROM', 1, 'FROM', 'from'],
    ['FROM with too much', 'FROM a b', 1, 'FROM', 'from'],
    ['a stage with a bad name', 'FROM a AS 1b', 1, 'FROM', 'stage_name'],
    ['a stage called scratch', 'FROM a AS Scratch', 1, 'FROM', 'stage_name'],
    ['an unknown flag', 'FROM base\nCOPY --parents a b', 2, 'COPY', 'unsupported_flag'],
    ['a secret', 'FROM base\nRUN --mount=type=secret,id=x true', 2, 'RUN', 'unsupported_flag'],
    ['a mount of no type', 'FROM base\nRUN --mount=target=/x true', 2, 'RUN', 'unsupported_flag'],
    ["the host's network", 'FROM base\nRUN --network=host true', 2, 'RUN', 'unsupported_flag'],
    ['privileges', 'FROM base\nRUN --security=insecure true', 2, 'RUN', 'unsupported_flag'],
    ['a flag twice', 'FROM base\nCOPY --from=a --from=b x y', 2, 'COPY', 'flag_twice'],
    ['a flag without a value', 'FROM base\nCOPY --from= x y', 2, 'COPY', 'flag_value'],
    ['--from of ADD', 'FROM base\nADD --from=a x y', 2, 'ADD', 'unsupported_flag'],
    ['COPY to nowhere', 'FROM base\nCOPY x', 2, 'COPY', 'copy'],
    ['a document of another stage', 'FROM base\nCOPY --from=a <<X /y\nX', 2, 'COPY', 'copy'],
    ['a document without an end', 'FROM base\nRUN <<X\necho', 2, 'RUN', 'heredoc_unterminated'],
    ['RUN of nothing', 'FROM base\nRUN', 2, 'RUN', 'no_arguments'],
    ['RUN of an empty list', 'FROM base\nRUN []', 2, 'RUN', 'no_arguments'],
    ['ENV without a value', 'FROM base\nENV a', 2, 'ENV', 'no_value'],
    ['ENV with one that has none', 'FROM base\nENV a=1 b', 2, 'ENV', 'no_value'],
    ['ARG that is no name', 'FROM base\nARG 1a', 2, 'ARG', 'arg_name'],
    ['SHELL that is no list', 'FROM base\nSHELL /bin/sh', 2, 'SHELL', 'not_json'],
    ['an escape of its own', '# escape=x\nFROM base', 1, '', 'directive'],
    ['a NUL byte', 'FROM base\nRUN \0', 2, '', 'nul'],
    ['a continuation of all the rest', 'FROM base\nFETCH \\', 2, 'FETCH', 'unknown_instruction'],
    ['too much', `FROM base\n#${'x'.repeat(5_000_000)}`, 1, '', 'too_long'],
    ['too many instructions', `FROM base\n${'RUN x\n'.repeat(5000)}`, 4097, 'RUN', 'too_many_instructions'],
  ])('with %s is refused with the line', (_, text, line, instruction, reason) => {
    let error: unknown;
    try {
      parseDockerfile(text);
    } catch (caught) {
      error = caught;
    }
    if (!PlatformError.is(error)) throw new Error('a PlatformError was expected', { cause: error });
    expect([error.code, error.details]).toMatchObject(['dockerfile_invalid', { line, instruction, reason }]);
  });

  it('of very many documents is read in time that grows as it does', () => {
    const names = Array.from({ length: 64 }, (_, index) => `d${index}`);
    const instruction = ['RUN', ...names.map((name) => `<<${name}`)].join(' ');
    const text = ['FROM base', ...Array.from({ length: 1000 }, () => [instruction, ...names].join('\n'))].join('\n');
    const clock = new SystemClock();
    const startedMs = clock.monotonicMs();
    expect(parseDockerfile(text).instructions).toHaveLength(1001);
    // A search from the first line for each of them takes some twenty seconds.
    expect(clock.monotonicMs() - startedMs).toBeLessThan(8000);
  });

  it('is refused with a typed error or read, whatever it is (fuzz)', () => {
    const seconds = Number(process.env['DSEC_FUZZ_SECONDS'] ?? 1);
    const piece = fc.constantFrom(
      ...[
        'FROM base\n',
        'RUN ',
        'COPY ',
        '<<A',
        '\nA\n',
        '<<-"B"',
        '\\\n',
        '\n',
        ' ',
        '# escape=`\n',
        '"',
        "'",
        '$',
        '${',
        '}',
      ],
      ...['--from=x ', '["a"]', '[', 'ENV a=1 ', 'ARG ', '\t', '\r\n', '=', ':-', 'LABEL ', '`\n', '#', 'EXPOSE 1'],
    );
    const text = fc.oneof(
      fc.string(),
      fc.array(fc.oneof({ weight: 5, arbitrary: piece }, fc.string({ maxLength: 4 }))).map((parts) => parts.join('')),
    );
    fc.assert(
      fc.property(text, (each) => {
        try {
          const lines = each.split('\n').length;
          for (const { line } of parseDockerfile(each).instructions) expect(line).toBeLessThanOrEqual(lines);
        } catch (error) {
          if (!PlatformError.is(error) || error.code !== 'dockerfile_invalid') throw error;
        }
      }),
      { interruptAfterTimeLimit: seconds * 1000, numRuns: 1_000_000, markInterruptAsFailure: false },
    );
  });
});
