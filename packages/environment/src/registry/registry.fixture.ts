import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { type SleepOptions, SystemClock } from '@dsec/kit';
import { startDockerRegistry } from '@dsec/testkit';
import { type TestPlace, tool } from '../build.fixture.ts';
import { type ImageSpec, type LayoutFiles, ociLayout, saveLayout, sha256 } from '../oci/oci.fixture.ts';

/** The account of registries that want one. */
export const account = { username: 'dsec', password: 'se cret:word' } as const;
/** Of {@link account}, as `htpasswd -B` writes it. */
const HTPASSWD = 'dsec:$2y$04$Ujgg24P4TCLVAGZlGcccleS4Tr.gk0f9OCHj360xR6hA7WepXPN8q';

/** A clock on which waiting takes no time. */
export class HastyClock extends SystemClock {
  readonly waits: number[] = [];

  override sleep(ms: number, options: SleepOptions = {}): Promise<void> {
    this.waits.push(ms);
    return super.sleep(0, options);
  }
}

export interface RealRegistry extends AsyncDisposable {
  /** `127.0.0.1:PORT` */
  readonly host: string;
  /** Fills it from a layout, with skopeo. */
  copy(layout: string, to: string, ...options: readonly string[]): Promise<void>;
}

export interface RealRegistryOptions {
  /** @default nobody has to prove anything */
  readonly auth?: 'htpasswd' | { readonly token: { readonly realm: string; readonly certificate: string } };
}

/** Starts docker-registry on a free port, with its files in the place. */
export const realRegistry = async (place: TestPlace, options: RealRegistryOptions = {}): Promise<RealRegistry> => {
  const { auth } = options;
  const directory = join(place.path, 'registry');
  await mkdir(directory, { recursive: true });
  await writeFile(join(directory, 'htpasswd'), `${HTPASSWD}\n`);
  const authConfig =
    auth === undefined
      ? {}
      : auth === 'htpasswd'
        ? { auth: { htpasswd: { realm: 'test', path: join(directory, 'htpasswd') } } }
        : {
            auth: {
              token: {
                realm: auth.token.realm,
                service: 'test',
                issuer: 'test',
                rootcertbundle: auth.token.certificate,
              },
            },
          };
  const registry = await startDockerRegistry(directory, authConfig);
  const { host } = registry;
  return {
    host,
    copy: async (layout, to, ...more) => {
      const creds = auth === 'htpasswd' ? ['--dest-creds', `${account.username}:${account.password}`] : [];
      const target = `docker://${host}/${to}`;
      await tool('skopeo', '--insecure-policy', 'copy', '--dest-tls-verify=false', ...creds, ...more, layout, target);
    },
    [Symbol.asyncDispose]: () => registry[Symbol.asyncDispose](),
  };
};

/** A key and a certificate of it that nobody vouches for: paths of PEM files in the place. */
export const selfSigned = async (place: TestPlace): Promise<{ readonly certificate: string; readonly key: string }> => {
  const [certificate, key] = [join(place.path, 'test.crt'), join(place.path, 'test.key')];
  const form = ['-x509', '-newkey', 'rsa:2048', '-nodes', '-subj', '/CN=test', '-days', '2'];
  await tool('openssl', 'req', ...form, '-keyout', key, '-out', certificate);
  return { certificate, key };
};

/** Whatever an image is, as `oci:` of skopeo takes it. */
export const savedLayout = async (place: TestPlace, ...images: readonly ImageSpec[]): Promise<string> =>
  await saveLayout(ociLayout(...images), join(place.path, 'layout'));

const INDEX_TYPE = 'application/vnd.oci.image.index.v1+json';

