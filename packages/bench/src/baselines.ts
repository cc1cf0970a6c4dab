import type { Clock, Random } from '@dsec/kit';
import { DockerEngine } from './docker-engine.ts';
import { OciRuntime } from './oci-runtime.ts';
import { quantiles, ratio, type Sample } from './sample.ts';

/** What others take for the same, in the same run. */
export class Baselines implements AsyncDisposable {
  readonly #sides: readonly Side[];
  /** Side → why it was not measured. */
  readonly absent: Readonly<Record<string, string>>;

  private constructor(sides: readonly Side[], absent: Readonly<Record<string, string>>) {
    this.#sides = sides;
    this.absent = absent;
  }

  static async prepare(layer: string, clock: Clock, random: Random): Promise<Baselines> {
    const sides: Side[] = [];
    const absent: Record<string, string> = {};
    for (const name of ['crun', 'runc'] as const) {
      const runtime = await OciRuntime.prepare(name, layer, clock, random);
      const obstacle = runtime === undefined ? 'not installed' : await runtime.probe();
      if (runtime !== undefined && obstacle === undefined) sides.push({ name, runner: runtime });
      else {
        await runtime?.[Symbol.asyncDispose]();
        absent[name] = obstacle ?? 'not installed';
      }
    }
    const docker = await DockerEngine.prepare(layer, clock, random);
    if (docker === undefined) absent.docker = 'no docker engine answers';
    else sides.push({ name: 'docker', runner: docker });
    return new Baselines(sides, absent);
  }

  async measureCreates(count: number): Promise<void> {
    for (const { runner } of this.#sides) await runner.measureCreate(count);
  }

  async measureExecs(count: number): Promise<void> {
    for (const { runner } of this.#sides) await runner.measureExec(count);
  }

  /** Medians of each side, and how often ours goes into theirs. */
  values(kind: 'create' | 'exec', ours: Sample): Readonly<Record<string, number | undefined>> {
    return Object.assign(
      {},
      ...this.#sides.map(({ name, runner }) => ({
        ...quantiles(name, runner[kind]),
        [`${name}_over_p50`]: ratio(runner[kind].p50, ours.p50),
      })),
    ) as Readonly<Record<string, number | undefined>>;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { runner } of this.#sides) await runner[Symbol.asyncDispose]();
  }
}

interface Side {
  readonly name: string;
  readonly runner: OciRuntime | DockerEngine;
}
