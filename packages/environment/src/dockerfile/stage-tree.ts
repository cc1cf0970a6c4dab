import type { ByteString } from '@dsec/erofs';
import type { LowerEntry, LowerNode, LowerTree } from '../lower-tree.ts';
import { SourceTree } from './source-tree.ts';

/** The layers of a stage, or of another environment, as a tree to copy from. */
export class StageTree extends SourceTree {
  readonly #layers: LowerTree;

  constructor(layers: LowerTree) {
    super();
    this.#layers = layers;
  }

  lookup(path: readonly ByteString[]): Promise<LowerNode | undefined> {
    return this.#layers.lookup(path);
  }

  entries(path: readonly ByteString[]): AsyncIterable<LowerEntry> {
    return this.#layers.entries(path);
  }
}
