import { describe, expect, it } from 'vitest';
import { countCargo, countVitest } from '../../scripts/test-summary.ts';

describe('test summary', () => {
  it('sums the closing lines of all binaries that cargo test ran', () => {
    const output = [
      'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s',
      'test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s',
      'a line that says test result: ok. 9 passed; 0 failed; 0 ignored',
    ].join('\n');
    expect(countCargo(output)).toEqual({ passed: 5, failed: 4, skipped: 1 });
  });

  it('counts a vitest suite that could not be loaded as a failure', () => {
    const report = { success: false, numPassedTests: 7, numFailedTests: 0, numPendingTests: 1, numTodoTests: 0 };
    expect(countVitest(report)).toEqual({ passed: 7, failed: 1, skipped: 1 });
    expect(countVitest({ ...report, numFailedTests: 2 }).failed).toBe(2);
    expect(countVitest({ ...report, success: true }).failed).toBe(0);
  });
});
