/** A layer from the changes of a sandbox. */
import { createReadStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import type { EnvironmentConfig, EnvironmentImage } from '@dsec/contract';
import { ByteString } from '@dsec/erofs';
import { throwIfAborted } from '@dsec/kit';
import type { BuildContext } from '../build-context.ts';
import { buildLayer } from '../build-layer.ts';
import { LayerTree } from '../layer-tree.ts';
import { unknownLower } from '../lower-tree.ts';
import { completeUpperRoot } from '../root-skeleton.ts';
import type { TarEntry } from '../tar/tar-reader.ts';
import { type Change, ChangeScan, changesIn, targetOf } from './change-scan.ts';
import { Selection } from './selection.ts';
import { contentDigest, MIN_COPY_BYTES, verifyPack, type Verified } from './verify-pack.ts';

export interface ChangesPack {
  /** What `GET /v1/sandboxes/{id}/changes` answers (`sandbox.changes()` of the SDK). Read once, as fast as this disk takes it. */
  readonly changes: AsyncIterable<Uint8Array>;
  /** What errors and the record of the layer call it. */
  readonly name: string;
  readonly config: EnvironmentConfig;
  /** In OCI's words. */
  readonly architecture: string;
  /** @default everything but what is each sandbox's own */
  readonly selection?: Selection;
  /** Sees every entry, as what it is for the layer, before anything is stored; what it throws ends the build. */
  readonly onChange?: (change: Change) => void;
  /** Hears of the whole before anything is stored; what it throws ends the build. */
  readonly onScanned?: (scan: ChangeScan) => void;
  /** Reads the layer again before it is published, and proves that nothing is in it that was left out. @default false */
  readonly isVerified?: boolean;
  /** Hears what that found. */
  readonly onVerified?: (verified: Verified) => void;
}

/**
 * Makes the changes of a sandbox into one layer, to stand above the layers that the sandbox stood on. The archive is written to this disk first,
 * so that the sandbox's snapshot is not kept waiting, then gone through twice: to see what becomes of each entry, and to store it.
 *
 * @throws PlatformError `archive_unsafe`, `image_corrupt` and `image_unsupported` for an archive that no sandbox should give, `disk_full`,
 * `cancelled`, and what reading the changes throws
 *
 * @example
 * const image = await packChanges(context, { changes: await sandbox.changes(), name: 'step 3', config, architecture: 'amd64' });
 * const layers = [...image.layers, ...base.layers];
 */
export const packChanges = (context: BuildContext, pack: ChangesPack): Promise<EnvironmentImage> =>
  buildLayer(context, async ({ writer, scratch }) => {
    const spool = join(scratch, 'changes.tar');
    context.onProgress?.({ step: 'reading the changes' });
    await keep(context, pack.changes, spool);
    const selection = pack.selection ?? new Selection();
    const changes = (): AsyncGenerator<Change> => changesIn(readSpool(context, spool), pack.name, selection);
    const omitted = new Set<string>();
    const scan = await scanChanges(pack.isVerified === true ? noting(changes(), omitted) : changes(), pack.onChange);
    pack.onScanned?.(scan);
    context.onProgress?.({ step: 'storing the changes' });
    const tree = new LayerTree({ above: unknownLower });
    await tree.applyEntries(selected(changes(), scan), {
      name: pack.name,
      whiteouts: 'overlay',
      store: (sizeBytes, bytes) => writer.store(sizeBytes, bytes),
    });
    const root = tree.finish();
    completeUpperRoot(root);
    return {
      root,
      config: pack.config,
      architecture: pack.architecture,
      source: { kind: 'changes', name: pack.name.slice(0, 1024) },
      verify: async (files) => {
        if (pack.isVerified !== true) return;
        context.onProgress?.({ step: 'reading the layer again' });
        pack.onVerified?.(await verifyPack(files, { selection, omitted, signal: context.signal }));
      },
    };
  });

/** Goes through the changes without storing anything. */
export const scanChanges = async (
  changes: AsyncIterable<Change>,
  onChange?: (change: Change) => void,
): Promise<ChangeScan> => {
  const scan = new ChangeScan();
  for await (const change of changes) {
    const seen = scan.add(change);
    onChange?.(seen);
  }
  return scan;
};

/** Contents of left-out files whose digests are kept. */
const MAX_DIGESTS = 1_000_000;

/** Notes the contents of what is left out by a rule. */
async function* noting(changes: AsyncIterable<Change>, omitted: Set<string>): AsyncGenerator<Change> {
  for await (const change of changes) {
    const { kind, verdict, entry } = change;
    const isScrubbed = verdict.kind === 'omit' && verdict.by !== 'platform' && verdict.by !== 'path';
    if (isScrubbed && kind === 'file' && entry.sizeBytes >= MIN_COPY_BYTES && omitted.size < MAX_DIGESTS) {
      omitted.add(await contentDigest(entry.data));
    }
    yield change;
  }
}

/** The entries that go into the layer, where they go. */
async function* selected(changes: AsyncIterable<Change>, scan: ChangeScan): AsyncGenerator<TarEntry> {
  for await (const { kind, path, verdict, entry } of changes) {
    if (kind === 'socket') continue;
    if (kind === 'hard-link') {
      if (verdict.kind !== 'keep') continue;
      const moved = scan.movedTo(targetOf(entry));
      if (moved === path) continue;
      yield moved === undefined ? entry : { ...entry, linkPath: moved };
    } else if (verdict.kind === 'omit') {
      const moved = kind === 'file' ? scan.movedTo(path) : undefined;
      if (moved !== undefined) yield { ...entry, path: moved };
    } else if (kind === 'directory') {
      if (!scan.isBare(path)) yield verdict.kind === 'way' ? withoutOpacity(entry) : entry;
    } else if (verdict.kind === 'keep') {
      yield entry;
    }
  }
}

const OPAQUE = ByteString.fromText('trusted.overlay.opaque');

/** A directory that is only the way to something says nothing of what else is in it. */
const withoutOpacity = (entry: TarEntry): TarEntry =>
  entry.xattrs.has(OPAQUE)
    ? { ...entry, xattrs: new Map([...entry.xattrs].filter(([name]) => name !== OPAQUE)) }
    : entry;

const keep = async (context: BuildContext, bytes: AsyncIterable<Uint8Array>, path: string): Promise<void> => {
  await using file = await open(path, 'wx', 0o600);
  for await (const chunk of bytes) {
    throwIfAborted(context.signal);
    for (let done = 0; done < chunk.length; ) done += (await file.write(chunk, done)).bytesWritten;
  }
};

const READ_BYTES = 1024 * 1024;

async function* readSpool(context: BuildContext, path: string): AsyncGenerator<Uint8Array> {
  const stream = createReadStream(path, { highWaterMark: READ_BYTES });
  // A file that is opened without an encoding gives Buffers.
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    throwIfAborted(context.signal);
    yield chunk;
  }
}
