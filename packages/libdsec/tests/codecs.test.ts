import fc from 'fast-check';
import { expect, test } from 'vitest';
import { base64Of } from '../src/http/base64.ts';
import { EventQueue } from '../src/exec/event-queue.ts';
import { linesOf, type OutputEvent } from '../src/exec/output-event.ts';
import { OutputRecord } from '../src/exec/output-record.ts';
import { RecordParser } from '../src/exec/record-parser.ts';
import { exited, record, started } from './scripted-server.ts';

const pieces = fc.array(fc.uint8Array({ maxLength: 300 }), { maxLength: 40 });

/** Cuts bytes at these places, which may be anywhere. */
function cut(bytes: Uint8Array, places: readonly number[]): Uint8Array<ArrayBuffer>[] {
  const at = [...new Set(places.map((place) => place % (bytes.length + 1)))].toSorted((a, b) => a - b);
  return [0, ...at].map((from, index) => Uint8Array.from(bytes.subarray(from, at[index] ?? bytes.length)));
}

test('an exec stream means the same however it is cut', () => {
  fc.assert(
    fc.property(pieces, fc.array(fc.nat()), (outputs, places) => {
      const records = outputs.map((output, index) => record(index % 3 === 0 ? 'stderr' : 'stdout', output));
      const stream = Buffer.concat([started, ...records, record('keepalive', ''), exited({ exitCode: 9 })]);
      const seen: { 1: Uint8Array[]; 2: Uint8Array[]; exitCode: number | undefined; starts: number } = {
        1: [],
        2: [],
        exitCode: undefined,
        starts: 0,
      };
      const parser = new RecordParser({
        onStarted: () => (seen.starts += 1),
        onData: (channel, data) => seen[channel].push(Uint8Array.from(data)),
        onGap: () => expect.unreachable(),
        onExit: (status) => (seen.exitCode = status.exitCode),
        onError: () => expect.unreachable(),
      });
      for (const part of cut(stream, places)) parser.push(part);
      expect(seen.starts).toBe(1);
      expect(seen.exitCode).toBe(9);
      const of = (isStderr: boolean): Buffer =>
        Buffer.concat(outputs.filter((_, index) => (index % 3 === 0) === isStderr));
      expect(Buffer.concat(seen[1])).toEqual(of(false));
      expect(Buffer.concat(seen[2])).toEqual(of(true));
    }),
  );
});

test('a record keeps the first quarter and the newest three quarters, and counts the rest', () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 1, max: 40_000 }), { maxLength: 60 }),
      fc.integer({ min: 0, max: 200_000 }),
      (sizes, limit) => {
        const kept = new OutputRecord(limit);
        const total = sizes.reduce((sum, size) => sum + size, 0);
        const whole = Uint8Array.from({ length: total }, (_, index) => (index * 31) % 251);
        let at = 0;
        for (const size of sizes) {
          kept.append(whole.slice(at, at + size));
          at += size;
        }
        const head = Math.min(total, Math.floor(limit / 4));
        const tail = Math.min(total - head, limit - Math.floor(limit / 4));
        const expected = Buffer.concat([whole.subarray(0, head), whole.subarray(total - tail)]);
        expect(Buffer.compare(kept.bytes(), expected)).toBe(0);
        expect(kept.droppedBytes).toBe(total - head - tail);
      },
    ),
    { numRuns: 60 },
  );
});

test('lines do not depend on where the output was cut, and no character of them is lost', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.stringMatching(/^[a-zé☕ ]{0,12}$/)), fc.array(fc.nat()), async (lines, places) => {
      const bytes = new TextEncoder().encode(lines.map((line) => `${line}\r\n`).join('') + 'end');
      const events = (async function* (): AsyncGenerator<OutputEvent> {
        for (const data of cut(bytes, places)) yield { kind: 'stdout', data };
      })();
      const seen = await Array.fromAsync(linesOf(events));
      expect(seen.map(({ line }) => line)).toEqual([...lines, 'end']);
    }),
  );
});

test('a line that comes a byte at a time costs no more than the same line at once', async () => {
  const bytes = 500_000;
  const events = (async function* (): AsyncGenerator<OutputEvent> {
    for (let index = 0; index < bytes; index++) yield { kind: 'stdout', data: Uint8Array.of(0x61) };
  })();
  const seen = await Array.fromAsync(linesOf(events));
  expect(seen.map(({ line }) => line.length)).toEqual([bytes]);
});

test('output that nobody takes is held back however small its pieces are', async () => {
  for (const event of [
    { kind: 'gap', stream: 'stdout', fromByte: 0, toByte: 1 },
    { kind: 'stdout', data: Uint8Array.of(0x61) },
  ] satisfies readonly OutputEvent[]) {
    const queue = new EventQueue();
    let count = 0;
    while (queue.ready() === undefined && count < 1_000_000) {
      queue.push(event);
      count += 1;
    }
    expect(count).toBeLessThan(20_000);
    let hasRoom = false;
    void queue.ready()?.then(() => (hasRoom = true));
    const reader = queue.read();
    for (let taken = 0; taken < 2; taken++) expect((await reader.next()).value).toEqual(event);
    await reader.return();
    expect(hasRoom).toBe(true);
  }
});

test('base64 is that of everybody else', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 70_000 }), (bytes) => {
      expect(base64Of(bytes)).toBe(Buffer.from(bytes).toString('base64'));
    }),
    { numRuns: 30 },
  );
});
