import type { ByteReader } from './byte-reader.ts';
import { type PaxRecords, paxInteger } from './pax.ts';
import { decodeNumber, TAR_BLOCK, type TarHeader } from './tar-header.ts';

/** A run of stored bytes in a sparse file; between the runs are zeros. */
interface SparseRun {
  readonly offset: number;
  readonly length: number;
}

export interface SparseMap {
  readonly runs: readonly SparseRun[];
  /** The size of the file with its holes. */
  readonly sizeBytes: number;
  /** How many of the entry's stored bytes the map itself took. */
  readonly mapBytes: number;
}

const MAX_RUNS = 100_000;
const MAX_NUMBER_CHARS = 20;
const ZERO_CHUNK = Buffer.alloc(64 * 1024);

/** The map of GNU's old form: in the header, continued in blocks before the data. */
export const readGnuMap = async (header: TarHeader, reader: ByteReader): Promise<SparseMap | undefined> => {
  const runs: SparseRun[] = [];
  const add = (block: Buffer, start: number, count: number): void => {
    for (let index = 0; index < count; index++) {
      const at = start + index * 24;
      if (block[at] === 0) return;
      runs.push({
        offset: decodeNumber(block.subarray(at, at + 12)),
        length: decodeNumber(block.subarray(at + 12, at + 24)),
      });
    }
  };
  add(header.block, 386, 4);
  let isContinued = header.block[482] !== 0;
  while (isContinued) {
    const block = await reader.read(TAR_BLOCK);
    if (block.length < TAR_BLOCK || runs.length > MAX_RUNS) return undefined;
    add(block, 0, 21);
    isContinued = block[504] !== 0;
  }
  return checked({ runs, sizeBytes: decodeNumber(header.block.subarray(483, 495)), mapBytes: 0 }, header.sizeBytes);
};

/**
 * The map of GNU's pax forms 0.1 (in a record) and 1.0 (before the data).
 *
 * @returns undefined when it is malformed, 'unsupported' for form 0.0, which repeats records
 */
export const readPaxMap = async (
  records: PaxRecords,
  reader: ByteReader,
  storedBytes: number,
): Promise<SparseMap | undefined | 'unsupported'> => {
  const inline = records.get('GNU.sparse.map')?.toString('latin1');
  if (inline !== undefined) {
    const numbers = inline === '' ? [] : inline.split(',').map(exactNumber);
    const sizeBytes = paxInteger(records, 'GNU.sparse.size') ?? Number.NaN;
    return checked({ runs: pairs(numbers), sizeBytes, mapBytes: 0 }, storedBytes);
  }
  if (paxInteger(records, 'GNU.sparse.major') !== 1) return 'unsupported';
  const sizeBytes = paxInteger(records, 'GNU.sparse.realsize') ?? Number.NaN;
  const numbers: number[] = [];
  let text = '';
  let mapBytes = 0;
  let wanted = 1;
  while (numbers.length < wanted) {
    if (mapBytes + TAR_BLOCK > storedBytes) return undefined;
    const block = await reader.read(TAR_BLOCK);
    mapBytes += TAR_BLOCK;
    text += block.toString('latin1');
    const lines = text.split('\n');
    text = lines.pop() ?? '';
    for (const line of lines)
      if (numbers.length < wanted) {
        numbers.push(exactNumber(line));
        if (numbers.length === 1) wanted = 1 + 2 * (numbers[0] ?? 0);
      }
    if (!(wanted <= 1 + 2 * MAX_RUNS) || (text.length > MAX_NUMBER_CHARS && numbers.length < wanted)) return undefined;
  }
  return checked({ runs: pairs(numbers.slice(1)), sizeBytes, mapBytes }, storedBytes - mapBytes);
};

/** The file with its holes filled with zeros. */
export async function* expandSparse(map: SparseMap, reader: ByteReader): AsyncGenerator<Uint8Array> {
  let at = 0;
  for (const run of map.runs) {
    yield* zeros(run.offset - at);
    yield* reader.take(run.length);
    at = run.offset + run.length;
  }
  yield* zeros(map.sizeBytes - at);
}

function* zeros(count: number): Generator<Uint8Array> {
  for (let left = count; left > 0; left -= ZERO_CHUNK.length) {
    yield ZERO_CHUNK.subarray(0, Math.min(left, ZERO_CHUNK.length));
  }
}

const exactNumber = (text: string): number =>
  /^[0-9]{1,16}$/.test(text) && Number.isSafeInteger(Number(text)) ? Number(text) : Number.NaN;

const pairs = (numbers: readonly number[]): SparseRun[] => {
  const runs: SparseRun[] = [];
  for (let index = 0; index < numbers.length; index += 2) {
    runs.push({ offset: numbers[index] ?? Number.NaN, length: numbers[index + 1] ?? Number.NaN });
  }
  return runs;
};

/** Runs must be in order, inside the file, and as long together as what is stored. */
const checked = (map: SparseMap, storedBytes: number): SparseMap | undefined => {
  let at = 0;
  let sum = 0;
  for (const run of map.runs) {
    if (!(run.offset >= at) || !(run.length >= 0)) return undefined;
    at = run.offset + run.length;
    sum += run.length;
  }
  return at <= map.sizeBytes && sum === storedBytes ? map : undefined;
};
