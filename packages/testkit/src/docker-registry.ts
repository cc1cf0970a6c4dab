import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Process, SystemClock } from '@dsec/kit';

const PATH = '/usr/local/bin:/usr/bin:/bin';
const LISTENING = /listening on [^ ]*:([0-9]+)/;
const LAST_WORDS = 4096;

export interface DockerRegistry extends AsyncDisposable {
  /** `127.0.0.1:PORT` */
  readonly host: string;
}

/** Starts docker-registry on a free port, with its files below the directory. @param more members of its configuration */
export async function startDockerRegistry(
  directory: string,
  more: Readonly<Record<string, unknown>> = {},
): Promise<DockerRegistry> {
  await mkdir(directory, { recursive: true });
  const config = {
    version: '0.1',
    log: { level: 'info' },
    storage: { filesystem: { rootdirectory: join(directory, 'data') } },
    http: { addr: '127.0.0.1:0' },
    ...more,
  };
  const file = join(directory, 'config.yml');
  await writeFile(file, JSON.stringify(config));
  const registry = await Process.start(['docker-registry', 'serve', file], {
    clock: new SystemClock(),
    env: { PATH },
    stderr: 'pipe',
  });
  const port = await new Promise<string>((resolve, reject) => {
    let said = '';
    // It is listened to until its end: a full or closed pipe would stop it.
    registry.stderr.on('data', (chunk: Buffer) => {
      said = `${said}${chunk.toString()}`.slice(-LAST_WORDS);
      const found = LISTENING.exec(said)?.[1];
      if (found !== undefined) resolve(found);
    });
    registry.stderr.once('close', () => reject(new Error(`docker-registry did not start: ${said}`)));
  });
  return {
    host: `127.0.0.1:${port}`,
    [Symbol.asyncDispose]: async () => {
      await registry.stop();
    },
  };
}
