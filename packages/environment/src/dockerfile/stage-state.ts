/** What the instructions of a stage have said so far: its settings, and the variables that later ones see. */
import { posix } from 'node:path';
import { type EnvironmentConfig, EnvKeyPattern } from '@dsec/contract';
import { type DockerfilePlace, invalidDockerfile } from './dockerfile-error.ts';
import type { ArgInstruction } from './stages.ts';
import type { DockerfileCommand, DockerfileInstruction, RawWord } from './parse-dockerfile.ts';
import { type EscapeCharacter, type Expansion, expandText, expandWord, rawWords, WordFault } from './shell-word.ts';

/** Variables that a command sees when the caller gives them, without an ARG; they change nothing of what is cached. */
export const PROXY_ARGS = ['HTTP_PROXY', 'HTTPS_PROXY', 'FTP_PROXY', 'NO_PROXY', 'ALL_PROXY'].flatMap((name) => [
  name,
  name.toLowerCase(),
]);

const DEFAULT_SHELL = ['/bin/sh', '-c'];
const ENV_KEY = new RegExp(EnvKeyPattern);
const PORT = /^(\d{1,5})(?:-(\d{1,5}))?(?:\/(tcp|udp|sctp))?$/i;
const MAX_PORT = 65_535;
const MAX_EXPOSED = 1024;

/** Values for ARG. */
export interface ArgValues {
  /** What the caller gives, before what the Dockerfile says. */
  readonly given: Readonly<Record<string, string>>;
  /** What a build knows by itself, such as TARGETARCH. */
  readonly platform: Readonly<Record<string, string>>;
}

export interface StageStateOptions {
  readonly config: EnvironmentConfig;
  readonly escape: EscapeCharacter;
  readonly values: ArgValues;
  /** Of the ARGs before the first FROM. */
  readonly globals: ReadonlyMap<string, string | undefined>;
}

type Setting = Extract<
  DockerfileInstruction,
  { readonly kind: 'env' | 'label' | 'arg' | 'workdir' | 'user' | 'shell' | 'entrypoint' | 'cmd' | 'expose' }
>;

export class StageState {
  readonly #options: StageStateOptions;
  readonly #args = new Map<string, string | undefined>();
  #config: EnvironmentConfig;
  #shell: readonly string[] = DEFAULT_SHELL;
  #hasCmd = false;

  constructor(options: StageStateOptions) {
    this.#options = options;
    this.#config = options.config;
  }

  get config(): EnvironmentConfig {
    return this.#config;
  }

  get shell(): readonly string[] {
    return this.#shell;
  }

