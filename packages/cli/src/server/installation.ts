import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { exists } from './data-directory.ts';

/** Where the parts of this checkout are. */
export interface Installation {
  readonly root: string;
  readonly launcher: string;
  readonly aether: string;
  readonly layerd: string;
  readonly publisher: string;
  readonly edgeMain: string;
  readonly packerMain: string;
  readonly apiserverMain: string;
  readonly benchMain: string;
}

const ROOT = join(import.meta.dirname, '../../../..');

export const installation: Installation = {
  root: ROOT,
  launcher: join(ROOT, 'native/bin/launcher'),
  aether: join(ROOT, 'native/bin/aether'),
  layerd: join(ROOT, 'native/bin/layerd'),
  publisher: join(ROOT, 'native/bin/publisher'),
  edgeMain: join(ROOT, 'packages/edge/src/main.ts'),
  packerMain: join(ROOT, 'packages/edge/src/packer/main.ts'),
  apiserverMain: join(ROOT, 'packages/apiserver/src/main.ts'),
  benchMain: join(ROOT, 'packages/bench/src/main.ts'),
};

/** @throws PlatformError `host_unsuitable` when a program was not built */
export async function checkBuilt(parts: Installation): Promise<void> {
  for (const program of [parts.launcher, parts.aether, parts.layerd, parts.publisher]) {
    if (await exists(program)) continue;
    throw new PlatformError('host_unsuitable', `${program} was not built: run \`make setup\``, {
      details: { missing: program },
    });
  }
}

/** @throws PlatformError `host_unsuitable` when this process is not root's */
export function requireRoot(verb: string): void {
  if (process.getuid?.() === 0) return;
  throw new PlatformError('host_unsuitable', `\`dsec ${verb}\` needs root: run it with sudo`, {
    details: { missing: 'root' },
  });
}
