import { openStore, parseBlobSettings } from '@dsec/blob';
import type { Environment } from '@dsec/contract';
import { SystemClock, SystemRandom } from '@dsec/kit';
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import type { Context } from '../src/context.ts';
import { syncEnvironments } from '../src/sync-environments.ts';
import type { Progress } from '../src/terminal/progress.ts';

const parts = { clock: new SystemClock(), random: new SystemRandom() };
// All that a sync uses of it.
const context = { ...parts, interrupted: new AbortController().signal } as Partial<Context> as Context;
const silent: Progress = { step: () => {}, detail: () => {}, done: () => {}, failed: () => {} };
const config = { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} };
const environment: Environment = {
  name: 'kept',
  kind: 'base',
  entrypoint: 'ignore',
  description: '',
  createdAtMs: 0,
  image: { layers: [], config, architecture: 'amd64', sizeBytes: 0 },
};

test('what is pruned into leaves nothing behind in the other store when the first one is away', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'dsec-sync-'));
  try {
    const storeAt = (path: string) => openStore(parseBlobSettings({ url: pathToFileURL(path).href }), parts);
    const other = join(directory, 'other');
    await mkdir(other);
    const options = { from: storeAt(join(directory, 'away')), to: storeAt(other), environments: [environment] };
    const pruning = syncEnvironments(context, { ...options, layers: [], prune: { graceMs: 0 } }, silent);
    await expect(pruning).rejects.toMatchObject({ code: 'blob_unavailable' });
    expect(await readdir(other)).not.toContain('same-store-probe');
  } finally {
    await rm(directory, { recursive: true });
  }
});
