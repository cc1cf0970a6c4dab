import { createPrivateKey, randomBytes, sign, X509Certificate } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { checkLayer, opened, testPlace, tool } from '../build.fixture.ts';
import { importImage } from '../image-import.ts';
import { readLayerRecord } from '../layer-store.ts';
import { architecture, type ImageSpec, ociLayout, saveLayout } from '../oci/oci.fixture.ts';
import { tarOf } from '../tar/tar.fixture.ts';
import { AuthFile } from './auth-file.ts';
import { pullImage } from './pull-image.ts';
import { pushImage } from './push-image.ts';
import type { LayerProgress } from './registry-files.ts';
import {
  account,
  deafPort,
  failure,
  loginText,
  multiArchitecture,
  realRegistry,
  savedLayout,
  ScriptedRegistry,
  selfSigned,
} from './registry.fixture.ts';

const spec: ImageSpec = {
  layers: [
    tarOf({ name: 'etc', type: '5' }, { name: 'etc/base', content: 'base' }, { name: 'gone', content: 'x' }),
    tarOf({ name: '.wh.gone', content: '' }, { name: 'large', content: randomBytes(3_000_000) }),
    tarOf({ name: 'etc/top', content: 'top' }),
  ],
  config: { Env: ['PATH=/opt/bin:/bin'], Cmd: ['serve'] },
  name: 'app:1',
};
const foreignArchitecture = architecture === 'amd64' ? 'arm64' : 'amd64';

const login = (registry: string, password?: string): AuthFile => AuthFile.parse(loginText(registry, password));

