import { run, type Argv, type Clock, type Random } from '@dsec/kit';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { mountLayer } from './layer-mount.ts';
import { Sample } from './sample.ts';

const env = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', HOME: '/root' } as const;
const STEP_MS = 120_000;

/** Docker's engine, where one answers, with an image of the same files. */
export class DockerEngine implements AsyncDisposable {
  readonly create = new Sample();
  readonly exec = new Sample();
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #image: string;

  private constructor(clock: Clock, random: Random) {
    this.#clock = clock;
    this.#random = random;
    this.#image = `dsec-bench:${random.base36(12)}`;
  }

  /** Undefined when no engine answers. */
  static async prepare(layer: string, clock: Clock, random: Random): Promise<DockerEngine | undefined> {
    const answers = await run(['docker', 'version', '--format', '{{.Server.Version}}'], {
      clock,
      env,
      timeoutMs: 10_000,
    }).then(
      () => true,
      () => false,
    );
    if (!answers) return undefined;
    const engine = new DockerEngine(clock, random);
    await engine.#import(layer);
    return engine;
  }

  async measureCreate(count: number): Promise<void> {
    for (let i = 0; i < count; i += 1) await this.#createOne();
  }

  async #createOne(): Promise<void> {
    const id = this.#newId();
    try {
      await this.create.time(this.#clock, async () => {
        await this.#docker(
          'run',
          '-d',
          '--name',
          id,
          '--network',
          'none',
          '--memory',
          '256m',
          '--pids-limit',
          '256',
          this.#image,
          'sleep',
          'infinity',
        );
        await this.#docker('exec', id, 'true');
      });
    } finally {
      await this.#docker('rm', '-f', id);
    }
  }

  async measureExec(count: number): Promise<void> {
    const id = this.#newId();
    await this.#docker('run', '-d', '--name', id, '--network', 'none', this.#image, 'sleep', 'infinity');
    try {
      for (let i = 0; i < count; i += 1) await this.exec.time(this.#clock, () => this.#docker('exec', id, 'true'));
    } finally {
      await this.#docker('rm', '-f', id);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#docker('rmi', '-f', this.#image);
  }

  async #import(layer: string): Promise<void> {
    const directory = await mkdtemp(join(tmpdir(), 'dsec-docker-'));
    try {
      await mountLayer(layer, directory, this.#clock);
      try {
        // One shell-free pipe: the tar goes through a file.
        const tar = `${directory}.tar`;
        await this.#run(['tar', '-C', directory, '-cf', tar, '.']);
        await this.#docker('import', tar, this.#image);
        await rm(tar);
      } finally {
        await this.#run(['umount', directory]);
      }
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  }

  #newId(): string {
    return `dsec-bench-${this.#random.base36(12)}`;
  }

  #docker(...args: readonly string[]): Promise<void> {
    return this.#run(['docker', ...args]);
  }

  async #run(argv: Argv): Promise<void> {
    await run(argv, { clock: this.#clock, env, timeoutMs: STEP_MS });
  }
}
