import { run, type Argv, type Clock, type Random } from '@dsec/kit';
import { PlatformError } from '@dsec/contract';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { mountLayer } from './layer-mount.ts';
import { Sample } from './sample.ts';

const env = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' } as const;
const SCRIPT = join(import.meta.dirname, '../oci/measure.bash');
const MEASURE_MS = 120_000;

/**
 * An OCI runtime on a real bundle, whose root is the same EROFS image that our sandboxes have. `run -d` with a first command after
 * it is what our create until the first result is compared with; `exec` is compared with ours.
 */
export class OciRuntime implements AsyncDisposable {
  readonly name: string;
  readonly create = new Sample();
  readonly exec = new Sample();
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #directory: string;

  private constructor(name: string, clock: Clock, random: Random, directory: string) {
    this.name = name;
    this.#clock = clock;
    this.#random = random;
    this.#directory = directory;
  }

  /** Undefined when it is not installed. */
  static async prepare(
    name: 'crun' | 'runc',
    layer: string,
    clock: Clock,
    random: Random,
  ): Promise<OciRuntime | undefined> {
    const isInstalled = await run([name, '--version'], { clock, env }).then(
      () => true,
      () => false,
    );
    if (!isInstalled) return undefined;
    const directory = await mkdtemp(join(tmpdir(), `dsec-${name}-`));
    const runtime = new OciRuntime(name, clock, random, directory);
    try {
      await mkdir(join(directory, 'bundle/rootfs'), { recursive: true });
      await mkdir(join(directory, 'state'));
      await mountLayer(layer, runtime.#path('bundle/rootfs'), clock);
      await writeFile(join(directory, 'bundle/config.json'), JSON.stringify(bundleConfig(['sleep', 'infinity'])));
      return runtime;
    } catch (error) {
      await runtime[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Whether it can run a container on this host at all; the reason when not. */
  async probe(): Promise<string | undefined> {
    try {
      await this.#measure('create', 1);
      return undefined;
    } catch (error) {
      return PlatformError.is(error) ? String(error.details.stderr ?? error.message).trim() : String(error);
    }
  }

  /** `count` containers, one after another, each until the result of its first command. */
  async measureCreate(count: number): Promise<void> {
    for (const ms of await this.#measure('create', count)) this.create.add(ms);
  }

  /** `count` commands in one container. */
  async measureExec(count: number): Promise<void> {
    for (const ms of await this.#measure('exec', count)) this.exec.add(ms);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await run(['umount', this.#path('bundle/rootfs')], { clock: this.#clock, env, okExitCodes: [0, 1, 32] });
    await rm(this.#directory, { recursive: true, force: true });
  }

  async #measure(kind: 'create' | 'exec', count: number): Promise<readonly number[]> {
    const id = `dsec-bench-${this.#random.base36(12)}`;
    const script = ['bash', SCRIPT, this.name, this.#path('state'), this.#path('bundle'), kind, String(count), id];
    const argv: Argv = ['unshare', '--mount', '--propagation', 'private', ...script];
    const { stdout } = await run(argv, { clock: this.#clock, env, timeoutMs: MEASURE_MS });
    return stdout
      .toString()
      .trim()
      .split('\n')
      .map((micros) => Number(micros) / 1000);
  }

  #path(name: string): string {
    return join(this.#directory, name);
  }
}

/** Namespaces, mounts and limits as one of our sandboxes has them, as far as the format knows them. */
function bundleConfig(args: readonly string[]): object {
  const mount = (destination: string, type: string, options: readonly string[] = []): object => ({
    destination,
    type,
    source: type,
    options,
  });
  return {
    ociVersion: '1.0.2',
    process: {
      terminal: false,
      user: { uid: 0, gid: 0 },
      args,
      env: [`PATH=${env.PATH}`],
      cwd: '/',
      capabilities: {},
      noNewPrivileges: true,
    },
    root: { path: 'rootfs', readonly: true },
    hostname: 'bench',
    mounts: [
      mount('/proc', 'proc'),
      mount('/dev', 'tmpfs', ['nosuid', 'strictatime', 'mode=755', 'size=65536k']),
      mount('/dev/pts', 'devpts', ['nosuid', 'noexec', 'newinstance', 'ptmxmode=0666', 'mode=0620']),
      mount('/tmp', 'tmpfs', ['nosuid', 'nodev', 'mode=1777']),
      mount('/sys', 'sysfs', ['nosuid', 'noexec', 'nodev', 'ro']),
    ],
    linux: {
      namespaces: ['pid', 'network', 'ipc', 'uts', 'mount'].map((type) => ({ type })),
      resources: { memory: { limit: 268_435_456 }, pids: { limit: 256 } },
      maskedPaths: ['/proc/kcore', '/proc/keys'],
      readonlyPaths: ['/proc/sys'],
    },
  };
}
