import { ByteString, type Timestamp } from '@dsec/erofs';
import { TAR_BLOCK } from './tar-header.ts';

type TarType = 'file' | 'hard-link' | 'symlink' | 'char-device' | 'block-device' | 'directory' | 'fifo';

interface TarHead {
  readonly type: TarType;
  /** Without a slash at either end; the root is empty. */
  readonly path: ByteString;
  /** Of a hard link or symbolic link. */
  readonly linkPath?: ByteString;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtime: Timestamp;
  /** Bytes of a file that follow; else 0. */
  readonly sizeBytes?: number;
  readonly major?: number;
  readonly minor?: number;
  readonly xattrs?: ReadonlyMap<ByteString, Uint8Array>;
}

const flags: Readonly<Record<TarType, string>> = {
  file: '0',
  'hard-link': '1',
  symlink: '2',
  'char-device': '3',
  'block-device': '4',
  directory: '5',
  fifo: '6',
};

const NAME_BYTES = 100;
const MAX_OCTAL_ID = 0o7777777;
const MAX_OCTAL_SIZE = 0o77777777777;
const NANOSECOND_DIGITS = 9;

/** The end of an archive. */
export const TAR_END = Buffer.alloc(2 * TAR_BLOCK);

/** What stands before the bytes of an entry: its header in ustar form, and before that, where it needs any, pax records. Names are bytes throughout. */
export const tarHead = (head: TarHead): Buffer => {
  const name = head.type === 'directory' ? directoryName(head.path) : head.path;
  const link = head.linkPath ?? EMPTY;
  const size = head.sizeBytes ?? 0;
  const { seconds, nanoseconds } = head.mtime;
  const records: Buffer[] = [];
  if (!fits(name)) records.push(record('path', ByteString.toBytes(name)));
  if (!fits(link)) records.push(record('linkpath', ByteString.toBytes(link)));
  if (size > MAX_OCTAL_SIZE) records.push(record('size', Buffer.from(String(size))));
  if (head.uid > MAX_OCTAL_ID) records.push(record('uid', Buffer.from(String(head.uid))));
  if (head.gid > MAX_OCTAL_ID) records.push(record('gid', Buffer.from(String(head.gid))));
  if (nanoseconds !== 0 || seconds < 0 || seconds > MAX_OCTAL_SIZE)
    records.push(record('mtime', Buffer.from(timeText(head.mtime))));
  for (const [key, value] of head.xattrs ?? []) records.push(record(`SCHILY.xattr.${key}`, Buffer.from(value)));
  const header = block({ ...head, name, link, size, flag: flags[head.type] });
  if (records.length === 0) return header;
  const body = Buffer.concat(records);
  const extended = block({
    name: ByteString.fromText('pax'),
    link: EMPTY,
    size: body.length,
    flag: 'x',
    mode: 0o644,
    uid: 0,
    gid: 0,
    mtime: { seconds: 0, nanoseconds: 0 },
  });
  return Buffer.concat([extended, body, tarPadding(body.length), header]);
};

/** Zeros that fill the bytes of an entry up to whole blocks. */
export const tarPadding = (sizeBytes: number): Buffer =>
  Buffer.alloc((TAR_BLOCK - (sizeBytes % TAR_BLOCK)) % TAR_BLOCK);

const EMPTY = ByteString.fromText('');

/** `./` for the root, else with a slash at the end. */
const directoryName = (path: ByteString): ByteString =>
  ByteString.join(path === '' ? ByteString.fromText('.') : path, EMPTY);

/** A field holds ASCII only, as the standard has it. */
const fits = (bytes: ByteString): boolean => bytes.length <= NAME_BYTES && !/[\x80-\xff]/.test(bytes);

interface Fields {
  readonly name: ByteString;
  readonly link: ByteString;
  readonly size: number;
  readonly flag: string;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtime: Timestamp;
  readonly major?: number;
  readonly minor?: number;
}

const block = (fields: Fields): Buffer => {
  const header = Buffer.alloc(TAR_BLOCK);
  const octal = (at: number, digits: number, value: number): void =>
    void header.write(value.toString(8).padStart(digits, '0'), at, 'latin1');
  header.write(fields.name.slice(0, NAME_BYTES), 0, 'latin1');
  octal(100, 7, fields.mode);
  octal(108, 7, Math.min(fields.uid, MAX_OCTAL_ID));
  octal(116, 7, Math.min(fields.gid, MAX_OCTAL_ID));
  octal(124, 11, fields.size > MAX_OCTAL_SIZE ? 0 : fields.size);
  octal(136, 11, Math.min(Math.max(fields.mtime.seconds, 0), MAX_OCTAL_SIZE));
  header.write(fields.flag, 156, 'latin1');
  header.write(fields.link.slice(0, NAME_BYTES), 157, 'latin1');
  header.write('ustar\x0000', 257, 'latin1');
  octal(329, 7, fields.major ?? 0);
  octal(337, 7, fields.minor ?? 0);
  header.fill(0x20, 148, 156);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return header;
};

/** A record of a pax header; its length counts itself. `key` has one byte a letter. */
const record = (key: string, value: Buffer): Buffer => {
  const rest = key.length + value.length + 3;
  let length = rest + 1;
  while (length !== rest + String(length).length) length = rest + String(length).length;
  return Buffer.concat([Buffer.from(`${length} ${key}=`, 'latin1'), value, Buffer.from('\n')]);
};

/** Seconds in decimal; -1.25 is two seconds before 1970 and 0.75 after that. */
const timeText = ({ seconds, nanoseconds }: Timestamp): string => {
  if (nanoseconds === 0) return String(seconds);
  const fraction = (value: number): string => String(value).padStart(NANOSECOND_DIGITS, '0');
  return seconds >= 0
    ? `${seconds}.${fraction(nanoseconds)}`
    : `-${-seconds - 1}.${fraction(1_000_000_000 - nanoseconds)}`;
};
