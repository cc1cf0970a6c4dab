import { envVariable } from '@dsec/kit';
import { decode, encode, type Packet } from 'dns-packet';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { MAX_ADDRESSES, MAX_RECORDS } from './bounds.ts';
import {
  parseAnswer,
  parseQuery,
  Rcode,
  RecordType,
  writeQuestion,
  writeReply,
  type Query,
  type Question,
} from './message.ts';

const query = (packet: Partial<Packet> = {}): Buffer =>
  encode({ type: 'query', id: 7, flags: 0x0100, questions: [{ name: 'A.test', type: 'A' }], ...packet });
const parsed = (bytes: Buffer): Query => {
  const result = parseQuery(bytes);
  if (result.kind !== 'query') throw new Error(`not read: ${result.kind}`);
  return result.query;
};
const rcodeOf = (bytes: Buffer): number | string => {
  const result = parseQuery(bytes);
  return result.kind === 'reply' ? result.bytes.readUInt16BE(2) & 15 : result.kind;
};
/** A question of these labels, as they are. */
const raw = (...labels: readonly (string | Buffer)[]): Buffer => {
  const header = Buffer.from('000701000001000000000000', 'hex');
  const parts = labels.map((label) => Buffer.concat([Buffer.from([label.length]), Buffer.from(label)]));
  return Buffer.concat([header, ...parts, Buffer.from('0000010001', 'hex')]);
};

describe('a query', () => {
  test('is read with its name in lower case', () => {
    expect(parsed(query())).toEqual({
      id: 7,
      asked: 'A.test',
      name: 'a.test',
      type: RecordType.A,
      wantsRecursion: true,
      udpBytes: 512,
      hasEdns: false,
    });
    expect(parsed(raw()).name).toBe('');
  });

  test.each([
    [100, 512],
    [1000, 1000],
    [65_535, 1232],
  ])('that takes %i bytes gets %i at most', (udpPayloadSize, udpBytes) => {
    const opt = {
      type: 'OPT',
      name: '.',
      udpPayloadSize,
      extendedRcode: 0,
      ednsVersion: 0,
      flags: 0,
      flag_do: false,
      options: [],
    } as const;
    expect(parsed(query({ additionals: [{ ...opt, options: [] }] }))).toMatchObject({ udpBytes, hasEdns: true });
  });

  const a = { name: 'a.test', type: 'A' } as const;
  const record = { type: 'A', name: 'a.test', data: '192.0.2.1' } as const;
  test.each<readonly [string, Buffer, number | string]>([
    ['too short for a header', Buffer.alloc(11), 'drop'],
    ['an answer', query({ type: 'response' }), 'drop'],
    ['an update', query({ flags: 5 << 11 }), Rcode.notImplemented],
    ['no question', query({ questions: [] }), Rcode.malformed],
    ['two questions', query({ questions: [a, a] }), Rcode.malformed],
    ['with answers', query({ answers: [record] }), Rcode.malformed],
    ['with authorities', query({ authorities: [record] }), Rcode.malformed],
    ['with many additionals', query({ additionals: [record, record, record] }), Rcode.malformed],
    ['of another class', query({ questions: [{ ...a, class: 'CH' }] }), Rcode.refused],
    ['too long', Buffer.concat([query(), Buffer.alloc(1300)]), Rcode.malformed],
    ['cut in its name', query().subarray(0, 15), Rcode.malformed],
    ['cut behind its name', query().subarray(0, 22), Rcode.malformed],
    ['with a compressed name', Buffer.from('000701000001000000000000c00c00010001', 'hex'), Rcode.malformed],
    ['with a dot in a label', raw('a.test'), Rcode.malformed],
    ['with a zero in a label', raw('a\0', 'test'), Rcode.malformed],
    ['with bytes that are no text', raw(Buffer.from([0xff]), 'test'), Rcode.malformed],
    ['with a name that is too long', raw(...new Array<string>(5).fill('x'.repeat(60))), Rcode.malformed],
    ['with an additional that is cut', Buffer.concat([query(), Buffer.alloc(0)]).fill(1, 11, 12), Rcode.malformed],
  ])('%s', (_name, bytes, expected) => {
    expect(rcodeOf(bytes)).toBe(expected);
  });
});

