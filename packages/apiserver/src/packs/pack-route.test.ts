import type { EnvironmentConfig, Packed } from '@dsec/contract';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Fixture, image, sandboxInfo } from '../apiserver.fixture.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
});
afterEach(() => fixture[Symbol.asyncDispose]());

const [base = ''] = image.layers;
const packed = `sha256:${'b'.repeat(64)}`;
const report = { entries: 1, bytes: 1, omitted: [], checks: [] };

test('an environment that is packed keeps ENTRYPOINT and CMD of its base, though its sandboxes do not run them', async () => {
  const config: EnvironmentConfig = { ...image.config, entrypoint: ['/serve'], cmd: ['now'] };
  await fixture.services.environments.put({ name: 'b', image: { ...image, config } });
  fixture.edge.on('sandbox.get', () => Promise.resolve(sandboxInfo(fixture.sandboxId, { environment: 'b' })));
  fixture.edge.on('sandbox.pack', (params) =>
    Promise.resolve({
      image: { ...image, layers: [packed], config: params['config'] },
      report,
      frozenMs: 1,
      layers: image.layers,
    }),
  );
  const json = { name: 'whole', kind: 'environment', env: { A: '1' } };
  const answer = await fixture.ask('POST', `/sandboxes/${fixture.sandboxId}/pack`, { json });
  const { environment } = (JSON.parse(answer.text) as { readonly packed: Packed }).packed;
  expect(environment).toMatchObject({ name: 'whole', kind: 'base', entrypoint: 'ignore' });
  expect(environment?.image).toMatchObject({
    layers: [packed, base],
    config: { entrypoint: ['/serve'], cmd: ['now'], env: { A: '1' } },
  });
});
