import type { EnvironmentUsage } from '@dsec/contract';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Fixture, image } from '../apiserver.fixture.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
});
afterEach(() => fixture[Symbol.asyncDispose]());

const layer = (name: string): string => `sha256:${name.padEnd(64, '0')}`;
const put = async (name: string, layers: readonly string[]): Promise<void> => {
  const json = { name, image: { ...image, layers: layers.map(layer) } };
  expect((await fixture.ask('PUT', `/environments/${encodeURIComponent(name)}`, { json })).status).toBe(200);
};
const state = { dataBytes: 1000, presentBytes: 400, touchedBytes: 250, sandboxes: 2 };

describe('the usage of an environment', () => {
  test('has what the edge says of its layers, the share that was touched, and who else has them', async () => {
    await put('a/b', ['1', '2', '3']);
    await put('other', ['2', '3']);
    await put('third', ['3', '3', '4']);
    fixture.edge.on('layer.usage', ({ layers }) =>
      Promise.resolve({
        sandboxes: 5,
        layers: (layers as readonly string[]).map((name, index) => ({
          layer: name,
          ...state,
          ...(index === 1
            ? { touchedBytes: null }
            : index === 2
              ? { dataBytes: 0, presentBytes: 0, touchedBytes: 0 }
              : {}),
        })),
      }),
    );
    const answer = await fixture.ask('GET', '/environments/a%2Fb/usage');
    expect(answer.json<EnvironmentUsage>()).toEqual({
      name: 'a/b',
      sandboxes: 5,
      layers: [
        { layer: layer('1'), ...state, touchedShare: 0.25, otherEnvironments: 0 },
        { layer: layer('2'), ...state, touchedBytes: null, touchedShare: null, otherEnvironments: 1 },
        {
          layer: layer('3'),
          ...state,
          ...{ dataBytes: 0, presentBytes: 0, touchedBytes: 0 },
          touchedShare: null,
          otherEnvironments: 2,
        },
      ],
    });
    // Counted anew after each change.
    const othersOf = async (): Promise<readonly number[]> =>
      (await fixture.ask('GET', '/environments/a%2Fb/usage'))
        .json<EnvironmentUsage>()
        .layers.map(({ otherEnvironments }) => otherEnvironments);
    await put('other', ['1']);
    expect(await othersOf()).toEqual([1, 0, 1]);
    await fixture.ask('DELETE', '/environments/third');
    expect(await othersOf()).toEqual([1, 0, 0]);
    expect(fixture.edge.last('layer.usage')).toEqual({ environment: 'a/b', layers: ['1', '2', '3'].map(layer) });
  });

  test.each([
    ['/environments/none/usage', 404, 'environment_not_found'],
    ['/environments/..%2Fx/usage', 400, 'invalid_argument'],
    ['/environments/e/usage?x=1', 400, 'invalid_argument'],
    ['/compositions?limit=0', 400, 'invalid_argument'],
    ['/compositions?cursor=x', 400, 'invalid_argument'],
  ])('is refused: %s', async (path, status, code) => {
    await put('e', ['1']);
    const answer = await fixture.ask('GET', path);
    expect([answer.status, answer.error.code]).toEqual([status, code]);
    expect(fixture.edge.calls).toEqual([]);
  });

  test('is not passed on when it is not of its form', async () => {
    await put('e', ['1']);
    fixture.edge.on('layer.usage', () => Promise.resolve({ sandboxes: -1, layers: [] }));
    expect((await fixture.ask('GET', '/environments/e/usage')).error.code).toBe('protocol_error');
  });
});

test('compositions come page by page, as the edge has them', async () => {
  const page = {
    compositions: [
      { environment: 'b', workspace: null, toolkits: ['t'], sandboxes: 3, recentSandboxes: 1.25, lastCreatedAtMs: 9 },
    ],
    cursor: '7',
  };
  fixture.edge.on('composition.list', () => Promise.resolve(page));
  expect((await fixture.ask('GET', '/compositions?limit=1&cursor=3')).json()).toEqual(page);
  expect(fixture.edge.last('composition.list')).toEqual({ limit: 1, cursor: '3' });
});
