/** Puts the batches of a listing together. */
import { PlatformError, type FileEntry } from '@dsec/contract';
import type { WireStream } from '@dsec/native-link';
import { checkEntryBatch, checkListed } from '../edge/answers.ts';

/** @throws PlatformError `protocol_error` for more than `maxEntries`, which whoever lists was told */
export async function collectEntries(
  stream: WireStream,
  maxEntries: number,
): Promise<{ readonly entries: readonly FileEntry[]; readonly truncated: boolean }> {
  const entries: FileEntry[] = [];
  for await (const item of stream) {
    if (item.type !== 'message' || entries.length > maxEntries) {
      const error = new PlatformError('protocol_error', 'the listing is not in the protocol');
      stream.reset(error);
      throw error;
    }
    entries.push(...(checkEntryBatch(item.value, stream.method).entries as FileEntry[]));
  }
  return { entries, truncated: checkListed(await stream.result, stream.method).truncated };
}
