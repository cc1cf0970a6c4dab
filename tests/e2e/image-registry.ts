/** A real registry on this machine, which is filled from image archives. */
import { Process, run } from '@dsec/kit';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { clock } from './wait-for.ts';

const PATH = '/usr/local/bin:/usr/bin:/bin';
const LISTENING = /listening on [^ ]*:([0-9]+)/;
const PUSH_MS = 60_000;

export class ImageRegistry implements AsyncDisposable {
  /** `127.0.0.1:PORT` */
  readonly host: string;
  readonly #directory: string;
  readonly #process: Process;

  private constructor(host: string, directory: string, process: Process) {
    this.host = host;
    this.#directory = directory;
    this.#process = process;
  }

  /** Starts docker-registry on a free port, with its files below the directory. */
  static async start(directory: string): Promise<ImageRegistry> {
    await mkdir(directory, { recursive: true });
    const config = join(directory, 'config.yml');
    const storage = { filesystem: { rootdirectory: join(directory, 'data') } };
    await writeFile(config, JSON.stringify({ version: '0.1', storage, http: { addr: '127.0.0.1:0' } }));
    const process = await Process.start(['docker-registry', 'serve', config], { clock, env: { PATH }, stderr: 'pipe' });
    const port = await new Promise<string>((resolve, reject) => {
      let said = '';
      // It is listened to until its end: a full pipe would stop it.
      process.stderr.on('data', (chunk: Buffer) => {
        said = `${said}${chunk.toString()}`.slice(-4096);
        const found = LISTENING.exec(said)?.[1];
        if (found !== undefined) resolve(found);
      });
      process.stderr.once('close', () => reject(new Error(`docker-registry did not start: ${said}`)));
    });
    return new ImageRegistry(`127.0.0.1:${port}`, directory, process);
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
    await this.#process.stop();
  }
}
