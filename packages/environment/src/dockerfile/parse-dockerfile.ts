/** The second step of reading a Dockerfile: what each instruction says. Variables still stand for themselves. */
import { type DockerfilePlace, invalidDockerfile } from './dockerfile-error.ts';
import { type Heredoc, heredocStart, type LogicalLine, logicalLines } from './logical-lines.ts';
import { type EscapeCharacter, rawWords } from './shell-word.ts';

/** A program with its arguments, or text for the shell of the stage. */
export type DockerfileCommand =
  | { readonly form: 'exec'; readonly argv: readonly string[] }
  | { readonly form: 'shell'; readonly text: string };

interface Common extends DockerfilePlace {
  /** As it stands in the file, on one line and cut: for people. */
  readonly text: string;
}

/** A word whose variables and quotes still stand in it. */
export type RawWord = string;
type RawPair = readonly [name: RawWord, value: RawWord];

export type DockerfileInstruction = Common &
  (
    | {
        readonly kind: 'from';
        readonly image: RawWord;
        readonly stage: string | undefined;
        readonly platform: RawWord | undefined;
      }
    | { readonly kind: 'run'; readonly command: DockerfileCommand; readonly heredocs: readonly Heredoc[] }
    | {
        readonly kind: 'copy' | 'add';
        readonly sources: readonly RawWord[];
        readonly destination: RawWord;
        readonly from: RawWord | undefined;
        readonly owner: RawWord | undefined;
        readonly mode: RawWord | undefined;
        readonly heredocs: readonly Heredoc[];
      }
    | { readonly kind: 'env' | 'label'; readonly pairs: readonly RawPair[] }
    | { readonly kind: 'arg'; readonly args: readonly { readonly name: string; readonly value: RawWord | undefined }[] }
    | { readonly kind: 'workdir' | 'user'; readonly value: RawWord }
    | { readonly kind: 'shell'; readonly argv: readonly string[] }
    | { readonly kind: 'entrypoint' | 'cmd'; readonly command: DockerfileCommand }
    | { readonly kind: 'expose'; readonly ports: readonly RawWord[] }
  );

/** Something that is accepted and has no effect. */
export interface DockerfileWarning extends DockerfilePlace {
  readonly message: string;
}

export interface Dockerfile {
  readonly escape: EscapeCharacter;
  readonly instructions: readonly DockerfileInstruction[];
  readonly warnings: readonly DockerfileWarning[];
}

/** What has no meaning here, and what is said of it. */
const IGNORED: Readonly<Record<string, string>> = {
  VOLUME: 'there are no volumes: the path is an ordinary directory of the environment',
  STOPSIGNAL: 'a sandbox is stopped as a whole, whatever its programs do with a signal',
  HEALTHCHECK: 'nothing checks the health of a sandbox; ask by an exec',
  MAINTAINER: 'it is deprecated; use LABEL',
};
const MAX_TEXT_CHARS = 200;

/**
 * Parses a Dockerfile.
 *
 * @throws PlatformError `dockerfile_invalid` with `details` line, instruction and reason
 */
export const parseDockerfile = (text: string): Dockerfile => {
  const { escape, lines } = logicalLines(text);
  const instructions: DockerfileInstruction[] = [];
  const warnings: DockerfileWarning[] = [];
  for (const line of lines) {
    const place = { line: line.line, instruction: line.keyword };
    const ignored = IGNORED[line.keyword];
    if (ignored === undefined) instructions.push(new InstructionReader(line, escape, warnings).read());
    else warnings.push({ ...place, message: ignored });
  }
  const first = instructions.find(({ kind }) => kind !== 'arg');
  if (first === undefined) {
    throw invalidDockerfile({ line: lines.at(-1)?.line ?? 1, instruction: '' }, 'no_from', 'there is no FROM');
  }
  if (first.kind !== 'from') throw invalidDockerfile(first, 'no_from', 'only ARG may stand before the first FROM');
  return { escape, instructions, warnings };
};

type Flags = ReadonlyMap<string, string>;
const FLAG = /^--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)/;

class InstructionReader {
  readonly #place: DockerfilePlace;
  readonly #line: LogicalLine;
  readonly #escape: EscapeCharacter;
  readonly #warnings: DockerfileWarning[];

