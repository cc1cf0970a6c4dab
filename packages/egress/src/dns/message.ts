/**
 * DNS messages (RFC 1035, RFC 6891), read as an attack: what is bounded is checked here, in one pass over the question, before dns-packet reads the
 * rest. A query has one question, no compressed name, and labels of host names only, so that a name means the same to everybody who compares it.
 */
import { decode, encode, type Answer, type DecodedPacket, type OptAnswer, type Packet } from 'dns-packet';
import {
  MAX_ADDRESSES,
  MAX_ALIASES,
  MAX_QUERY_BYTES,
  MAX_RECORDS,
  MAX_TTL_S,
  MAX_UDP_BYTES,
  MIN_TTL_S,
  MIN_UDP_BYTES,
  NEGATIVE_TTL_S,
} from './bounds.ts';

export const RecordType = { A: 1, CNAME: 5, PTR: 12, AAAA: 28, SVCB: 64, HTTPS: 65 } as const;
export const Rcode = { ok: 0, malformed: 1, failed: 2, noName: 3, notImplemented: 4, refused: 5 } as const;
export type AddressType = 'A' | 'AAAA';

export interface Query {
  readonly id: number;
  /** As it was written: some compare it with what comes back. */
  readonly asked: string;
  /** Lower case, without the final dot; empty for the root. */
  readonly name: string;
  readonly type: number;
  readonly wantsRecursion: boolean;
  /** The largest answer that the asker takes over UDP. */
  readonly udpBytes: number;
  /** It has an OPT record, and so must the answer. */
  readonly hasEdns: boolean;
}

export type ParsedQuery =
  | { readonly kind: 'query'; readonly query: Query }
  /** No answer: it is none, or an answer itself. */
  | { readonly kind: 'drop' }
  /** The answer is this one. */
  | { readonly kind: 'reply'; readonly bytes: Buffer };

const HEADER_BYTES = 12;
const FLAG_RESPONSE = 0x8000;
const FLAG_TRUNCATED = 0x0200;
const FLAG_RECURSION_DESIRED = 0x0100;
const FLAG_RECURSION_AVAILABLE = 0x0080;
const CLASS_IN = 1;
const MAX_NAME_BYTES = 255;
const MAX_LABEL_BYTES = 63;
/** OPT, and a signature that nobody checks. */
const MAX_QUERY_ADDITIONALS = 2;

export function parseQuery(bytes: Buffer): ParsedQuery {
  if (bytes.length < HEADER_BYTES) return { kind: 'drop' };
  const flags = bytes.readUInt16BE(2);
  if ((flags & FLAG_RESPONSE) !== 0) return { kind: 'drop' };
  if (((flags >> 11) & 15) !== 0) return bare(bytes, Rcode.notImplemented);
  const counts = [4, 6, 8, 10].map((at) => bytes.readUInt16BE(at));
  const [questions = 0, answers = 0, authorities = 0, additionals = 0] = counts;
  const isSmall = bytes.length <= MAX_QUERY_BYTES && additionals <= MAX_QUERY_ADDITIONALS;
  if (!isSmall || questions !== 1 || answers !== 0 || authorities !== 0) return bare(bytes, Rcode.malformed);
  const question = readQuestion(bytes);
  if (question === undefined) return bare(bytes, Rcode.malformed);
  if (question.class !== CLASS_IN) return bare(bytes, Rcode.refused);
  const packet = decoded(bytes);
  if (packet === undefined) return bare(bytes, Rcode.malformed);
  const opt = packet.additionals?.find(isOpt);
  const udpBytes = opt === undefined ? MIN_UDP_BYTES : opt.udpPayloadSize;
  return {
    kind: 'query',
    query: {
      id: bytes.readUInt16BE(0),
      asked: question.name,
      name: question.name.toLowerCase(),
      type: question.type,
      wantsRecursion: (flags & FLAG_RECURSION_DESIRED) !== 0,
      udpBytes: Math.min(Math.max(udpBytes, MIN_UDP_BYTES), MAX_UDP_BYTES),
      hasEdns: opt !== undefined,
    },
  };
}

