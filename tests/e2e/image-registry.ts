/** A real registry on this machine, which is filled from image archives. */
import { run } from '@dsec/kit';
import { startDockerRegistry, type DockerRegistry } from '@dsec/testkit';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { clock } from './wait-for.ts';

const PATH = '/usr/local/bin:/usr/bin:/bin';
const PUSH_MS = 60_000;

export class ImageRegistry implements AsyncDisposable {
  readonly #directory: string;
  readonly #registry: DockerRegistry;

  private constructor(directory: string, registry: DockerRegistry) {
    this.#directory = directory;
    this.#registry = registry;
  }

  /** Starts docker-registry on a free port, with its files below the directory. */
  static async start(directory: string): Promise<ImageRegistry> {
    return new ImageRegistry(directory, await startDockerRegistry(directory));
  }

  /** `127.0.0.1:PORT` */
  get host(): string {
    return this.#registry.host;
  }

  /** @param archive as `docker save` writes it */
  async push(name: string, archive: Buffer): Promise<string> {
    const path = join(this.#directory, `${name.replace(/\W/g, '-')}.tar`);
    await writeFile(path, archive);
    const image = `${this.host}/${name}`;
    const argv = [
      '--insecure-policy',
      'copy',
      '--dest-tls-verify=false',
      `docker-archive:${path}`,
      `docker://${image}`,
    ];
    await run(['skopeo', ...argv], { clock, env: { PATH }, timeoutMs: PUSH_MS });
    return image;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#registry[Symbol.asyncDispose]();
  }
}
