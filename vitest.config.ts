import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['packages/**/*.test.ts', 'tests/**/*.test.ts'],
    exclude: ['**/node_modules/**', 'native/**'],
    globalSetup: ['tests/global-setup.ts'],
    pool: 'forks',
    // Two workers: suites mount, make namespaces and start daemons, and must pass on a machine with two cores.
    maxWorkers: 2,
    testTimeout: 30_000,
    hookTimeout: 60_000,
    restoreMocks: true,
  },
});