interface ReplyRecord {
  readonly type: 'A' | 'AAAA' | 'PTR';
  readonly data: string;
  readonly ttlS: number;
}

export interface Reply {
  readonly rcode: number;
  readonly records: readonly ReplyRecord[];
}

/** The answer to a query. Over UDP one that is too large is cut to nothing, and says so: the asker comes again over TCP. */
export function writeReply(query: Query, reply: Reply, transport: 'udp' | 'tcp'): Buffer {
  const bytes = write(query, reply, 0);
  if (transport === 'tcp' || bytes.length <= query.udpBytes) return bytes;
  return write(query, { rcode: reply.rcode, records: [] }, FLAG_TRUNCATED);
}

function write(query: Query, { rcode, records }: Reply, moreFlags: number): Buffer {
  const recursion = query.wantsRecursion ? FLAG_RECURSION_DESIRED : 0;
  const answers = records.map(({ type, data, ttlS }): Answer => ({ type, name: query.asked, data, ttl: ttlS }));
  const packet: Packet = {
    type: 'response',
    id: query.id,
    flags: FLAG_RECURSION_AVAILABLE | recursion | moreFlags | rcode,
    questions: [{ name: query.asked, type: 'A' }],
    answers,
    additionals: query.hasEdns ? [opt(MAX_UDP_BYTES)] : [],
  };
  const bytes = encode(packet);
  // Types without a name are numbers on the wire and strings in the library.
  bytes.writeUInt16BE(query.type, questionEnd(query.asked) - 4);
  return bytes;
}

const opt = (udpPayloadSize: number): OptAnswer => ({
  type: 'OPT',
  name: '.',
  udpPayloadSize,
  extendedRcode: 0,
  ednsVersion: 0,
  flags: 0,
  flag_do: false,
  options: [],
});

/** A question for a server. */
export interface Question {
  readonly id: number;
  /** In the case in which it must come back. */
  readonly name: string;
  readonly type: AddressType;
}

export function writeQuestion({ id, name, type }: Question): Buffer {
  return encode({
    type: 'query',
    id,
    flags: FLAG_RECURSION_DESIRED,
    questions: [{ name, type }],
    additionals: [opt(MAX_UDP_BYTES)],
  });
}

interface ResolvedAddresses {
  readonly addresses: readonly string[];
  /** Seconds that all of them, and the aliases before them, may be used. */
  readonly ttlS: number;
  /** Where the aliases lead when the server has not followed them to their end. */
  readonly alias: string | undefined;
}

export type ParsedAnswer =
  /** Not to this question: a guess. */
  | { readonly kind: 'misfit' }
  /** To this question but for the case of its letters: a good guess, or a server that changes it. */
  | { readonly kind: 'recased' }
  | { readonly kind: 'truncated' }
  /** It is about this question, and of no use. */
  | { readonly kind: 'failed' }
  | { readonly kind: 'noName' }
  | ({ readonly kind: 'addresses' } & ResolvedAddresses);

export function parseAnswer(
  bytes: Buffer,
  question: Question,
  options: { readonly isCaseKept: boolean },
): ParsedAnswer {
  if (bytes.length < HEADER_BYTES || bytes.readUInt16BE(0) !== question.id) return { kind: 'misfit' };
  const flags = bytes.readUInt16BE(2);
  const isAnswer = (flags & FLAG_RESPONSE) !== 0 && ((flags >> 11) & 15) === 0 && bytes.readUInt16BE(4) === 1;
  const echoed = isAnswer ? readQuestion(bytes) : undefined;
  if (echoed?.type !== RecordType[question.type] || echoed.class !== CLASS_IN) return { kind: 'misfit' };
  if (echoed.name.toLowerCase() !== question.name.toLowerCase()) return { kind: 'misfit' };
  if (options.isCaseKept && echoed.name !== question.name) return { kind: 'recased' };
  if ((flags & FLAG_TRUNCATED) !== 0) return { kind: 'truncated' };
  const rcode = flags & 15;
  if (rcode === Rcode.noName) return { kind: 'noName' };
  const records = [6, 8, 10].reduce((count, at) => count + bytes.readUInt16BE(at), 0);
  if (rcode !== Rcode.ok || records > MAX_RECORDS) return { kind: 'failed' };
  const packet = decoded(bytes);
  if (packet === undefined) return { kind: 'failed' };
  return { kind: 'addresses', ...follow(packet.answers ?? [], question) };
}

