/** Which chunks of a layer lie in which pack. */
import type { ChunkLocation, ChunkMap } from './chunk-map.ts';
import type { Digest } from './digest.ts';

export function chunksByPack(map: ChunkMap): ReadonlyMap<Digest, readonly ChunkLocation[]> {
  const byPack = new Map<Digest, ChunkLocation[]>(map.packs.map((pack) => [pack, []]));
  for (let index = 0; index < map.chunks; index++) {
    const chunk = map.at(index);
    if (chunk !== undefined) byPack.get(chunk.pack)?.push(chunk);
  }
  return byPack;
}
