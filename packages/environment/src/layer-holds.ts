/**
 * What stands between processes that make layers and one that removes those that nobody needs. A layer that was just made, or found to be made
 * already, has no name before its build has ended: until then the build holds it.
 *
 * - H1 a build holds a layer before it looks whether the layer is there;
 * - H2 who removes begins its turn before it looks what is held, and ends it when what it removes is not there any more;
 * - H3 a build that has held a layer waits while there is a turn. So either the turn sees the hold, or the build sees what the turn has left.
 *
 * Holds and turns are entries of one directory and carry the mark of their process, so that those of a killed one count no more.
 */
import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { throwIfAborted, type Clock, type Random } from '@dsec/kit';
import { buildMark, isStaleMark } from './draft.ts';

const HEX = /^[0-9a-f]{64}$/;
const TURN = 'turn-';
/** A turn takes as long as the launcher and layerd take to let go of a batch of layers. */
const TURN_WAIT_MS = 120_000;
const TURN_PAUSE_MS = 20;

export interface LayerHoldsOptions {
  /** `holds/` of the data directory, which is root's. */
  readonly directory: string;
  readonly random: Random;
  readonly clock: Clock;
  readonly signal?: AbortSignal | undefined;
}

/** The layers that one build relies on, until it is disposed of: by then they have a name, or are nobody's. */
export class LayerHolds implements AsyncDisposable {
  readonly #options: LayerHoldsOptions;
  readonly #path: string;
  readonly #held = new Map<string, Promise<void>>();

  private constructor(options: LayerHoldsOptions, path: string) {
    this.#options = options;
    this.#path = path;
  }

  static async open(options: LayerHoldsOptions): Promise<LayerHolds> {
    const path = join(options.directory, await buildMark(options.random));
    await mkdir(path, { recursive: true, mode: 0o755 });
    return new LayerHolds(options, path);
  }

  /**
   * Must come before looking for the layer (`sha256:` and 64 hex digits). Idempotent.
   * @throws PlatformError `unavailable` when a removal does not end, `cancelled`
   */
  hold(layer: string): Promise<void> {
    let held = this.#held.get(layer);
    if (held === undefined) {
      held = this.#hold(layer);
      this.#held.set(layer, held);
      // It may be asked for again.
      held.catch(() => this.#held.delete(layer));
    }
    return held;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.allSettled(this.#held.values());
    await rm(this.#path, { recursive: true, force: true });
  }

  async #hold(layer: string): Promise<void> {
    const { clock, directory, signal } = this.#options;
    const hex = layer.replace(/^sha256:/, '');
    if (!HEX.test(hex)) {
      throw new PlatformError('invalid_argument', 'A layer digest is sha256: and 64 hex digits', {
        details: { field: 'digest' },
      });
    }
    await writeFile(join(this.#path, hex), '');
    const endsMs = clock.monotonicMs() + TURN_WAIT_MS;
    while (await hasTurn(directory)) {
      throwIfAborted(signal);
      if (clock.monotonicMs() >= endsMs) {
        throw new PlatformError('unavailable', 'unneeded layers are being removed, and that does not end', {
          details: { layer },
        });
      }
      await clock.sleep(TURN_PAUSE_MS, signal === undefined ? {} : { signal });
    }
  }
}

/** Runs what removes layers while no build begins to rely on one; it gets the layers (`sha256:...`) that builds rely on. */
export const withTurn = async <Result>(
  options: Pick<LayerHoldsOptions, 'directory' | 'random'>,
  remove: (held: ReadonlySet<string>) => Promise<Result>,
): Promise<Result> => {
  const { directory, random } = options;
  const path = join(directory, TURN + (await buildMark(random)));
  await mkdir(path, { recursive: true, mode: 0o755 });
  try {
    return await remove(await heldLayers(directory));
  } finally {
    await rm(path, { recursive: true, force: true });
  }
};

/** The layers that builds which run rely on. Removes what killed ones have left. */
export const heldLayers = async (directory: string): Promise<ReadonlySet<string>> => {
  const held = new Set<string>();
  for (const name of await namesIn(directory)) {
    const mark = name.startsWith(TURN) ? name.slice(TURN.length) : name;
    const path = join(directory, name);
    if (await isStaleMark(mark)) await rm(path, { recursive: true, force: true });
    else if (mark === name) for (const hex of await namesIn(path)) held.add(`sha256:${hex}`);
  }
  return held;
};

const hasTurn = async (directory: string): Promise<boolean> => {
  for (const name of await namesIn(directory)) {
    if (name.startsWith(TURN) && !(await isStaleMark(name.slice(TURN.length)))) return true;
  }
  return false;
};

const namesIn = async (directory: string): Promise<string[]> => {
  try {
    return await readdir(directory);
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return [];
    throw error;
  }
};