/** Follows the aliases to the addresses at their end. */
function follow(answers: readonly Answer[], { name, type }: Question): ResolvedAddresses {
  const first = name.toLowerCase();
  let current = first;
  let ttlS = MAX_TTL_S;
  for (let aliases = 0; aliases <= MAX_ALIASES; aliases++) {
    const own = answers.filter((answer) => answer.name.toLowerCase() === current);
    const addresses = own.filter((answer) => answer.type === type && 'ttl' in answer);
    if (addresses.length > 0) {
      for (const address of addresses) ttlS = Math.min(ttlS, ttlOf(address));
      const texts = addresses.flatMap((answer) =>
        'data' in answer && typeof answer.data === 'string' ? [answer.data] : [],
      );
      return { addresses: [...new Set(texts)].slice(0, MAX_ADDRESSES), ttlS: clamp(ttlS), alias: undefined };
    }
    const alias = own.find((answer) => answer.type === 'CNAME');
    if (alias === undefined || !('data' in alias) || typeof alias.data !== 'string') break;
    ttlS = Math.min(ttlS, ttlOf(alias));
    current = alias.data.toLowerCase();
  }
  const isAlias = current !== first && isHostName(current);
  return { addresses: [], ttlS: isAlias ? clamp(ttlS) : NEGATIVE_TTL_S, alias: isAlias ? current : undefined };
}

const clamp = (ttlS: number): number => Math.min(Math.max(ttlS, MIN_TTL_S), MAX_TTL_S);
/** A TTL with its highest bit set is 0 (RFC 2181 8). */
const ttlOf = (answer: Answer): number => {
  const ttl = 'ttl' in answer ? (answer.ttl ?? 0) : 0;
  return ttl >= 2 ** 31 ? 0 : ttl;
};

interface ReadQuestion {
  readonly name: string;
  readonly type: number;
  readonly class: number;
}

const HOST_BYTES = /^[A-Za-z0-9_-]+$/;

/** The first question: a name of uncompressed labels of letters, digits, `-` and `_`. */
function readQuestion(bytes: Buffer): ReadQuestion | undefined {
  const labels: string[] = [];
  let at = HEADER_BYTES;
  for (;;) {
    const length = bytes[at];
    if (length === undefined || length > MAX_LABEL_BYTES) return undefined;
    at += 1;
    if (length === 0) break;
    const label = bytes.toString('latin1', at, at + length);
    if (label.length !== length || !HOST_BYTES.test(label)) return undefined;
    labels.push(label);
    at += length;
    if (at - HEADER_BYTES >= MAX_NAME_BYTES) return undefined;
  }
  if (at + 4 > bytes.length) return undefined;
  return { name: labels.join('.'), type: bytes.readUInt16BE(at), class: bytes.readUInt16BE(at + 2) };
}

const questionEnd = (name: string): number => HEADER_BYTES + (name === '' ? 1 : name.length + 2) + 4;

const isHostName = (name: string): boolean =>
  name.length <= MAX_NAME_BYTES - 2 &&
  name.split('.').every((label) => label.length <= MAX_LABEL_BYTES && HOST_BYTES.test(label));

/** The library throws whatever comes to it on bytes that it cannot read. */
function decoded(bytes: Buffer): DecodedPacket | undefined {
  try {
    return decode(bytes);
  } catch {
    return undefined;
  }
}

const isOpt = (answer: Answer): answer is OptAnswer => answer.type === 'OPT';

/** A header alone: what the question was cannot be repeated. */
function bare(query: Buffer, rcode: number): ParsedQuery {
  const bytes = Buffer.alloc(HEADER_BYTES);
  query.copy(bytes, 0, 0, 4);
  const kept = query.readUInt16BE(2) & (FLAG_RECURSION_DESIRED | 0x7800);
  bytes.writeUInt16BE(FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | kept | rcode, 2);
  return { kind: 'reply', bytes };
}
