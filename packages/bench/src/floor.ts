import { run, type Clock } from '@dsec/kit';
import { compiled } from './c-program.ts';

const PATH = '/usr/local/bin:/usr/bin:/bin';
const RUN_MS = 120_000;

export interface FloorFigures {
  readonly p50_ms: number;
  readonly p95_ms: number;
  readonly per_second: number;
}

/** The least that this kernel asks for a spawn or a sandbox, measured in plain C. */
export class Floor {
  readonly #program: string;
  readonly #clock: Clock;

  private constructor(program: string, clock: Clock) {
    this.#program = program;
    this.#clock = clock;
  }

  /** Compiles it, unless it was. */
  static async build(clock: Clock): Promise<Floor> {
    return new Floor(await compiled('floor/floor.c', clock), clock);
  }

  async measure(kind: 'spawn' | 'sandbox', n: number): Promise<FloorFigures> {
    const { stdout } = await run([this.#program, kind, String(n)], {
      clock: this.#clock,
      env: { PATH },
      timeoutMs: RUN_MS,
      errorCode: 'host_unsuitable',
    });
    return JSON.parse(stdout.toString()) as FloorFigures;
  }

  /** One on each core at once: what the whole machine does in a second. */
  async rateOfMachine(cores: number, nEach: number): Promise<number> {
    const figures = await Promise.all(Array.from({ length: cores }, () => this.measure('sandbox', nEach)));
    return figures.reduce((sum, { per_second }) => sum + per_second, 0);
  }
}
