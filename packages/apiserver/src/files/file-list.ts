/** Puts the batches of a listing together. */
import { PlatformError, type FileEntry } from '@dsec/contract';
import type { WireStream } from '@dsec/native-link';
import { checkEntryBatch, checkListed } from '../edge/answers.ts';
import type { MemoryShare } from '../http/memory-budget.ts';

/** Kept of every list, however little memory there is. */
const LEAST_BYTES = 262_144;
/** What an entry takes beside its texts, whose characters take two bytes at most. */
const ENTRY_BYTES = 256;
const CHARACTER_BYTES = 2;

export interface ListBounds {
  readonly maxEntries: number;
  /** Names come out of a sandbox and may all be as long as names can be: a list that it has no room for ends where that shows. */
  readonly memory: MemoryShare;
}

/** @throws PlatformError `protocol_error` for more than `maxEntries`, which whoever lists was told */
export async function collectEntries(
  stream: WireStream,
  { maxEntries, memory }: ListBounds,
): Promise<{ readonly entries: readonly FileEntry[]; readonly truncated: boolean }> {
  const entries: FileEntry[] = [];
  let bytes = 0;
  for await (const item of stream) {
    if (item.type !== 'message' || entries.length > maxEntries) {
      const error = new PlatformError('protocol_error', 'the listing is not in the protocol');
      stream.reset(error);
      throw error;
    }
    const batch = checkEntryBatch(item.value, stream.method).entries as FileEntry[];
    const more = batch.reduce((sum, entry) => sum + bytesOf(entry), 0);
    if (bytes + more > LEAST_BYTES && !memory.take(more)) {
      stream.reset();
      return { entries, truncated: true };
    }
    bytes += more;
    entries.push(...batch);
  }
  return { entries, truncated: checkListed(await stream.result, stream.method).truncated };
}

const bytesOf = ({ name, nameBase64 = '', path, target = '' }: FileEntry): number =>
  ENTRY_BYTES + (name.length + nameBase64.length + path.length + target.length) * CHARACTER_BYTES;