describe('docker-registry, filled by skopeo', () => {
  it('gives of an image on a base that is here only what is above it, and that as one more layer', async () => {
    await using place = await testPlace();
    const context = { ...place.context, notesDirectory: join(place.path, 'notes') };
    const [lowest = Buffer.alloc(0)] = spec.layers;
    await using registry = await realRegistry(place);
    const base = await saveLayout(ociLayout({ layers: [lowest], name: 'base:1' }), join(place.path, 'base'));
    await registry.copy(`oci:${base}:base:1`, 'base:1');
    await registry.copy(`oci:${await savedLayout(place, spec)}:app:1`, 'app:1');
    const lower = await pullImage(context, { reference: `${registry.host}/base:1` });
    const fetched = new Set<string>();
    const pulled = await pullImage(context, {
      reference: `${registry.host}/app:1`,
      onLayer: ({ layer }) => fetched.add(layer),
    });
    expect(pulled.layers.slice(1)).toEqual(lower.layers);
    expect(fetched.size).toBe(2);
    await using image = await opened(place.context, pulled);
    expect([await image.text('etc/base'), await image.text('etc/top')]).toEqual([undefined, 'top']);
  });

  it.each([
    ['OCI manifests', []],
    ['manifests of docker schema 2', ['--format', 'v2s2']],
  ])('gives an image with %s, the same as from a layout on this disk', async (_, options) => {
    await using place = await testPlace();
    const layout = await savedLayout(place, spec);
    await using registry = await realRegistry(place);
    await registry.copy(`oci:${layout}:app:1`, 'team/app:1', ...options);
    const events: LayerProgress[] = [];
    const reference = `${registry.host}/team/app:1`;
    const pulled = await pullImage(place.context, { reference, onLayer: (event) => events.push(event) });
    expect(pulled).toEqual(await importImage(place.context, { path: layout }));
    await using image = await opened(place.context, pulled);
    expect([await image.text('etc/base'), await image.text('etc/top'), await image.text('gone')]).toEqual([
      'base',
      'top',
      undefined,
    ]);
    expect(pulled.config).toMatchObject({ env: { PATH: '/opt/bin:/bin' }, cmd: ['serve'] });
    const record = await readLayerRecord(place.context.layersDirectory, pulled.layers[0] ?? '');
    expect(record?.source).toEqual({ kind: 'image', name: reference });
    await checkLayer(place.context, pulled);
    expect(new Set(events.map(({ layer }) => layer)).size).toBe(3);
    const last = events.at(-1);
    expect(last?.imageDoneBytes).toBe(last?.imageTotalBytes);
    expect(await place.layers()).toEqual([pulled.layers[0]?.slice(7)]);
  });

  it('gives an image by its digest, whatever the tag says now', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place);
    const layout = await savedLayout(place, spec);
    const { digest } = await pushImage(place.context, { path: layout, reference: `${registry.host}/app:1` });
    const other = await saveLayout(
      multiArchitecture('o', { layers: [tarOf({ name: 'o' })] }),
      join(place.path, 'other'),
    );
    await pushImage(place.context, { path: other, reference: `${registry.host}/app:1` });
    const pulled = await pullImage(place.context, { reference: `${registry.host}/app:1@${digest}` });
    expect(pulled).toEqual(await importImage(place.context, { path: layout }));
  });

  it('gives the image of an index that is for the processor, and says which there are when none is', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place);
    const foreign = { ...spec, architecture: foreignArchitecture, layers: [tarOf({ name: 'foreign' })] };
    const path = await saveLayout(multiArchitecture('app', foreign, spec), join(place.path, 'layout'));
    await registry.copy(`oci:${path}:app`, 'app:1', '--all');
    const reference = `${registry.host}/app:1`;
    expect((await pullImage(place.context, { reference })).architecture).toBe(architecture);
    const other = await pullImage(place.context, { reference, architecture: foreignArchitecture });
    expect(other.architecture).toBe(foreignArchitecture);
    const error = await failure(pullImage(place.context, { reference, architecture: 'riscv64' }));
    expect(error.code).toBe('image_architecture');
    expect(error.details).toEqual({
      found: [`linux/${foreignArchitecture}`, `linux/${architecture}`],
      wanted: 'linux/riscv64',
    });
  });

  it('I08: refuses an image of one foreign processor before any layer is fetched', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place);
    const layout = await savedLayout(place, { ...spec, architecture: foreignArchitecture });
    await registry.copy(`oci:${layout}:app:1`, 'app:1');
    const events: LayerProgress[] = [];
    const error = await failure(
      pullImage(place.context, { reference: `${registry.host}/app:1`, onLayer: (event) => events.push(event) }),
    );
    expect(error.code).toBe('image_architecture');
    expect(error.message).toContain(foreignArchitecture);
    expect([events, await place.layers()]).toEqual([[], []]);
  });

  it('I07: has no such image, tag or digest', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place);
    for (const name of ['nothing', 'nothing:1', `nothing@sha256:${'0'.repeat(64)}`]) {
      const error = await failure(pullImage(place.context, { reference: `${registry.host}/${name}` }));
      expect([error.code, error.retryable]).toEqual(['image_not_found', false]);
      expect(error.details['image']).toContain(`${registry.host}/nothing`);
    }
  });

  it('with htpasswd: lets in who has logged in, and nobody else', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place, { auth: 'htpasswd' });
    await registry.copy(`oci:${await savedLayout(place, spec)}:app:1`, 'app:1');
    const reference = `${registry.host}/app:1`;
    const auth = login(registry.host);
    expect((await pullImage(place.context, { reference, auth })).architecture).toBe(architecture);
    const wrong = await failure(pullImage(place.context, { reference, auth: login(registry.host, 'wrong-word') }));
    const none = await failure(pullImage(place.context, { reference }));
    expect([wrong.code, wrong.details]).toEqual([
      'registry_unauthenticated',
      { registry: registry.host, reason: 'refused' },
    ]);
    expect([none.code, none.details]).toEqual([
      'registry_unauthenticated',
      { registry: registry.host, reason: 'no_account' },
    ]);
    expect(`${wrong.message} ${wrong.stack} ${JSON.stringify(wrong)}`).not.toContain('wrong-word');
  });

  it('is asked when the mirrors before it do not answer or lack the image', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place);
    await registry.copy(`oci:${await savedLayout(place, spec)}:app:1`, 'mirrored/library/app:1');
    await using empty = await ScriptedRegistry.start();
    const mirrors = { 'docker.io': [`127.0.0.1:${await deafPort()}`, empty.host, `${registry.host}/mirrored`] };
    expect((await pullImage(place.context, { reference: 'app:1', mirrors })).architecture).toBe(architecture);
    expect(empty.seen('/v2/library/app/manifests/1')).toHaveLength(1);
  });
});

describe('docker-registry with a token server', () => {
  /** A token as docker-registry wants it (JWT, RS256, with the certificate in its head). */
  const tokenOf = (files: { readonly certificate: string; readonly key: string }, scope: string): string => {
    const encoded = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');
    const [type, name, actions = ''] = scope.split(':');
    const head = { typ: 'JWT', alg: 'RS256', x5c: [new X509Certificate(files.certificate).raw.toString('base64')] };
    const claims = {
      iss: 'test',
      aud: 'test',
      sub: account.username,
      nbf: 0,
      exp: 4_000_000_000,
      jti: '1',
      access: [{ type, name, actions: actions.split(',') }],
    };
    const signed = `${encoded(head)}.${encoded(claims)}`;
    return `${signed}.${sign('sha256', Buffer.from(signed), createPrivateKey(files.key)).toString('base64url')}`;
  };

  it('is pushed to and pulled from, with a token for just that', async () => {
    await using place = await testPlace();
    const paths = await selfSigned(place);
    const files = { certificate: await readFile(paths.certificate, 'utf8'), key: await readFile(paths.key, 'utf8') };
    await using tokens = await ScriptedRegistry.start(new Map(), (request, response, url) => {
      const basic = Buffer.from(`${account.username}:${account.password}`).toString('base64');
      if (request.headers.authorization !== `Basic ${basic}`) response.writeHead(401).end();
      else response.end(JSON.stringify({ token: tokenOf(files, url.searchParams.get('scope') ?? ''), expires_in: 3 }));
      return true;
    });
    const realm = `http://${tokens.host}/token`;
    await using registry = await realRegistry(place, { auth: { token: { realm, certificate: paths.certificate } } });
    const layout = await savedLayout(place, spec);
    const reference = `${registry.host}/team/app:1`;
    const auth = login(registry.host);
    expect(await pushImage(place.context, { path: layout, reference, auth })).toMatchObject({ uploadedBlobs: 4 });
    expect(await pullImage(place.context, { reference, auth })).toEqual(
      await importImage(place.context, { path: layout }),
    );
    const refused = await failure(pullImage(place.context, { reference, auth: login(registry.host, 'wrong') }));
    expect(refused.code).toBe('registry_unauthenticated');
    expect((await failure(pullImage(place.context, { reference }))).details['reason']).toBe('no_account');
  });
});

