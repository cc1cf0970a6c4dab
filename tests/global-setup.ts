/**
 * Runs once around the whole test run. What is registered here is released in reverse order after the last suite,
 * each step even when another one fails.
 */
type Teardown = () => Promise<void> | void;

const teardowns: readonly Teardown[] = [];

export default function setup(): () => Promise<void> {
  return async () => {
    const failures: unknown[] = [];
    for (const teardown of teardowns.toReversed()) {
      try {
        await teardown();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw new AggregateError(failures, 'global teardown left something behind');
  };
}
