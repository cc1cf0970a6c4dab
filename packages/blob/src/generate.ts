/**
 * Writes the golden vectors of `tests/vectors/layers`, from the root of the repository. They are committed, since another release of zstd
 * may compress to other bytes; every reader, of whichever language, must read them.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { layerVector, VECTORS_DIRECTORY } from './layer-vector.ts';

mkdirSync(VECTORS_DIRECTORY, { recursive: true });
for (const [name, bytes] of await layerVector()) writeFileSync(join(VECTORS_DIRECTORY, name), bytes);
