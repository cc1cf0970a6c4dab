/** Which reads of packs bring some chunks: those that lie one behind the other come together. */
import type { ChunkLocation, ChunkMap } from './chunk-map.ts';
import type { Digest } from './digest.ts';

/** One ranged read. */
export interface ChunkRange {
  readonly pack: Digest;
  readonly offset: number;
  readonly length: number;
  /** In the order in which they lie. */
  readonly chunks: readonly number[];
}

/** The fewest ranged reads that bring these chunks of a map and nothing else; holes need none. Indexes are below `map.chunks`. */
export function chunkRanges(map: ChunkMap, chunks: Iterable<number>): readonly ChunkRange[] {
  const located: { readonly index: number; readonly at: ChunkLocation }[] = [];
  for (const index of new Set(chunks)) {
    const at = map.at(index);
    if (at !== undefined) located.push({ index, at });
  }
  located.sort((a, b) => (a.at.pack === b.at.pack ? a.at.offset - b.at.offset : a.at.pack < b.at.pack ? -1 : 1));
  const ranges: { pack: Digest; offset: number; length: number; chunks: number[] }[] = [];
  for (const { index, at } of located) {
    const last = ranges.at(-1);
    // Equal chunks of a layer are stored once.
    const isSame = last?.pack === at.pack && last.offset + last.length === at.offset + at.storedBytes;
    if (last !== undefined && isSame) last.chunks.push(index);
    else if (last?.pack === at.pack && last.offset + last.length === at.offset) {
      last.length += at.storedBytes;
      last.chunks.push(index);
    } else ranges.push({ pack: at.pack, offset: at.offset, length: at.storedBytes, chunks: [index] });
  }
  return ranges;
}
