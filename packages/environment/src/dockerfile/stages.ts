/** The stages of a Dockerfile, and which of them a build needs. */
import { invalidDockerfile } from './dockerfile-error.ts';
import type { Dockerfile, DockerfileInstruction } from './parse-dockerfile.ts';

type FromInstruction = Extract<DockerfileInstruction, { readonly kind: 'from' }>;
export type ArgInstruction = Extract<DockerfileInstruction, { readonly kind: 'arg' }>;
export type StageInstruction = Exclude<DockerfileInstruction, { readonly kind: 'from' }>;

export interface Stage {
  readonly index: number;
  readonly from: FromInstruction;
  readonly instructions: readonly StageInstruction[];
}

export interface Stages {
  /** Those before the first FROM, which only FROM sees, and an ARG in a stage that names one again. */
  readonly globals: readonly ArgInstruction[];
  readonly all: readonly Stage[];
}

export const stagesOf = ({ instructions }: Dockerfile): Stages => {
  const globals: ArgInstruction[] = [];
  const all: { readonly index: number; readonly from: FromInstruction; readonly instructions: StageInstruction[] }[] =
    [];
  for (const instruction of instructions) {
    const stage = all.at(-1);
    if (instruction.kind === 'from') {
      const twice = instruction.stage !== undefined && all.some(({ from }) => from.stage === instruction.stage);
      if (twice) throw invalidDockerfile(instruction, 'stage_twice', `there is a stage ${instruction.stage} already`);
      all.push({ index: all.length, from: instruction, instructions: [] });
    } else if (stage !== undefined) stage.instructions.push(instruction);
    else if (instruction.kind === 'arg') globals.push(instruction);
  }
  return { globals, all };
};

/** The stage that a build is to end with: by its name or number; the last if nothing is said. */
export const targetOf = ({ all }: Stages, target: string | undefined): Stage => {
  const last = all.at(-1);
  if (last === undefined) throw invalidDockerfile({ line: 1, instruction: '' }, 'no_from', 'there is no FROM');
  if (target === undefined) return last;
  const found = all.find(({ from, index }) => from.stage === target.toLowerCase() || String(index) === target);
  if (found !== undefined) return found;
  throw invalidDockerfile(last.from, 'no_stage', `there is no stage ${target.slice(0, 256)}`, {
    stages: all.flatMap(({ from }) => from.stage ?? []),
  });
};

/** An earlier stage of that name. @param before the number of the stage that names it */
export const earlierStage = ({ all }: Stages, name: string, before: number): Stage | undefined =>
  all.find(({ from, index }) => index < before && from.stage === name.toLowerCase());

/** What `COPY --from` means: an earlier stage by name or number, or else an environment or image. */
export const copySource = (stages: Stages, name: string, before: number): Stage | undefined =>
  earlierStage(stages, name, before) ?? stages.all.find(({ index }) => index < before && String(index) === name);