/** A layout with one image for several architectures. */
export const multiArchitecture = (name: string, ...images: readonly ImageSpec[]): LayoutFiles => {
  const files = ociLayout(...images);
  const index = Buffer.from(
    JSON.stringify({ ...(JSON.parse(String(files.get('index.json'))) as object), mediaType: INDEX_TYPE }),
  );
  const digest = sha256(index);
  files.set(`blobs/sha256/${digest.slice(7)}`, index);
  const annotations = { 'org.opencontainers.image.ref.name': name };
  const top = { mediaType: INDEX_TYPE, digest, size: index.length, annotations };
  files.set('index.json', Buffer.from(JSON.stringify({ schemaVersion: 2, manifests: [top] })));
  return files;
};

/** Answers a request, or leaves it (undefined, false) to the layout. */
export type Fault = (request: IncomingMessage, response: ServerResponse, url: URL) => boolean | undefined;

export interface Seen {
  readonly method: string;
  readonly path: string;
  readonly authorization: string | undefined;
  readonly range: string | undefined;
}

/** A registry that holds one layout and does what a test tells it to. */
export class ScriptedRegistry implements AsyncDisposable {
  readonly requests: Seen[] = [];
  readonly #server: Server;
  readonly #files: LayoutFiles;
  fault: Fault = () => undefined;

  private constructor(files: LayoutFiles) {
    this.#files = files;
    this.#server = createServer((request, response) => {
      const url = new URL(request.url ?? '', 'http://localhost');
      const { authorization, range } = request.headers;
      this.requests.push({ method: request.method ?? '', path: url.pathname, authorization, range });
      if (this.fault(request, response, url) !== true) this.serve(request, response, url);
    });
  }

  static async start(files: LayoutFiles = new Map(), fault?: Fault): Promise<ScriptedRegistry> {
    const registry = new ScriptedRegistry(files);
    if (fault !== undefined) registry.fault = fault;
    await new Promise<void>((resolve) => registry.#server.listen(0, '127.0.0.1', resolve));
    return registry;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get host(): string {
    return `127.0.0.1:${this.port}`;
  }

  /** Requests whose path has this in it. */
  seen(part: string): readonly Seen[] {
    return this.requests.filter(({ path }) => path.includes(part));
  }

  serve(request: IncomingMessage, response: ServerResponse, url: URL): void {
    const [, kind, selector = ''] = /\/(manifests|blobs)\/([^/]+)$/.exec(url.pathname) ?? [];
    const top = JSON.parse(String(this.#files.get('index.json') ?? '{"manifests":[{}]}')) as {
      manifests: readonly { readonly digest?: string; readonly mediaType?: string }[];
    };
    const digest = selector.startsWith('sha256:') ? selector : (top.manifests[0]?.digest ?? '');
    const bytes = this.#files.get(`blobs/sha256/${digest.slice(7)}`);
    if (kind === undefined || bytes === undefined) {
      response.writeHead(404).end();
      return;
    }
    if (kind === 'manifests') {
      const { mediaType } = JSON.parse(bytes.toString()) as { readonly mediaType: string };
      response.setHeader('content-type', `${mediaType}; charset=utf-8`).end(bytes);
      return;
    }
    const start = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0);
    if (start > 0) response.writeHead(206, { 'content-range': `bytes ${start}-${bytes.length - 1}/${bytes.length}` });
    response.end(bytes.subarray(start));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** A port of this machine at which nobody listens. */
export const deafPort = async (): Promise<number> => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  await new Promise<void>((resolve) => {
    connect(port, '127.0.0.1').once('error', () => resolve());
  });
  return port;
};

/** What a call fails with. */
export const failure = async (call: Promise<unknown>): Promise<PlatformError> => {
  const error: unknown = await call.then(
    () => undefined,
    (caught: unknown) => caught,
  );
  if (!PlatformError.is(error)) throw new Error('a PlatformError was expected', { cause: error });
  return error;
};

/** The text of a docker login's file. */
export const loginText = (registry: string, password: string = account.password): string =>
  JSON.stringify({
    auths: { [registry]: { auth: Buffer.from(`${account.username}:${password}`).toString('base64') } },
  });
