/** The report of one sandbox: what was done, how often, first and last, and who did it. Bounded in entries and in bytes; what has no room is counted. */
import {
  BehaviourReportSchema,
  behaviourKinds,
  limits,
  type BehaviourAttribution,
  type BehaviourEntry,
  type BehaviourKind,
  type BehaviourReport,
  type BehaviourSample,
} from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import { isDeepStrictEqual } from 'node:util';
import type { Told } from './told.ts';

interface Entry {
  readonly kind: BehaviourKind;
  readonly what: string;
  readonly outcome: string;
  count: number;
  firstAtMs: number;
  lastAtMs: number;
  readonly samples: BehaviourSample[];
}

export interface Counted {
  readonly told: Pick<Told, 'kind' | 'what' | 'outcome'>;
  readonly atMs: number;
  readonly count: number;
  readonly by: BehaviourAttribution;
}

const parser = compileSchema(BehaviourReportSchema);
/** Of an entry beside its texts, in memory and in JSON. */
const ENTRY_BYTES = 128;
/** A character takes up to three bytes of UTF-8, or six of JSON. */
const CHARACTER_BYTES = 3;

export class Report {
  readonly sandboxId: string;
  readonly tripwires: readonly string[];
  absentTripwires: readonly string[] = [];
  readonly #counts = Object.fromEntries(behaviourKinds.map((kind) => [kind, 0])) as Record<BehaviourKind, number>;
  readonly #entries = new Map<string, Entry>();
  #withoutEntry = 0;
  #bytes = 0;

  constructor(sandboxId: string, tripwires: readonly string[] = []) {
    this.sandboxId = sandboxId;
    this.tripwires = tripwires;
  }

  /** What an earlier edge wrote; undefined when it is no report. */
  static parse(text: string): Report | undefined {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      return undefined;
    }
    if (!parser.is(value)) return undefined;
    // The unions of literals lose their names in the derived type.
    const told = value as BehaviourReport;
    const report = new Report(told.sandboxId, told.tripwires);
    report.absentTripwires = told.absentTripwires;
    Object.assign(report.#counts, told.counts);
    report.#withoutEntry = told.withoutEntry;
    for (const entry of told.entries) {
      report.#entries.set(keyOf(entry), { ...entry, samples: [...entry.samples] });
      report.#bytes += bytesOf(entry) + entry.samples.reduce((sum, sample) => sum + sampleBytes(sample), 0);
    }
    return report;
  }

  /** About what it takes in memory. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Of what is new, no more than fits `maxBytes` is kept in entries. */
  add({ told, atMs, count, by }: Counted, maxBytes: number): void {
    this.#counts[told.kind] += count;
    const key = keyOf(told);
    let entry = this.#entries.get(key);
    if (entry === undefined) {
      const { kind, what, outcome } = told;
      const bytes = bytesOf(told);
      if (this.#entries.size >= limits.behaviourEntries || this.#bytes + bytes > maxBytes) {
        this.#withoutEntry += count;
        return;
      }
      entry = { kind, what, outcome, count: 0, firstAtMs: atMs, lastAtMs: atMs, samples: [] };
      this.#entries.set(key, entry);
      this.#bytes += bytes;
    }
    entry.count += count;
    entry.firstAtMs = Math.min(entry.firstAtMs, atMs);
    entry.lastAtMs = Math.max(entry.lastAtMs, atMs);
    this.#sample(entry, { atMs, ...by }, maxBytes);
  }

  show(): BehaviourReport {
    return {
      sandboxId: this.sandboxId,
      tripwires: this.tripwires,
      absentTripwires: this.absentTripwires,
      counts: { ...this.#counts },
      entries: [...this.#entries.values()] satisfies readonly BehaviourEntry[],
      withoutEntry: this.#withoutEntry,
    };
  }

  #sample(entry: Entry, sample: BehaviourSample, maxBytes: number): void {
    if (entry.samples.length >= limits.behaviourSamples) return;
    const isSeen = entry.samples.some(
      (seen) => seen.execId === sample.execId && isDeepStrictEqual(withoutPid(seen), withoutPid(sample)),
    );
    const bytes = sampleBytes(sample);
    if (isSeen || this.#bytes + bytes > maxBytes) return;
    entry.samples.push(sample);
    this.#bytes += bytes;
  }
}

/** A program that does the same a thousand times has a thousand process ids. */
const withoutPid = ({ process }: BehaviourSample): unknown => ({ ...process, pid: 0 });

const keyOf = ({ kind, what, outcome }: Pick<Told, 'kind' | 'what' | 'outcome'>): string =>
  `${kind}\n${outcome}\n${what}`;

const bytesOf = ({ what, outcome }: Pick<Told, 'what' | 'outcome'>): number =>
  ENTRY_BYTES + CHARACTER_BYTES * (what.length + outcome.length);

function sampleBytes({ process, command = [] }: BehaviourSample): number {
  const texts = [...command, process?.comm ?? '', ...(process?.argv ?? [])];
  return ENTRY_BYTES + texts.reduce((sum, text) => sum + CHARACTER_BYTES * text.length + 8, 0);
}
