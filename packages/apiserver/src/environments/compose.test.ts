import { limits, type Environment, type EnvironmentImage, type EnvironmentKind } from '@dsec/contract';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Fixture, image, sandboxInfo, newSandboxId } from '../apiserver.fixture.ts';

let fixture: Fixture;
beforeEach(async () => {
  fixture = await Fixture.start();
});
afterEach(() => fixture[Symbol.asyncDispose]());

const layer = (name: string): string => `sha256:${Buffer.from(name).toString('hex').padEnd(64, '0')}`;

interface Parts {
  readonly layers?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly workdir?: string;
  readonly architecture?: string;
}

async function put(name: string, kind: EnvironmentKind | undefined, parts: Parts = {}): Promise<Environment> {
  const { layers = [name], env = {}, workdir = '', architecture = image.architecture } = parts;
  const made: EnvironmentImage = {
    ...image,
    layers: layers.map(layer),
    config: { ...image.config, env, workdir },
    architecture,
    sizeBytes: 10,
  };
  const answer = await fixture.ask('PUT', `/environments/${name}`, {
    json: { name, image: made, ...(kind === undefined ? {} : { kind }) },
  });
  expect(answer.status).toBe(200);
  return answer.json<Environment>();
}

/** The image that the edge is asked for. */
async function composed(create: object, path = '/sandboxes'): Promise<EnvironmentImage> {
  let asked: EnvironmentImage | undefined;
  fixture.edge.on('sandbox.create', (params) => {
    asked = (params as { readonly image: EnvironmentImage }).image;
    return Promise.resolve(sandboxInfo(newSandboxId()));
  });
  const answer = await fixture.ask('POST', path, { json: create });
  expect(answer.text).toContain('sandboxId');
  if (asked === undefined) throw new Error('the edge was not asked');
  return asked;
}

describe('a create', () => {
  test('stands on toolkits, workspace and base, the last toolkit topmost', async () => {
    await put('b', undefined, { layers: ['b2', 'b1'] });
    await put('w:1', 'workspace');
    await put('t1:3', 'toolkit');
    await put('t2', 'toolkit', { layers: ['t2b', 't2a'] });
    const { layers, sizeBytes } = await composed({ environment: 'b', workspace: 'w:1', toolkits: ['t1:3', 't2'] });
    expect(layers).toEqual(['t2b', 't2a', 't1:3', 'w:1', 'b2', 'b1'].map(layer));
    expect(sizeBytes).toBe(40);
    expect((await composed({ environment: 'b' })).layers).toEqual(['b2', 'b1'].map(layer));
    expect((await composed({ environment: 'b', toolkits: [] })).layers).toEqual(['b2', 'b1'].map(layer));
  });

  test('takes each layer once, where it counts', async () => {
    await put('b', 'base', { layers: ['x', 'b'] });
    await put('t', 'toolkit', { layers: ['t', 'x'] });
    const { layers } = await composed({ environment: 'b', toolkits: ['t', 't'] });
    expect(layers).toEqual(['t', 'x', 'b'].map(layer));
  });

  test('joins the variables and the PATH, and takes the directory of the workspace', async () => {
    await put('b', 'base', { env: { PATH: '/usr/bin:/bin', A: 'b', B: 'b' }, workdir: '/root' });
    await put('w', 'workspace', { env: { A: 'w' }, workdir: '/project' });
    await put('t1', 'toolkit', { env: { PATH: '/opt/t1/bin:/usr/bin', C: 't1' }, workdir: '/opt/t1' });
    await put('t2', 'toolkit', { env: { PATH: '/opt/t2/bin', C: 't2' } });
    const { config } = await composed({ environment: 'b', workspace: 'w', toolkits: ['t1', 't2'] });
    expect(config.env).toEqual({ PATH: '/opt/t2/bin:/opt/t1/bin:/usr/bin:/bin', A: 'w', B: 'b', C: 't2' });
    expect(config.workdir).toBe('/project');
  });

  test('uses a toolkit that was given anew from then on', async () => {
    await put('b', 'base');
    await put('t', 'toolkit', { layers: ['old'] });
    expect((await composed({ environment: 'b', toolkits: ['t'] })).layers[0]).toBe(layer('old'));
    await put('t', 'toolkit', { layers: ['new'] });
    expect((await composed({ environment: 'b', toolkits: ['t'] })).layers).toEqual(['new', 'b'].map(layer));
  });

  test.each<[string, object, number, string, object]>([
    ['an unknown workspace', { workspace: 'no' }, 404, 'environment_not_found', { environment: 'no' }],
    ['an unknown toolkit', { toolkits: ['t', 'no'] }, 404, 'environment_not_found', { environment: 'no' }],
    ['a toolkit as workspace', { workspace: 't' }, 400, 'invalid_argument', { field: 'workspace', kind: 'toolkit' }],
    ['a base as toolkit', { toolkits: ['b'] }, 400, 'invalid_argument', { field: 'toolkits', kind: 'base' }],
    ['a workspace as environment', { environment: 'w' }, 400, 'invalid_argument', { field: 'environment' }],
    ['another architecture', { toolkits: ['arm'] }, 422, 'image_architecture', { environment: 'arm' }],
    ['too many toolkits', { toolkits: Array(limits.toolkits + 1).fill('t') }, 400, 'invalid_argument', {}],
    ['too many layers', { toolkits: ['many', 'more'] }, 400, 'invalid_argument', { limit: limits.layers }],
    ['a name that is none', { toolkits: ['../t'] }, 400, 'invalid_argument', {}],
  ])('with %s is refused', async (_name, more, status, code, details) => {
    const many = (from: string): string[] => Array.from({ length: 40 }, (_, i) => `${from}${i}`);
    await put('b', 'base');
    await put('w', 'workspace');
    await put('t', 'toolkit');
    await put('arm', 'toolkit', { architecture: 'other' });
    await put('many', 'toolkit', { layers: many('m') });
    await put('more', 'toolkit', { layers: many('n') });
    const answer = await fixture.ask('POST', '/sandboxes', { json: { environment: 'b', ...more } });
    expect([answer.status, answer.error.code]).toEqual([status, code]);
    expect(answer.error.details).toMatchObject(details);
    expect(fixture.edge.calls).toEqual([]);
    const bulk = await fixture.ask('POST', '/sandboxes/bulk', {
      json: { count: 2, template: { environment: 'b', ...more } },
    });
    expect([bulk.status, bulk.error.code]).toEqual([status, code]);
  });
});
