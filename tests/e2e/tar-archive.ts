const BLOCK = 512;

export interface TarEntry {
  readonly name: string;
  /** The type byte of ustar: 0 file, 1 hard link, 2 symlink, 3 and 4 devices, 5 directory, 6 pipe. @default '0' */
  readonly type?: string;
  readonly target?: string;
  readonly content?: string | Uint8Array;
  readonly mode?: number;
}

/** A tar of ustar entries whose names are taken as they are, however hostile. */
export function tarOf(entries: readonly TarEntry[]): Buffer {
  return Buffer.concat([...entries.flatMap(blocksOf), Buffer.alloc(2 * BLOCK)]);
}

function blocksOf(entry: TarEntry): readonly Buffer[] {
  const content = Buffer.from(entry.content ?? '');
  const header = Buffer.alloc(BLOCK);
  const octal = (value: number, digits: number): string => `${value.toString(8).padStart(digits, '0')}\0`;
  header.write(entry.name, 0);
  header.write(octal(entry.mode ?? 0o644, 7), 100);
  header.write(octal(0, 7), 108);
  header.write(octal(0, 7), 116);
  header.write(octal(content.length, 11), 124);
  header.write(octal(0, 11), 136);
  header.write('        ', 148);
  header.write(entry.type ?? '0', 156);
  header.write(entry.target ?? '', 157);
  header.write('ustar\x0000', 257, 'latin1');
  // Device 8:0, the first disk.
  header.write(octal(8, 7), 329);
  header.write(octal(0, 7), 337);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return [header, content, Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK)];
}
