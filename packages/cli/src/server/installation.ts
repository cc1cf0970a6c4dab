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
  readonly egressd: string;
  readonly gate: string;
  readonly edgeMain: string;
  readonly packerMain: string;
  readonly resolverMain: string;
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
  egressd: join(ROOT, 'native/bin/egressd'),
  gate: join(ROOT, 'native/bin/gate'),
  edgeMain: join(ROOT, 'packages/edge/src/main.ts'),
  packerMain: join(ROOT, 'packages/edge/src/packer/main.ts'),
  resolverMain: join(ROOT, 'packages/egress/src/main.ts'),
  apiserverMain: join(ROOT, 'packages/apiserver/src/main.ts'),
  benchMain: join(ROOT, 'packages/bench/src/main.ts'),
};

/** @throws PlatformError `host_unsuitable` when a program was not built */
export async function checkBuilt(...programs: readonly string[]): Promise<void> {
  for (const program of programs) {
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
