import type { Clock } from '@dsec/kit';

/** Durations of one side of a measurement, milliseconds. */
export class Sample {
  readonly #values: number[] = [];

  add(ms: number): void {
    this.#values.push(ms);
  }

  get count(): number {
    return this.#values.length;
  }

  /** Undefined without values. */
  get p50(): number | undefined {
    return this.#quantile(0.5);
  }

  get p95(): number | undefined {
    return this.#quantile(0.95);
  }

  get p99(): number | undefined {
    return this.#quantile(0.99);
  }

  /** Times one piece of work. */
  async time<T>(clock: Clock, work: () => Promise<T>): Promise<T> {
    const startedMs = clock.monotonicMs();
    const result = await work();
    this.add(clock.monotonicMs() - startedMs);
    return result;
  }

  #quantile(share: number): number | undefined {
    const sorted = this.#values.toSorted((left, right) => left - right);
    return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
  }
}

/** Median and p95 under names of one side. */
export function quantiles(side: string, sample: Sample): Readonly<Record<string, number>> {
  const { p50, p95 } = sample;
  return p50 === undefined || p95 === undefined
    ? {}
    : { [`${side}_p50_ms`]: rounded(p50), [`${side}_p95_ms`]: rounded(p95) };
}

export const rounded = (value: number): number => Number(value.toPrecision(4));

export function ratio(above: number | undefined, below: number | undefined): number | undefined {
  return above === undefined || below === undefined || below === 0 ? undefined : rounded(above / below);
}
