/** A real node: the launcher with a data directory of its own, and a layer of its own. Everything ends with it. */
import { chmod, chown, copyFile, mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { createHash } from 'node:crypto';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { Process, run, SystemClock, SystemNetwork } from '@dsec/kit';
import { LauncherClient, WireClient } from '@dsec/native-link';
import type { EdgeConfig } from '../src/config.ts';
import { configFor, connectTo, idKey, waitFor } from './edge-fixture.ts';

const EDGE_UID = 64_801;
const repository = join(import.meta.dirname, '../../..');
const binaries = join(repository, 'native/bin');
const clock = new SystemClock();

export class NodeFixture implements AsyncDisposable {
  readonly data: string;
  /** Digest of the layer. */
  readonly digest: string;
  #launcher: Process;

  private constructor(data: string, digest: string, launcher: Process) {
    this.data = data;
    this.digest = digest;
    this.#launcher = launcher;
  }

  static async start(): Promise<NodeFixture> {
    const data = await mkdtemp(join(tmpdir(), 'dsec-node-'));
    await chmod(data, 0o755);
    const digest = await makeLayer(data);
    for (const directory of ['edge', 'run/edge']) {
      await mkdir(join(data, directory), { recursive: true });
      await chown(join(data, directory), EDGE_UID, EDGE_UID);
    }
    await writeFile(join(data, 'id.key'), idKey, { mode: 0o644 });
    return new NodeFixture(data, digest, await startLauncher(data));
  }

  get launcherSocket(): string {
    return join(this.data, 'run/launcher.sock');
  }

  get sandboxSockets(): string {
    return join(this.data, 'run/s');
  }

  get edgeSocket(): string {
    return join(this.data, 'run/edge/edge.sock');
  }

  /** Ends the launcher without warning and starts another. */
  async replaceLauncher(): Promise<void> {
    this.#launcher.signal('SIGKILL');
    await this.#launcher.exited;
    this.#launcher = await startLauncher(this.data);
  }

  /** An edge as a process of its own, under the user that it runs as on a node. */
  async startEdge(config: Partial<EdgeConfig> = {}): Promise<EdgeProcess> {
    const file = join(this.data, 'edge.json');
    const effective: EdgeConfig = {
      ...configFor({
        directory: join(this.data, 'edge'),
        launcherSocket: this.launcherSocket,
        sandboxSockets: this.sandboxSockets,
      }),
      sets: {
        setsDirectory: join(this.data, 'sets'),
        draftsDirectory: join(this.data, 'edge/sets'),
        layersDirectory: join(this.data, 'layers'),
      },
      socket: this.edgeSocket,
      idKeyFile: join(this.data, 'id.key'),
      uid: EDGE_UID,
      gid: EDGE_UID,
      ...config,
    };
    await writeFile(file, JSON.stringify(effective));
    return await EdgeProcess.start(file, this.edgeSocket);
  }

  /** What the launcher has. */
  async sandboxes(): Promise<readonly { readonly id: string; readonly pid: number }[]> {
    const wire = WireClient.connect(await new SystemNetwork().connectUnix(this.launcherSocket), {
      role: 'test',
      clock,
    });
    try {
      return await new LauncherClient(wire).sandboxList();
    } finally {
      await wire.close();
    }
  }

  /** Stops the launcher; fails when it still had a sandbox. */
  async [Symbol.asyncDispose](): Promise<void> {
    const left = await this.sandboxes();
    const wire = WireClient.connect(await new SystemNetwork().connectUnix(this.launcherSocket), {
      role: 'test',
      clock,
    });
    for (const { id } of left) await new LauncherClient(wire).sandboxDestroy(id);
    await wire.close();
    await this.#launcher.stop();
    // What it had made in advance outlives it.
    await run([join(binaries, 'launcher'), 'teardown', '--data', this.data], { clock });
    await rm(this.data, { recursive: true, force: true });
    if (left.length > 0) throw new Error(`${left.length} sandboxes were left: ${left.map(({ id }) => id).join(' ')}`);
  }
}

export class EdgeProcess implements AsyncDisposable {
  readonly process: Process;
  readonly client: WireClient;

  private constructor(process: Process, client: WireClient) {
    this.process = process;
    this.client = client;
  }

  static async start(configFile: string, socket: string): Promise<EdgeProcess> {
    const edge = await Process.start(
      [
        process.execPath,
        '--disable-warning=ExperimentalWarning',
        join(import.meta.dirname, '../src/main.ts'),
        '--config',
        configFile,
      ],
      { clock, env: { PATH: '/usr/bin:/bin' } },
    );
    let client: WireClient | undefined;
    await waitFor(
      async () => {
        if (!edge.isRunning) throw new Error(`the edge ended: ${edge.stderrTail}`);
        client = await connectTo(socket).catch(() => undefined);
        return client !== undefined;
      },
      'the start of the edge',
      20_000,
    );
    if (client === undefined) throw new Error('unreachable');
    await client.call('edge.info', {});
    return new EdgeProcess(edge, client);
  }

  /** Ends it without warning. */
  async kill(): Promise<void> {
    this.process.signal('SIGKILL');
    await this.process.exited;
    await this.client.close();
  }

  /** Ends it as `dsec up` does: by closing its stdin. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.client.close();
    if (this.process.isRunning) this.process.stdin.end();
    await this.process.exited;
  }
}

async function startLauncher(data: string): Promise<Process> {
  const launcher = await Process.start(
    [
      join(binaries, 'launcher'),
      'serve',
      ...['--data', data],
      ...['--aether', join(binaries, 'aether')],
      ...['--edge-uid', String(EDGE_UID)],
      ...['--edge-gid', String(EDGE_UID)],
      ...['--pool-blanks', '4'],
      ...['--pool-namespaces', '8'],
    ],
    { clock },
  );
  const socket = join(data, 'run/launcher.sock');
  await waitFor(
    async () => {
      if (!launcher.isRunning) throw new Error(`the launcher ended: ${launcher.stderrTail}`);
      const connection = await new SystemNetwork().connectUnix(socket).catch(() => undefined);
      connection?.destroy();
      return connection !== undefined;
    },
    'the start of the launcher',
    20_000,
  );
  return launcher;
}

/** What the commands of the tests need. */
const PROGRAMS = ['sh', 'cat', 'id', 'seq', 'sleep', 'true'];

/** A root filesystem with a few programs of this machine, their libraries, and two users. */
async function makeLayer(data: string): Promise<string> {
  const tree = join(data, 'tree');
  for (const directory of ['bin', 'etc', 'tmp', 'proc', 'dev', 'sys', 'root', 'run', 'var', 'home/user']) {
    await mkdir(join(tree, directory), { recursive: true });
  }
  const libraries = new Set<string>();
  for (const program of PROGRAMS) {
    await copyFile(join('/bin', program), join(tree, 'bin', program));
    const listed = (await run(['/usr/bin/ldd', join('/bin', program)], { clock })).stdout.toString();
    for (const [, library] of listed.matchAll(/(\/\S+) \(0x/g)) if (library !== undefined) libraries.add(library);
  }
  for (const library of libraries) {
    await mkdir(dirname(join(tree, library)), { recursive: true });
    await copyFile(library, join(tree, library));
  }
  await writeFile(
    join(tree, 'etc/passwd'),
    'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n',
  );
  await writeFile(join(tree, 'etc/group'), 'root:x:0:\nuser:x:1000:\n');
  await chown(join(tree, 'home/user'), 1000, 1000);
  await chmod(join(tree, 'tmp'), 0o1777);
  const image = join(data, 'rootfs.erofs');
  await run(['/usr/bin/mkfs.erofs', image, tree], { clock });
  const hex = createHash('sha256')
    .update(await readFile(image))
    .digest('hex');
  const layer = join(data, 'layers', hex);
  await mkdir(layer, { recursive: true });
  await rename(image, join(layer, 'rootfs.erofs'));
  await rm(tree, { recursive: true });
  return `sha256:${hex}`;
}
