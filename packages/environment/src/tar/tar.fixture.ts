/** Archives written by hand, so that they can be wrong in every way. */

export interface TarItem {
  readonly name: string;
  /** The type flag of tar. @default '0' */
  readonly type?: string;
  readonly content?: string | Buffer;
  readonly link?: string;
  readonly mode?: number;
  readonly uid?: number;
  readonly gid?: number;
  readonly mtime?: number;
  /** Extended header before the entry. */
  readonly pax?: Readonly<Record<string, string | Buffer>>;
  /** What the header says, if not the length of the content. */
  readonly claimedSize?: number | Buffer;
}

export const END_OF_ARCHIVE = Buffer.alloc(1024);

export const tarOf = (...items: readonly TarItem[]): Buffer => Buffer.concat([...items.map(tarItem), END_OF_ARCHIVE]);

export const tarItem = (item: TarItem): Buffer => {
  const content = Buffer.from(item.content ?? '');
  const parts: Buffer[] = [];
  if (item.pax !== undefined) parts.push(tarItem({ name: 'pax', type: 'x', content: paxBody(item.pax) }));
  const header = Buffer.alloc(512);
  header.write(item.name, 0, 100, 'latin1');
  header.write(octal(item.mode ?? 0o644, 7), 100);
  header.write(octal(item.uid ?? 0, 7), 108);
  header.write(octal(item.gid ?? 0, 7), 116);
  if (Buffer.isBuffer(item.claimedSize)) item.claimedSize.copy(header, 124);
  else header.write(octal(item.claimedSize ?? content.length, 11), 124);
  header.write(octal(item.mtime ?? 0, 11), 136);
  header.write(item.type ?? '0', 156);
  header.write(item.link ?? '', 157, 100, 'latin1');
  header.write('ustar\0' + '00', 257, 'latin1');
  header.fill(0x20, 148, 156);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${octal(sum, 6)}\0 `, 148);
  parts.push(header, content, Buffer.alloc((512 - (content.length % 512)) % 512));
  return Buffer.concat(parts);
};

const paxBody = (records: Readonly<Record<string, string | Buffer>>): Buffer =>
  Buffer.concat(
    Object.entries(records).map(([key, value]) => {
      const body = Buffer.concat([Buffer.from(` ${key}=`), Buffer.from(value), Buffer.from('\n')]);
      let length = body.length + 1;
      while (String(length).length + body.length !== length) length = String(length).length + body.length;
      return Buffer.concat([Buffer.from(String(length)), body]);
    }),
  );

const octal = (value: number, width: number): string => value.toString(8).padStart(width, '0');

export async function* streamOf(bytes: Uint8Array, chunkBytes = 700): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += chunkBytes) yield bytes.subarray(at, at + chunkBytes);
}