describe('a reply', () => {
  test('repeats the question as it was and carries the records', () => {
    const bytes = writeReply(
      parsed(query()),
      { rcode: 0, records: [{ type: 'A', data: '192.0.2.1', ttlS: 9 }] },
      'udp',
    );
    expect(decode(bytes)).toMatchObject({
      id: 7,
      type: 'response',
      flag_rd: true,
      flag_ra: true,
      rcode: 'NOERROR',
      questions: [{ name: 'A.test', type: 'A' }],
      answers: [{ name: 'A.test', type: 'A', data: '192.0.2.1', ttl: 9 }],
    });
  });

  test('repeats a type that has no name', () => {
    const bytes = query();
    bytes.writeUInt16BE(65, bytes.length - 4);
    const reply = writeReply(parsed(bytes), { rcode: Rcode.refused, records: [] }, 'udp');
    expect(decode(reply)).toMatchObject({ rcode: 'REFUSED', questions: [{ type: 'UNKNOWN_65' }] });
  });

  test('that is too large for UDP says so, and goes over TCP', () => {
    const records = Array.from(
      { length: 16 },
      (_, index) => ({ type: 'AAAA', data: `2001:db8::${index}`, ttlS: 1 }) as const,
    );
    const asked = parsed(query({ questions: [{ name: `${'x'.repeat(60)}.${'y'.repeat(60)}.test`, type: 'AAAA' }] }));
    const cut = decode(writeReply(asked, { rcode: 0, records }, 'udp'));
    expect(cut).toMatchObject({ flag_tc: true, answers: [] });
    expect(decode(writeReply(asked, { rcode: 0, records }, 'tcp')).answers).toHaveLength(16);
  });
});

describe('an answer of a server', () => {
  const question: Question = { id: 9, name: 'A.tEst', type: 'A' };
  const answer = (packet: Partial<Packet> = {}): Buffer =>
    encode({ type: 'response', id: 9, flags: 0x0180, questions: [{ name: 'A.tEst', type: 'A' }], ...packet });
  const read = (bytes: Buffer) => parseAnswer(bytes, question, { isCaseKept: true });
  const a = (name: string, data: string, ttl = 60) => ({ type: 'A', name, data, ttl }) as const;
  const cname = (name: string, data: string, ttl = 60) => ({ type: 'CNAME', name, data, ttl }) as const;

  test('is followed through its aliases, with the least of their times', () => {
    const answers = [
      cname('a.test', 'B.test', 20),
      cname('b.test', 'c.test', 30),
      a('c.test', '192.0.2.1'),
      a('C.test', '192.0.2.2', 50),
    ];
    expect(read(answer({ answers }))).toEqual({
      kind: 'addresses',
      addresses: ['192.0.2.1', '192.0.2.2'],
      ttlS: 20,
      alias: undefined,
    });
  });

  test('says where its aliases lead when it does not end', () => {
    expect(read(answer({ answers: [cname('a.test', 'b.test')] }))).toMatchObject({ addresses: [], alias: 'b.test' });
    expect(read(answer({ answers: [cname('a.test', 'a.test')] }))).toMatchObject({ addresses: [], alias: undefined });
    expect(read(answer({ answers: [cname('a.test', 'b b.test')] }))).toMatchObject({ addresses: [], alias: undefined });
  });

  test('has no address of another name', () => {
    expect(read(answer({ answers: [a('evil.test', '192.0.2.66')] }))).toMatchObject({ addresses: [] });
  });

  test('has bounded times and a bounded number of addresses', () => {
    const ttlOf = (ttl: number) => {
      const result = read(answer({ answers: [a('a.test', '192.0.2.1', ttl)] }));
      return result.kind === 'addresses' ? result.ttlS : result.kind;
    };
    expect([0, 1, 300, 86_400, 2 ** 31 + 5].map(ttlOf)).toEqual([1, 1, 300, 300, 1]);
    const many = Array.from({ length: 40 }, (_, index) => a('a.test', `192.0.2.${index}`));
    expect(read(answer({ answers: many }))).toMatchObject({ addresses: { length: MAX_ADDRESSES } });
    const more = Array.from({ length: MAX_RECORDS + 1 }, () => a('a.test', '192.0.2.1'));
    expect(read(answer({ answers: more }))).toEqual({ kind: 'failed' });
  });

  test.each<readonly [string, Partial<Packet>, string]>([
    ['another id', { id: 8 }, 'misfit'],
    ['a query', { type: 'query' }, 'misfit'],
    ['another name', { questions: [{ name: 'b.tEst', type: 'A' }] }, 'misfit'],
    ['another type', { questions: [{ name: 'A.tEst', type: 'AAAA' }] }, 'misfit'],
    ['no question', { questions: [] }, 'misfit'],
    ['another case', { questions: [{ name: 'a.test', type: 'A' }] }, 'recased'],
    ['it does not fit', { flags: 0x0380 }, 'truncated'],
    ['no such name', { flags: 0x0183 }, 'noName'],
    ['a failure', { flags: 0x0182 }, 'failed'],
  ])('%s', (_name, packet, kind) => {
    expect(read(answer(packet)).kind).toBe(kind);
  });
});

