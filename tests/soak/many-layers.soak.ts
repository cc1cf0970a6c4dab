import { expect, test } from 'vitest';
import { checkManyLayers } from '../e2e/many-layers.ts';
import { useServer } from '../e2e/started-server.ts';

const server = useServer();

test('with 20,000 layers registered a create takes what it took, and lists come page by page', async () => {
  expect(await checkManyLayers(server(), 20_000)).toBe(20_000);
}, 600_000);
