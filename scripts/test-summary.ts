/**
 * Prints how many tests passed and failed, from the report of vitest and the closing lines of cargo test, as one line
 * `N passed, N failed[, N skipped]`. Exits 1 when a test failed, a report is missing or no test ran.
 */
import { existsSync, readFileSync } from 'node:fs';

export type Counts = { readonly passed: number; readonly failed: number; readonly skipped: number };

type VitestReport = {
  readonly success: boolean;
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly numPendingTests: number;
  readonly numTodoTests: number;
};

/** A suite that fails to load has no failed test of its own: it counts as one failure. */
export function countVitest(report: VitestReport): Counts {
  const failed = report.numFailedTests === 0 && !report.success ? 1 : report.numFailedTests;
  return { passed: report.numPassedTests, failed, skipped: report.numPendingTests + report.numTodoTests };
}

export function countCargo(output: string): Counts {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  for (const match of output.matchAll(/^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored/gm)) {
    counts.passed += Number(match[1]);
    counts.failed += Number(match[2]);
    counts.skipped += Number(match[3]);
  }
  return counts;
}

if (import.meta.main) {
  const [vitestPath = '', cargoPath = ''] = process.argv.slice(2);
  let passed = 0;
  let failed = 0;
  let skipped = 0;
  for (const [path, count] of [
    [vitestPath, (text: string) => countVitest(JSON.parse(text) as VitestReport)],
    [cargoPath, countCargo],
  ] as const) {
    if (!existsSync(path)) {
      console.error(`no report at ${path}: that run did not finish`);
      failed += 1;
      continue;
    }
    const counts = count(readFileSync(path, 'utf8'));
    passed += counts.passed;
    failed += counts.failed;
    skipped += counts.skipped;
  }
  console.log(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`);
  process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
}