const fuzzMs = Number(envVariable('DSEC_FUZZ_SECONDS') ?? 1) * 500;

/** Bytes that are mostly a message: one that is well-formed, with some of its bytes changed. */
const mangled = (seed: Buffer) =>
  fc
    .tuple(
      fc.array(fc.tuple(fc.nat(seed.length - 1), fc.nat(255)), { maxLength: 6 }),
      fc.nat(seed.length),
      fc.uint8Array({ maxLength: 40 }),
    )
    .map(([changes, length, tail]) => {
      const bytes = Buffer.from(seed);
      for (const [at, value] of changes) bytes[at] = value;
      return Buffer.concat([bytes.subarray(0, length), tail]);
    });

test('fuzz: whatever comes as a query is answered or dropped, and what is read of it is a name', () => {
  const seed = query({
    additionals: [
      {
        type: 'OPT',
        name: '.',
        udpPayloadSize: 1232,
        extendedRcode: 0,
        ednsVersion: 0,
        flags: 0,
        flag_do: false,
        options: [],
      },
    ],
  });
  fc.assert(
    fc.property(
      fc.oneof(
        mangled(seed),
        fc.uint8Array({ maxLength: 600 }).map((bytes) => Buffer.from(bytes)),
      ),
      (bytes) => {
        const result = parseQuery(bytes);
        if (result.kind === 'reply') expect(result.bytes).toHaveLength(12);
        if (result.kind !== 'query') return;
        expect(result.query.name).toMatch(/^(?:[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*)?$/);
        const reply = writeReply(result.query, { rcode: Rcode.noName, records: [] }, 'udp');
        expect(reply.length).toBeLessThanOrEqual(result.query.udpBytes);
        expect(reply.readUInt16BE(0)).toBe(result.query.id);
      },
    ),
    { numRuns: Number.MAX_SAFE_INTEGER, interruptAfterTimeLimit: fuzzMs },
  );
});

test('fuzz: whatever comes as an answer is read or refused', () => {
  const question: Question = { id: 9, name: 'a.test', type: 'A' };
  const seed = encode({
    type: 'response',
    id: 9,
    flags: 0x0180,
    questions: [{ name: 'a.test', type: 'A' }],
    answers: [
      { type: 'CNAME', name: 'a.test', data: 'b.test', ttl: 5 },
      { type: 'A', name: 'b.test', data: '192.0.2.1', ttl: 5 },
      { type: 'TXT', name: 'b.test', data: ['x', 'y'], ttl: 5 },
      { type: 'SRV', name: 'b.test', data: { port: 1, target: 'c.test' }, ttl: 5 },
    ],
  });
  fc.assert(
    fc.property(
      fc.oneof(
        mangled(seed),
        fc.uint8Array({ maxLength: 600 }).map((bytes) => Buffer.from(bytes)),
      ),
      (bytes) => {
        const result = parseAnswer(bytes, question, { isCaseKept: false });
        if (result.kind !== 'addresses') return;
        expect(result.addresses.length).toBeLessThanOrEqual(MAX_ADDRESSES);
        expect(result.ttlS).toBeGreaterThanOrEqual(1);
        expect(result.ttlS).toBeLessThanOrEqual(300);
        // Whatever the alias is, it can be asked for.
        if (result.alias !== undefined)
          expect(writeQuestion({ ...question, name: result.alias }).length).toBeLessThan(600);
      },
    ),
    { numRuns: Number.MAX_SAFE_INTEGER, interruptAfterTimeLimit: fuzzMs },
  );
});