describe('an image that is pushed', () => {
  it('arrives whole: small blobs at once, large ones in parts, what is there not again', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place, { auth: 'htpasswd' });
    const large = tarOf({ name: 'large', content: randomBytes(20_000_000) });
    const path = await savedLayout(place, { ...spec, layers: [...spec.layers, large], packing: 'plain' });
    const push = { path, reference: `${registry.host}/team/pushed:v1`, auth: login(registry.host) };
    const done = new Map<string, number>();
    const pushed = await pushImage(place.context, {
      ...push,
      onBlob: ({ digest, doneBytes }) => done.set(digest, doneBytes),
    });
    expect(pushed).toMatchObject({ uploadedBlobs: 5, mediaType: 'application/vnd.oci.image.manifest.v1+json' });
    expect([...done.values()].toSorted((a, b) => a - b).at(-1)).toBe(large.length);
    expect(await pushImage(place.context, push)).toEqual({ ...pushed, uploadedBlobs: 0 });
    const creds = ['--src-creds', `${account.username}:${account.password}`];
    const copy = join(place.path, 'copy');
    const from = `docker://${push.reference}`;
    await tool('skopeo', '--insecure-policy', 'copy', '--src-tls-verify=false', ...creds, from, `oci:${copy}:x`);
    expect(await importImage(place.context, { path: copy })).toEqual(await importImage(place.context, { path }));
  });

  it('may be an index of several', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place);
    const foreign = { ...spec, architecture: foreignArchitecture, layers: [tarOf({ name: 'foreign' })] };
    const path = await saveLayout(multiArchitecture('app:1', foreign, spec), join(place.path, 'layout'));
    const pushed = await pushImage(place.context, { path, reference: `${registry.host}/app:2` });
    expect(pushed.mediaType).toContain('index');
    const pull = { reference: `${registry.host}/app:2`, architecture: foreignArchitecture };
    expect((await pullImage(place.context, pull)).architecture).toBe(foreignArchitecture);
  });

  it('is refused when it is damaged, to be told apart, or not this account’s to push', async () => {
    await using place = await testPlace();
    await using registry = await realRegistry(place, { auth: 'htpasswd' });
    const reference = `${registry.host}/app:1`;
    const auth = login(registry.host);
    const path = await savedLayout(place, spec, { ...spec, layers: [tarOf({ name: 'b' })], name: 'other:2' });
    const several = await failure(pushImage(place.context, { path, reference, auth }));
    expect([several.code, several.details['names']]).toEqual(['invalid_argument', ['app:1', 'other:2']]);
    expect((await failure(pushImage(place.context, { path, image: 'other:2', reference }))).code).toBe(
      'registry_unauthenticated',
    );
    expect((await pushImage(place.context, { path, image: 'other:2', reference, auth })).uploadedBlobs).toBe(2);
    const layout = JSON.parse(await readFile(join(path, 'index.json'), 'utf8')) as {
      manifests: { digest: string }[];
    };
    const manifestPath = join(path, 'blobs/sha256', layout.manifests[0]?.digest.slice(7) ?? '');
    const manifest = JSON.parse(await readFile(manifestPath, 'utf8')) as { layers: { digest: string }[] };
    const layer = manifest.layers[1]?.digest ?? '';
    const layerPath = join(path, 'blobs/sha256', layer.slice(7));
    const bytes = await readFile(layerPath);
    bytes[1000] = (bytes[1000] ?? 0) ^ 1;
    await writeFile(layerPath, bytes);
    const damaged = await failure(pushImage(place.context, { path, image: 'app:1', reference: `${reference}x`, auth }));
    expect([damaged.code, damaged.details['layer']]).toEqual(['image_corrupt', layer]);
    expect((await failure(pullImage(place.context, { reference: `${reference}x`, auth }))).code).toBe(
      'image_not_found',
    );
  });
});
