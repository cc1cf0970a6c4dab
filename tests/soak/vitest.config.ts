import { defineConfig } from 'vitest/config';

/** What takes too long for every test run: hours are spent only when they are asked for, by `make soak`. */
export default defineConfig({
  test: {
    root: `${import.meta.dirname}/../..`,
    include: ['tests/soak/**/*.soak.ts'],
    pool: 'forks',
    maxWorkers: 1,
    testTimeout: 1_800_000,
    hookTimeout: 900_000,
  },
});
