/** The first of two steps of reading a Dockerfile: its lines put together into instructions, with the documents that follow them. */
import { invalidDockerfile } from './dockerfile-error.ts';
import { type EscapeCharacter, rawWords } from './shell-word.ts';

/** A document in the Dockerfile itself (`<<EOF`). */
export interface Heredoc {
  /** The word that ends it. */
  readonly name: string;
  /** With its last line feed; without leading tabs where it began with `<<-`. */
  readonly content: string;
  /** Whether variables in it stand for their values: not when its name is in quotes. */
  readonly isExpanded: boolean;
}

/** One instruction, its lines joined, comments between them left out. */
export interface LogicalLine {
  /** Of its first line, from 1. */
  readonly line: number;
  /** In upper case. */
  readonly keyword: string;
  readonly rest: string;
  readonly heredocs: readonly Heredoc[];
}

export interface LogicalLines {
  readonly escape: EscapeCharacter;
  readonly lines: readonly LogicalLine[];
}

const MAX_DOCKERFILE_BYTES = 4 * 1024 * 1024;
/** A stage of more steps than this would have more layers than a sandbox can stand on. */
const MAX_INSTRUCTIONS = 4096;
const MAX_HEREDOCS = 64;

const DIRECTIVE = /^#[ \t]*([A-Za-z][A-Za-z0-9_]*)[ \t]*=[ \t]*(\S.*?)?[ \t]*$/;
const KNOWN_DIRECTIVES = ['syntax', 'escape', 'check'];
const WITH_HEREDOCS = ['RUN', 'COPY', 'ADD'];
const BLANK = /^\s*$/;
const COMMENT = /^\s*#/;
const KEYWORD = /^(\S+)(?:\s+([\s\S]*))?$/;

/** @throws PlatformError `dockerfile_invalid` with `details` line, instruction and reason */
export const logicalLines = (text: string): LogicalLines => {
  if (Buffer.byteLength(text) > MAX_DOCKERFILE_BYTES) {
    throw invalidDockerfile(
      { line: 1, instruction: '' },
      'too_long',
      `the Dockerfile is longer than ${MAX_DOCKERFILE_BYTES} bytes`,
    );
  }
  const lines = text
    .replace(/^\uFEFF/, '')
    .split('\n')
    .map((line) => line.replace(/\r$/, ''));
  const nul = lines.findIndex((line) => line.includes('\0'));
  if (nul !== -1) throw invalidDockerfile({ line: nul + 1, instruction: '' }, 'nul', 'a NUL byte is not text');
  const { escape, next } = directives(lines);
  const found: LogicalLine[] = [];
  for (let at = next; at < lines.length; ) {
    if (BLANK.test(lines[at] ?? '') || COMMENT.test(lines[at] ?? '')) {
      at++;
      continue;
    }
    const { instruction, end } = instructionAt(lines, at, escape);
    found.push(instruction);
    at = end;
    if (found.length > MAX_INSTRUCTIONS) {
      throw invalidDockerfile(
        { line: instruction.line, instruction: instruction.keyword },
        'too_many_instructions',
        `there are more than ${MAX_INSTRUCTIONS} instructions`,
      );
    }
  }
  return { escape, lines: found };
};

/** Directives stand before everything else; the first line that is none ends them. */
const directives = (lines: readonly string[]): { readonly escape: EscapeCharacter; readonly next: number } => {
  let escape: EscapeCharacter | undefined;
  let at = 0;
  for (; at < lines.length; at++) {
    const [, name = '', value = ''] = DIRECTIVE.exec(lines[at] ?? '') ?? [];
    const directive = name.toLowerCase();
    if (!KNOWN_DIRECTIVES.includes(directive)) break;
    if (directive !== 'escape') continue;
    const place = { line: at + 1, instruction: '' };
    if (escape !== undefined) throw invalidDockerfile(place, 'directive', 'the directive escape stands twice');
    if (value !== '\\' && value !== '`') {
      throw invalidDockerfile(place, 'directive', 'the directive escape is \\ or `');
    }
    escape = value;
  }
  return { escape: escape ?? '\\', next: at };
};

const instructionAt = (
  lines: readonly string[],
  start: number,
  escape: EscapeCharacter,
): { readonly instruction: LogicalLine; readonly end: number } => {
  let text = '';
  let at = start;
  for (; at < lines.length; at++) {
    const line = lines[at] ?? '';
    if (at > start && (COMMENT.test(line) || BLANK.test(line))) continue;
    const continued = continuedPart(line, escape);
    text += continued ?? line;
    if (continued === undefined) {
      at++;
      break;
    }
  }
  const [, word = '', rest = ''] = KEYWORD.exec(text.trim()) ?? [];
  const keyword = word.toUpperCase();
  const heredocs: Heredoc[] = [];
  if (WITH_HEREDOCS.includes(keyword)) {
    const place = { line: start + 1, instruction: keyword };
    const begun = rawWords(rest, escape).flatMap(heredocStart);
    if (begun.length > MAX_HEREDOCS) {
      throw invalidDockerfile(place, 'too_many_heredocs', `there are more than ${MAX_HEREDOCS} documents`);
    }
    for (const each of begun) {
      const lineAt = (index: number): string | undefined =>
        each.isChomped ? lines[index]?.replace(/^\t+/, '') : lines[index];
      let end = at;
      while (end < lines.length && lineAt(end) !== each.name) end++;
      if (end === lines.length) {
        throw invalidDockerfile(place, 'heredoc_unterminated', `the document <<${each.name} has no end`);
      }
      const body = lines.slice(at, end).map((line) => `${each.isChomped ? line.replace(/^\t+/, '') : line}\n`);
      heredocs.push({ name: each.name, content: body.join(''), isExpanded: each.isExpanded });
      at = end + 1;
    }
  }
  return { instruction: { line: start + 1, keyword, rest: rest.trim(), heredocs }, end: at };
};

/** What stands before the escape character at the end of a line that goes on; undefined for one that does not. */
const continuedPart = (line: string, escape: EscapeCharacter): string | undefined => {
  const trimmed = line.replace(/[ \t]+$/, '');
  if (!trimmed.endsWith(escape) || trimmed.endsWith(escape + escape)) return undefined;
  return trimmed.slice(0, -1);
};

const HEREDOC = /^\d*<<(-?)([^<]+)$/;

/** Begins a document, if the word is one of those that do. */
export const heredocStart = (
  word: string,
): readonly { readonly name: string; readonly isChomped: boolean; readonly isExpanded: boolean }[] => {
  const [, dash, quoted = ''] = HEREDOC.exec(word) ?? [];
  const [, , plain] = /^(["'])(.+)\1$/.exec(quoted) ?? [];
  const name = plain ?? quoted;
  if (name === '' || /["'\\`$\s]/.test(name)) return [];
  return [{ name, isChomped: dash === '-', isExpanded: plain === undefined }];
};
