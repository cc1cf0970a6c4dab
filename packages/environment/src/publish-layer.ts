import { chmod, mkdir, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { syncDirectory, throwIfAborted, writeDurably } from '@dsec/kit';
import type { BuildContext } from './build-context.ts';
import { draftName, removeDraft, removeStaleDrafts } from './draft.ts';
import { RECORD_FILE } from './layer-files.ts';
import { restoreLayers } from './layer-removal.ts';
import { checkedRecord, type LayerRecord } from './layer-record.ts';
import { readLayerRecord } from './layer-store.ts';

/** Layers are read by the launcher, and by whoever may enter the directory above them. */
const DIRECTORY_MODE = 0o755;
export const FILE_MODE = 0o644;

/** The directories of one build. */
export interface Draft {
  /** What becomes the layer. */
  readonly staged: string;
  /** For the build's own temporary files. */
  readonly scratch: string;
  /** Where to put what stands in the layer's place and is none. */
  readonly replaced: string;
}

/**
 * Runs a build in directories of its own, below that of the layers unless they are handed over, which are gone when it ends. First those go that killed builds have left.
 *
 * @throws PlatformError `disk_full`, `cancelled`, and what `build` throws
 */
export const withDraft = async <Result>(
  context: BuildContext,
  build: (draft: Draft) => Promise<Result>,
): Promise<Result> => {
  const directory = context.handover?.directory ?? context.layersDirectory;
  throwIfAborted(context.signal);
  await mkdir(directory, { recursive: true, mode: DIRECTORY_MODE });
  if (context.handover === undefined) await restoreLayers(directory);
  await removeStaleDrafts(directory);
  const path = join(directory, await draftName(context.random));
  const draft = { staged: join(path, 'layer'), scratch: join(path, 'scratch'), replaced: join(path, 'replaced') };
  try {
    await mkdir(path, { mode: 0o700 });
    await mkdir(draft.staged);
    await mkdir(draft.scratch);
    return await build(draft);
  } catch (error) {
    throw diskFull(error) ?? error;
  } finally {
    await removeDraft(path);
  }
};

/** Gives the staged layer its record: the last that it needs. */
export const writeRecord = (draft: Draft, record: LayerRecord): Promise<void> =>
  writeDurably(join(draft.staged, RECORD_FILE), `${JSON.stringify(checkedRecord(record), null, 2)}\n`, {
    mode: FILE_MODE,
  });

/** Builds of equal content at the same time may each find the other's half-way state this often. */
const PUBLISH_ATTEMPTS = 8;

/** Gives the finished layer its name, unless it is there already. */
export const publish = async (
  { layersDirectory, handover, holds, signal }: BuildContext,
  digest: string,
  draft: Draft,
): Promise<void> => {
  const { staged, replaced } = draft;
  if (handover !== undefined) {
    if ((await readLayerRecord(layersDirectory, digest)) !== undefined) return;
    await handover.handOver(digest, staged, signal);
    return;
  }
  await holds?.hold(digest);
  const hex = digest.slice('sha256:'.length);
  const target = join(layersDirectory, hex);
  for (let attempt = 1; ; attempt++) {
    if ((await readLayerRecord(layersDirectory, digest)) !== undefined) return;
    try {
      // That of mkdir is cut by the umask.
      await chmod(staged, DIRECTORY_MODE);
      await rename(staged, target);
      await syncDirectory(layersDirectory);
      return;
    } catch (error) {
      const isTaken = ['ENOTEMPTY', 'EEXIST', 'ENOTDIR'].some((code) => hasErrno(error, code));
      if (!isTaken || attempt === PUBLISH_ATTEMPTS) throw error;
    }
    // Whatever stands there without a valid record is no layer.
    if ((await readLayerRecord(layersDirectory, digest)) !== undefined) return;
    await rename(target, `${replaced}-${attempt}`).catch((error: unknown) => {
      if (!hasErrno(error, 'ENOENT')) throw error;
    });
  }
};

const MAX_CAUSES = 8;

/** The error for a full disk, when that is what lies at the bottom of `error`. */
const diskFull = (error: unknown): PlatformError | undefined => {
  let cause = error;
  for (let depth = 0; depth < MAX_CAUSES && cause instanceof Error; depth++) {
    if (hasErrno(cause, 'ENOSPC') || hasErrno(cause, 'EDQUOT')) {
      return new PlatformError('disk_full', 'The disk that holds the layers is full', { cause: error });
    }
    cause = cause.cause;
  }
  return undefined;
};

const hasErrno = (error: unknown, code: string): boolean =>
  error instanceof Error && 'code' in error && error.code === code;
