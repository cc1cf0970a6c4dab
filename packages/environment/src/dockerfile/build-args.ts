/** Values that a build is given, that it knows by itself, and that stand before the first FROM. */
import { hostArchitecture } from '../host-architecture.ts';
import { type DockerfilePlace, invalidDockerfile } from './dockerfile-error.ts';
import type { DockerfileWarning, RawWord } from './parse-dockerfile.ts';
import { type EscapeCharacter, type Expansion, expandWord } from './shell-word.ts';
import { type ArgValues, declareArgs, expanded, PROXY_ARGS, valueIn } from './stage-state.ts';
import type { Stage, Stages } from './stages.ts';

export class BuildArgs {
  readonly values: ArgValues;
  /** Of the ARGs before the first FROM. */
  readonly globals: ReadonlyMap<string, string | undefined>;
  readonly #escape: EscapeCharacter;

  /** @throws PlatformError `dockerfile_invalid` */
  constructor(stages: Stages, escape: EscapeCharacter, given: Readonly<Record<string, string>>) {
    const globals = new Map<string, string | undefined>();
    const expansion: Expansion = { escape, variable: (name) => globals.get(name) };
    this.values = { given, platform: platformArgs() };
    this.globals = globals;
    this.#escape = escape;
    for (const instruction of stages.globals) {
      const expand = (word: RawWord): string => expanded(instruction, () => expandWord(word, expansion));
      declareArgs(globals, instruction, { values: this.values, globals: new Map() }, expand);
    }
  }

  /** A name in FROM or `COPY --from`. @throws PlatformError `dockerfile_invalid`, also when nothing is left of it */
  expand(place: DockerfilePlace, word: RawWord): string {
    const variable = (name: string): string | undefined =>
      this.globals.get(name) ?? valueIn(this.values.platform, name);
    const text = expanded(place, () => expandWord(word, { escape: this.#escape, variable }));
    if (text === '') throw invalidDockerfile(place, 'from', `${word} stands for nothing`);
    return text;
  }

  /** Values that nobody asks for, as a name that was mistyped would be. */
  unasked(stages: readonly Stage[]): DockerfileWarning[] {
    const asked = new Set([...PROXY_ARGS, ...this.globals.keys()]);
    for (const { instructions } of stages) {
      for (const each of instructions) if (each.kind === 'arg') for (const { name } of each.args) asked.add(name);
    }
    return Object.keys(this.values.given)
      .filter((name) => !asked.has(name))
      .map((name) => ({ line: 1, instruction: 'ARG', message: `no ARG asks for the build argument ${name}` }));
  }
}

const platformArgs = (): Readonly<Record<string, string>> => {
  const architecture = hostArchitecture();
  const of = (prefix: string) => ({
    [`${prefix}PLATFORM`]: `linux/${architecture}`,
    [`${prefix}OS`]: 'linux',
    [`${prefix}ARCH`]: architecture,
    [`${prefix}VARIANT`]: '',
  });
  return { ...of('TARGET'), ...of('BUILD') };
};
