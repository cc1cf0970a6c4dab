import { rounded } from './sample.ts';

/** A value that a benchmark is held to. */
export interface Bar {
  readonly name: string;
  readonly least?: number;
  readonly most?: number;
}

/** What a benchmark found. */
export interface Findings {
  readonly n: number;
  readonly failures: number;
  /** Undefined: it could not be measured. */
  readonly values: Readonly<Record<string, number | undefined>>;
  /** Side → why it was not measured. */
  readonly absent: Readonly<Record<string, string>>;
}

/** The JSON object that a benchmark prints last. A bar that was missed, or could not be measured, is named, never left out. */
export function reportOf(bench: string, findings: Findings, bars: readonly Bar[]): Readonly<Record<string, unknown>> {
  const { n, failures, values, absent } = findings;
  const missed = bars
    .filter((bar) => isMissed(bar, values[bar.name]))
    .map((bar) => `${bar.name} ${describe(bar)}, is ${values[bar.name]}`);
  if (failures > 0) missed.push(`failures = 0, is ${failures}`);
  const measured = Object.fromEntries(
    Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [[name, rounded(value)]])),
  );
  const notMeasured = Object.entries(absent).map(([side, why]) => `${side}: ${why}`);
  return { bench, n, failures, ...measured, missed, not_measured: notMeasured };
}

function isMissed({ least, most }: Bar, value: number | undefined): boolean {
  if (value === undefined) return false;
  return (least !== undefined && value < least) || (most !== undefined && value > most);
}

function describe({ least, most }: Bar): string {
  return least === undefined ? `≤ ${most}` : `≥ ${least}`;
}