  constructor(line: LogicalLine, escape: EscapeCharacter, warnings: DockerfileWarning[]) {
    this.#place = { line: line.line, instruction: line.keyword };
    this.#line = line;
    this.#escape = escape;
    this.#warnings = warnings;
  }

  read(): DockerfileInstruction {
    const { keyword, rest, heredocs } = this.#line;
    const text = `${keyword} ${rest.replace(/\s+/g, ' ')}`.slice(0, MAX_TEXT_CHARS);
    const common = { ...this.#place, text };
    switch (keyword) {
      case 'FROM':
        return { ...common, kind: 'from', ...this.#from() };
      case 'RUN':
        return { ...common, kind: 'run', command: this.#run(), heredocs };
      case 'COPY':
      case 'ADD':
        return { ...common, kind: keyword === 'COPY' ? 'copy' : 'add', ...this.#copy() };
      case 'ENV':
      case 'LABEL':
        return { ...common, kind: keyword === 'ENV' ? 'env' : 'label', pairs: this.#pairs() };
      case 'ARG':
        return { ...common, kind: 'arg', args: this.#args() };
      case 'WORKDIR':
      case 'USER':
        return { ...common, kind: keyword === 'WORKDIR' ? 'workdir' : 'user', value: this.#one() };
      case 'SHELL':
        return { ...common, kind: 'shell', argv: this.#shell() };
      case 'ENTRYPOINT':
      case 'CMD':
        return { ...common, kind: keyword === 'CMD' ? 'cmd' : 'entrypoint', command: this.#command(this.#plain()) };
      case 'EXPOSE':
        return { ...common, kind: 'expose', ports: this.#words() };
      case 'ONBUILD':
        throw this.#wrong(
          'unsupported_instruction',
          'an environment keeps no instructions for what is built on it; write them into that Dockerfile',
        );
      default:
        throw this.#wrong('unknown_instruction', 'there is no such instruction');
    }
  }

  #wrong(reason: string, message: string): Error {
    return invalidDockerfile(this.#place, reason, message);
  }

  #warn(message: string): void {
    this.#warnings.push({ ...this.#place, message });
  }

  /** Takes the flags from the beginning. */
  #flags(allowed: readonly string[]): { readonly flags: Flags; readonly rest: string } {
    const flags = new Map<string, string>();
    let { rest } = this.#line;
    for (let match = FLAG.exec(rest); match !== null; match = FLAG.exec(rest)) {
      const [whole, name = '', value] = match;
      if (!allowed.includes(name)) throw this.#wrong('unsupported_flag', `--${name} is not supported`);
      if (flags.has(name) && name !== 'mount') throw this.#wrong('flag_twice', `--${name} stands twice`);
      if (value === '') throw this.#wrong('flag_value', `--${name} lacks its value`);
      if (value === undefined && name !== 'link') throw this.#wrong('flag_value', `--${name} lacks its value`);
      if (name === 'mount') this.#checkMount(value ?? '');
      flags.set(name, value ?? 'true');
      rest = rest.slice(whole.length);
    }
    return { flags, rest };
  }

  /** What only makes a build faster may be left out. */
  #checkMount(mount: string): void {
    const type = /(?:^|,)type=([^,]*)/.exec(mount)?.[1] ?? 'bind';
    if (type !== 'cache' && type !== 'tmpfs') {
      throw this.#wrong('unsupported_flag', `--mount of type ${type} is not supported; COPY what the command needs`);
    }
    this.#warn(`--mount=type=${type} has no effect: what the command writes there stays in the environment`);
  }

  /** All that is said, of an instruction that takes no flags. */
  #plain(): string {
    const { rest } = this.#flags([]);
    if (rest === '') throw this.#wrong('no_arguments', 'it says nothing');
    return rest;
  }

  #words(): string[] {
    return rawWords(this.#plain(), this.#escape);
  }

  #one(): string {
    return this.#plain();
  }

  #from() {
    const { flags, rest } = this.#flags(['platform']);
    const words = rest.split(/\s+/).filter((word) => word !== '');
    const [image, as, stage] = words;
    const isNamed = words.length === 3 && as?.toUpperCase() === 'AS';
    if (image === undefined || (words.length !== 1 && !isNamed)) {
      throw this.#wrong('from', 'it takes an image, and AS with a name if the stage is to have one');
    }
    if (stage !== undefined && !/^[A-Za-z][A-Za-z0-9_.-]*$/.test(stage)) {
      throw this.#wrong('stage_name', `${stage} is no name for a stage: a letter, then letters, digits, _ . -`);
    }
    if (stage?.toLowerCase() === 'scratch') throw this.#wrong('stage_name', 'scratch is the empty image');
    return { image, stage: stage?.toLowerCase(), platform: flags.get('platform') };
  }

  #run(): DockerfileCommand {
    const { flags, rest } = this.#flags(['mount', 'network', 'security']);
    const network = flags.get('network');
    if (network !== undefined && network !== 'default' && network !== 'none') {
      throw this.#wrong(
        'unsupported_flag',
        `--network=${network} is not supported: a build never sees the host's network`,
      );
    }
    const security = flags.get('security');
    if (security !== undefined && security !== 'sandbox') {
      throw this.#wrong('unsupported_flag', `--security=${security} is not supported: steps run in a sandbox`);
    }
    if (rest === '') throw this.#wrong('no_arguments', 'it says nothing');
    return this.#command(rest);
  }

  #command(rest: string): DockerfileCommand {
    const argv = stringArray(rest);
    if (argv === undefined) return { form: 'shell', text: rest };
    if (argv.length === 0 && this.#line.keyword === 'RUN') throw this.#wrong('no_arguments', 'it names no program');
    return { form: 'exec', argv };
  }

  #shell(): readonly string[] {
    const argv = stringArray(this.#plain());
    if (argv === undefined || argv.length === 0) {
      throw this.#wrong('not_json', 'it takes a JSON array of strings: ["/bin/bash", "-c"]');
    }
    return argv;
  }

  #copy() {
    const isCopy = this.#line.keyword === 'COPY';
    const { flags, rest } = this.#flags(['chown', 'chmod', 'link', ...(isCopy ? ['from'] : [])]);
    const all = stringArray(rest) ?? rest.split(/\s+/).filter((word) => word !== '');
    const destination = all.at(-1);
    if (destination === undefined || all.length < 2) {
      throw this.#wrong('copy', 'it takes at least one source, and where that goes');
    }
    if (heredocStart(destination).length > 0) throw this.#wrong('copy', 'a document is no place to copy to');
    const [from, owner, mode] = [flags.get('from'), flags.get('chown'), flags.get('chmod')];
    if (from !== undefined && this.#line.heredocs.length > 0) {
      throw this.#wrong('copy', 'a document of the Dockerfile is in no stage: leave out --from');
    }
    return { sources: all.slice(0, -1), destination, from, owner, mode, heredocs: this.#line.heredocs };
  }

  /** `name=value ...`, or the old `name value`. */
  #pairs(): RawPair[] {
    const rest = this.#plain();
    const words = rawWords(rest, this.#escape);
    if (words[0]?.includes('=') !== true) {
      const [, name, value] = /^(\S+)\s+([\s\S]+)$/.exec(rest) ?? [];
      if (name === undefined || value === undefined) throw this.#wrong('no_value', 'a name lacks its value');
      return [[name, value]];
    }
    return words.map((word) => {
      const at = word.indexOf('=');
      if (at < 1) throw this.#wrong('no_value', `${word.slice(0, MAX_TEXT_CHARS)} is not of the form name=value`);
      return [word.slice(0, at), word.slice(at + 1)];
    });
  }

  #args() {
    return this.#words().map((word) => {
      const at = word.indexOf('=');
      const name = at === -1 ? word : word.slice(0, at);
      if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name))
        throw this.#wrong('arg_name', `${name.slice(0, MAX_TEXT_CHARS)} is no name`);
      return { name, value: at === -1 ? undefined : word.slice(at + 1) };
    });
  }
}

/** undefined for what is no JSON array of strings: such text is for a shell. */
const stringArray = (text: string): readonly string[] | undefined => {
  if (!text.startsWith('[')) return undefined;
  try {
    const value: unknown = JSON.parse(text);
    return Array.isArray(value) && value.every((each) => typeof each === 'string') ? value : undefined;
  } catch {
    return undefined;
  }
};
