import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { DigestSchema } from '@dsec/contract';
import { type Clock, compileSchema, writeDurably } from '@dsec/kit';
import { Type, type Static } from 'typebox';
import type { LayerHolds } from './layer-holds.ts';
import { readLayerRecord } from './layer-store.ts';

/** Notes that are kept; each is a small file. */
const MAX_NOTES = 65_536;
/** How many of the oldest go when there are too many. */
const PRUNED = MAX_NOTES / 4;
/** What a file takes is counted in blocks of this size (stat(2)). */
const STAT_BLOCK_BYTES = 512;
const NOTE = /^[0-9a-f]{64}$/;

const NoteSchema = Type.Object(
  {
    version: Type.Literal(1),
    /** Null: what was done changed nothing, so there is no layer. */
    layer: Type.Union([DigestSchema, Type.Null()]),
  },
  { additionalProperties: false },
);
const parser = compileSchema(NoteSchema);

export interface MadeLayersOptions {
  readonly directory: string;
  readonly layersDirectory: string;
  readonly clock: Clock;
  readonly holds?: Pick<LayerHolds, 'hold'> | undefined;
}

/** What was made of something earlier. */
export interface MadeLayer {
  /** Absent: nothing had changed, which takes no layer. */
  readonly layer: string | undefined;
}

/**
 * Remembers which layer was made from what, so that it is not made again. A note is a hint: it counts only while its layer is there and
 * whole, and a note that cannot be read is none.
 */
export class MadeLayers {
  readonly #directory: string;
  readonly #layersDirectory: string;
  readonly #clock: Clock;
  readonly #holds: MadeLayersOptions['holds'];

  constructor(options: MadeLayersOptions) {
    this.#directory = options.directory;
    this.#layersDirectory = options.layersDirectory;
    this.#clock = options.clock;
    this.#holds = options.holds;
  }

  /** The name of what a layer is made from. @param parts everything that the layer depends on; its first says what kind of making it is */
  static key(...parts: readonly unknown[]): string {
    return createHash('sha256').update(JSON.stringify(parts)).digest('hex');
  }

  async find(key: string): Promise<MadeLayer | undefined> {
    const path = join(this.#directory, key);
    const note = await readNote(path);
    if (note === undefined) return undefined;
    const { layer } = note;
    if (layer !== null) await this.#holds?.hold(layer);
    if (layer !== null && (await readLayerRecord(this.#layersDirectory, layer)) === undefined) {
      await rm(path, { force: true });
      return undefined;
    }
    // The oldest go first: what is used is young.
    const now = this.#clock.now() / 1000;
    await utimes(path, now, now).catch(ignoreMissing);
    return { layer: layer ?? undefined };
  }

  /** @param layer absent when nothing had changed */
  async note(key: string, layer: string | undefined): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o755 });
    await this.#prune();
    const note: Static<typeof NoteSchema> = { version: 1, layer: layer ?? null };
    await writeDurably(join(this.#directory, key), `${JSON.stringify(note)}\n`, { mode: 0o644 });
  }

  async #prune(): Promise<void> {
    const names = (await readdir(this.#directory)).filter((name) => NOTE.test(name));
    if (names.length < MAX_NOTES) return;
    const aged: { readonly path: string; readonly mtimeMs: number }[] = [];
    for (const name of names) {
      const path = join(this.#directory, name);
      const info = await stat(path).catch(ignoreMissing);
      if (info !== undefined) aged.push({ path, mtimeMs: info.mtimeMs });
    }
    aged.sort((left, right) => left.mtimeMs - right.mtimeMs);
    for (const { path } of aged.slice(0, PRUNED)) await rm(path, { force: true });
  }
}

export interface StaleNotes {
  /** Whether a layer is, or stays, on the node. */
  readonly isThere: (layer: string) => boolean;
  /** Notes of what changed nothing, which have no layer, go when they were not used since. */
  readonly unusedSinceMs: number;
  /** Only count them. */
  readonly isDryRun: boolean;
}

/** Removes notes that are of no use any more: those whose layer is gone, those that cannot be read, and old ones without a layer. */
export const removeStaleNotes = async (
  directory: string,
  { isThere, unusedSinceMs, isDryRun }: StaleNotes,
): Promise<{ readonly notes: number; readonly bytes: number }> => {
  let [notes, bytes] = [0, 0];
  for (const name of ((await readdir(directory).catch(ignoreMissing)) ?? []).filter((each) => NOTE.test(each))) {
    const path = join(directory, name);
    const note = await readNote(path);
    const info = await stat(path).catch(ignoreMissing);
    if (info === undefined) continue;
    const isOfUse = note?.layer === null ? info.mtimeMs >= unusedSinceMs : note !== undefined && isThere(note.layer);
    if (isOfUse) continue;
    if (!isDryRun) await rm(path, { force: true });
    notes++;
    bytes += info.blocks * STAT_BLOCK_BYTES;
  }
  return { notes, bytes };
};

const readNote = async (path: string): Promise<Static<typeof NoteSchema> | undefined> => {
  try {
    const value: unknown = JSON.parse(await readFile(path, 'utf8'));
    return parser.is(value) ? value : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    return ignoreMissing(error);
  }
};

/** Another build may have taken it away. */
const ignoreMissing = (error: unknown): undefined => {
  if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
  throw error;
};
