import type { ReleasedLayers } from '@dsec/contract';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Fixture, image } from '../apiserver.fixture.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
});
afterEach(() => fixture[Symbol.asyncDispose]());

const layer = (digit: string): string => `sha256:${digit.repeat(64)}`;
const put = (name: string, layers: readonly string[]) =>
  fixture.services.environments.put({ name, image: { ...image, layers: [...layers] } });
const release = (layers: readonly string[], more: object = {}) =>
  fixture.ask('POST', '/layers/release', { json: { layers, ...more } });

test('what an environment names stays, and the edge is asked about the rest', async () => {
  await put('a', [layer('1'), layer('2')]);
  const sets = [{ set: layer('f'), sizeBytes: 3 }];
  fixture.edge.on('layer.release', () =>
    Promise.resolve({
      layers: [
        { layer: layer('3'), heldBy: 'sandbox' },
        { layer: layer('4'), heldBy: null },
      ],
      sets,
    }),
  );
  const answer = await release(['1', '2', '3', '4', '5'].map(layer), { dryRun: true });
  expect(answer.json<ReleasedLayers>()).toEqual({
    layers: [
      { layer: layer('1'), heldBy: 'environment' },
      { layer: layer('2'), heldBy: 'environment' },
      { layer: layer('3'), heldBy: 'sandbox' },
      { layer: layer('4'), heldBy: null },
      // Nobody has said that it is free.
      { layer: layer('5'), heldBy: 'environment' },
    ],
    sets,
  });
  expect(fixture.edge.last('layer.release')).toEqual({ layers: ['3', '4', '5'].map(layer), dryRun: true });
  await fixture.services.environments.remove('a');
  await release([layer('1')]);
  expect(fixture.edge.last('layer.release')).toEqual({ layers: [layer('1')], dryRun: false });
});

test('what gets a name while the edge is asked stays', async () => {
  fixture.edge.on('layer.release', async () => {
    await put('packed', [layer('1')]);
    return { layers: [{ layer: layer('1'), heldBy: null }], sets: [] };
  });
  expect((await release([layer('1')])).json<ReleasedLayers>().layers).toEqual([
    { layer: layer('1'), heldBy: 'environment' },
  ]);
});

test.each([
  [['sha256:../../etc'], {}, 400, 'invalid_argument'],
  [Array.from({ length: 1025 }, () => layer('1')), {}, 400, 'invalid_argument'],
  [[layer('1')], { dryRun: 'yes' }, 400, 'invalid_argument'],
  [[layer('1')], { force: true }, 400, 'invalid_argument'],
])('bad requests are refused (%#)', async (layers, more, status, code) => {
  const answer = await release(layers, more);
  expect([answer.status, answer.error.code]).toEqual([status, code]);
  expect(fixture.edge.calls).toEqual([]);
});

test('an answer that is not of its form is not passed on', async () => {
  fixture.edge.on('layer.release', () => Promise.resolve({ layers: [{ layer: layer('1'), heldBy: 'me' }], sets: [] }));
  expect((await release([layer('1')])).error.code).toBe('protocol_error');
});
