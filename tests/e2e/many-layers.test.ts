import { expect, test } from 'vitest';
import { checkManyLayers } from './many-layers.ts';
import { useServer } from './started-server.ts';

const server = useServer();

test('with thousands of layers registered a create takes what it took, and lists come page by page', async () => {
  expect(await checkManyLayers(server(), 3000)).toBe(3000);
}, 120_000);
