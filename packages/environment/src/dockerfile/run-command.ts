/** What a RUN runs. */
import { invalidDockerfile } from './dockerfile-error.ts';
import { type Heredoc, heredocStart } from './logical-lines.ts';
import type { DockerfileInstruction } from './parse-dockerfile.ts';
import type { StageState } from './stage-state.ts';

/** A file that a command finds while it runs. */
export interface RunScript {
  readonly path: string;
  readonly content: string;
}

export interface RunProgram {
  readonly argv: readonly string[];
  readonly script: RunScript | undefined;
}

/** Not on the writable layer, so that it is no change of the step. */
const SCRIPT_PATH = '/dev/shm/dsec-run-script';
const HASH_BANG = /^#![ \t]*(\S+)(?:[ \t]+(\S.*?))?[ \t]*\n/;

/**
 * A document by itself is the script of the shell, or of the program that its first line names; one behind a command is a document of the
 * shell.
 *
 * @throws PlatformError `dockerfile_invalid`
 */
export const runCommand = (
  instruction: Extract<DockerfileInstruction, { readonly kind: 'run' }>,
  state: StageState,
): RunProgram => {
  const { command, heredocs } = instruction;
  if (command.form === 'exec') return { argv: command.argv, script: undefined };
  const [only] = heredocs;
  if (only === undefined) return { argv: [...state.shell, command.text], script: undefined };
  const isAlone = heredocs.length === 1 && heredocStart(command.text.trim()).length === 1;
  if (!isAlone) {
    return { argv: [...state.shell, withDocuments(command.text, heredocs)], script: undefined };
  }
  const [, interpreter, argument] = HASH_BANG.exec(only.content) ?? [];
  if (interpreter === undefined) return { argv: [...state.shell, only.content], script: undefined };
  if (!interpreter.startsWith('/')) {
    throw invalidDockerfile(
      instruction,
      'interpreter',
      `${interpreter.slice(0, 256)} is no absolute path of a program`,
    );
  }
  // As the kernel does it: everything behind the program is one argument.
  return {
    argv: [interpreter, ...(argument === undefined ? [] : [argument]), SCRIPT_PATH],
    script: { path: SCRIPT_PATH, content: only.content },
  };
};

const withDocuments = (text: string, heredocs: readonly Heredoc[]): string =>
  [text, ...heredocs.map(({ content, name }) => `${content}${name}`)].join('\n');