  /** The variables of a command: what ENV says goes before what ARG says. */
  get variables(): Readonly<Record<string, string>> {
    const args = [...this.#args].filter((entry): entry is [string, string] => entry[1] !== undefined);
    return { ...Object.fromEntries(args), ...this.#config.env };
  }

  /** Variables that are not to count for what is cached. */
  get proxies(): Readonly<Record<string, string>> {
    const { given } = this.#options.values;
    return Object.fromEntries(
      PROXY_ARGS.flatMap((name) => (given[name] === undefined || this.#args.has(name) ? [] : [[name, given[name]]])),
    );
  }

  /** @throws PlatformError `dockerfile_invalid` */
  expand(place: DockerfilePlace, word: RawWord): string {
    return expanded(place, () => expandWord(word, this.#expansion));
  }

  /** As {@link expand}, of a document. */
  expandDocument(place: DockerfilePlace, content: string): string {
    return expanded(place, () => expandText(content, this.#expansion));
  }

  get #expansion(): Expansion {
    const { escape } = this.#options;
    return { escape, variable: (name) => valueIn(this.#config.env, name) ?? this.#args.get(name) };
  }

  /** Where a path of WORKDIR, or of a destination, leads. A slash at its end stays. */
  absolute(path: string): string {
    return posix.resolve('/', this.#config.workdir, path) + (path.endsWith('/') || path.endsWith('/.') ? '/' : '');
  }

  /** @throws PlatformError `dockerfile_invalid` */
  apply(instruction: Setting): void {
    switch (instruction.kind) {
      case 'env':
        this.#env(instruction, this.#pairs(instruction));
        return;
      case 'label':
        this.#change({ labels: { ...this.#config.labels, ...this.#pairs(instruction) } });
        return;
      case 'arg':
        declareArgs(this.#args, instruction, this.#options, (word) => this.expand(instruction, word));
        return;
      case 'workdir':
        this.#change({ workdir: this.#workdir(instruction, this.expand(instruction, instruction.value)) });
        return;
      case 'user':
        this.#change({ user: this.#user(instruction, this.expand(instruction, instruction.value)) });
        return;
      case 'shell':
        this.#shell = instruction.argv;
        return;
      case 'entrypoint':
        // What the image below runs by default is nothing to hand to another program.
        this.#change({
          entrypoint: this.#argv(instruction.command),
          ...(this.#hasCmd ? {} : { cmd: [] }),
        });
        return;
      case 'cmd':
        this.#hasCmd = true;
        this.#change({ cmd: this.#argv(instruction.command) });
        return;
      case 'expose':
        this.#expose(instruction);
        return;
    }
  }

  #change(change: Partial<EnvironmentConfig>): void {
    this.#config = { ...this.#config, ...change };
  }

  #argv(command: DockerfileCommand): string[] {
    return command.form === 'exec' ? [...command.argv] : [...this.#shell, command.text];
  }

  #pairs(instruction: Extract<Setting, { readonly kind: 'env' | 'label' }>): Record<string, string> {
    // All values are made of what was there before the instruction.
    return Object.fromEntries(
      instruction.pairs.map(([name, value]) => [this.expand(instruction, name), this.expand(instruction, value)]),
    );
  }

  #env(place: DockerfilePlace, pairs: Readonly<Record<string, string>>): void {
    for (const name of Object.keys(pairs)) {
      if (!ENV_KEY.test(name))
        throw invalidDockerfile(place, 'env_name', `${name.slice(0, 256)} is no name of a variable`);
    }
    this.#change({ env: { ...this.#config.env, ...pairs } });
  }

  #workdir(place: DockerfilePlace, path: string): string {
    if (path === '') throw invalidDockerfile(place, 'no_arguments', 'it names no directory');
    return posix.resolve('/', this.#config.workdir, path);
  }

  #user(place: DockerfilePlace, user: string): string {
    if (!/^[^\s:]{1,128}(:[^\s:]{1,127})?$/.test(user)) {
      throw invalidDockerfile(place, 'user', `${user.slice(0, 256)} is not of the form user or user:group`);
    }
    return user;
  }

  #expose(instruction: Extract<Setting, { readonly kind: 'expose' }>): void {
    const ports = new Set(this.#config.exposedPorts);
    const words = instruction.ports.flatMap((word) => rawWords(this.expand(instruction, word), this.#options.escape));
    for (const word of words) {
      const [, first = '', last = first, protocol = 'tcp'] = PORT.exec(word) ?? [];
      const [from, to] = [Number(first), Number(last)];
      if (first === '' || from < 1 || to > MAX_PORT || to < from || to - from >= MAX_EXPOSED) {
        throw invalidDockerfile(instruction, 'port', `${word.slice(0, 64)} is no port such as 8080 or 53/udp`);
      }
      for (let port = from; port <= to; port++) ports.add(`${port}/${protocol.toLowerCase()}`);
    }
    if (ports.size > MAX_EXPOSED)
      throw invalidDockerfile(instruction, 'port', `more than ${MAX_EXPOSED} ports are exposed`);
    this.#change({ exposedPorts: [...ports] });
  }
}

/** The value of a variable, whose name may be one that every object of JavaScript has. */
export const valueIn = (values: Readonly<Record<string, string>>, name: string): string | undefined =>
  Object.hasOwn(values, name) ? values[name] : undefined;

/** What an ARG says: the caller's value, or that of an ARG before the first FROM, or its own default. */
export const declareArgs = (
  into: Map<string, string | undefined>,
  { args }: ArgInstruction,
  { values, globals }: Pick<StageStateOptions, 'values' | 'globals'>,
  expand: (word: RawWord) => string,
): void => {
  for (const { name, value } of args) {
    const own = value === undefined ? undefined : expand(value);
    into.set(name, valueIn(values.given, name) ?? own ?? globals.get(name) ?? valueIn(values.platform, name));
  }
};

/** @throws PlatformError `dockerfile_invalid` for what is wrong with a word */
export const expanded = (place: DockerfilePlace, expand: () => string): string => {
  try {
    return expand();
  } catch (error) {
    if (!(error instanceof WordFault)) throw error;
    throw invalidDockerfile(place, 'word', error.message);
  }
};
