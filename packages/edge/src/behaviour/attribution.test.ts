import type { ChannelExec } from '@dsec/backends';
import { describe, expect, it } from 'vitest';
import { ownerOf, type KnownCommands } from './attribution.ts';

const exec = (execId: string, pid: number, startedAtMs: number, endedAtMs?: number): ChannelExec => ({
  execId,
  pid,
  startedAtMs,
  endedAtMs,
  isRunning: endedAtMs === undefined,
});
const inSession = [{ sessionId: 'shell', pid: 50 }];
const known = (execs: readonly ChannelExec[], sessions: KnownCommands['sessions'] = []): KnownCommands => ({
  askedAtMs: 0,
  execs,
  sessions,
});
const by = (pid: number, ancestors: readonly number[] = [1], session = pid) => ({ pid, ancestors, session });
const unordered = (): number => -1;
const inOrder =
  (...execIds: readonly string[]) =>
  (execId: string): number =>
    execIds.indexOf(execId);

describe('a process belongs to', () => {
  it('the command whose first process it is, or that is among its parents, the nearest first', () => {
    const commands = known([exec('outer', 10, 0), exec('inner', 12, 0)]);
    expect(ownerOf(by(10), 5, commands, unordered)).toEqual({ execId: 'outer' });
    expect(ownerOf(by(14, [11, 10, 1], 10), 5, commands, unordered)).toEqual({ execId: 'outer' });
    expect(ownerOf(by(14, [12, 10, 1], 12), 5, commands, unordered)).toEqual({ execId: 'inner' });
  });

  it('the command whose kernel session it is in when its parents have ended', () => {
    expect(ownerOf(by(14, [1], 10), 500, known([exec('first', 10, 0, 100)]), unordered)).toEqual({ execId: 'first' });
  });

  it('none when it has left both, or is the first of the sandbox', () => {
    const commands = known([exec('first', 10, 0), exec('lost', 1, 0)]);
    expect(ownerOf(by(14, [1], 14), 5, commands, unordered)).toEqual({});
    expect(ownerOf(by(1, [], 1), 5, commands, unordered)).toEqual({});
    expect(ownerOf(by(0, [], 0), 5, commands, unordered)).toEqual({});
  });

  it('the later of two commands whose process had the same id', () => {
    const commands = known([exec('first', 10, 0, 40), exec('second', 10, 900)]);
    expect(ownerOf(by(10), 20, commands, unordered)).toEqual({ execId: 'first' });
    expect(ownerOf(by(10), 950, commands, unordered)).toEqual({ execId: 'second' });
    // It is recorded a moment after it has begun.
    expect(ownerOf(by(10), 880, known([exec('second', 10, 900)]), unordered)).toEqual({ execId: 'second' });
  });

  it('the command of its session that was under way, and to the session in any case', () => {
    const commands = known([exec('a', 50, 0, 100), exec('b', 50, 100, 200), exec('c', 50, 300)], inSession);
    const at = (atMs: number) => ownerOf(by(60, [50, 1], 50), atMs, commands, inOrder('a', 'b', 'c'));
    expect([at(50), at(150), at(350)]).toEqual([
      { execId: 'a', sessionId: 'shell' },
      { execId: 'b', sessionId: 'shell' },
      { execId: 'c', sessionId: 'shell' },
    ]);
    // What the last one left in the background.
    expect(at(250)).toEqual({ execId: 'b', sessionId: 'shell' });
    expect(ownerOf(by(60, [50, 1], 50), 5, known([], inSession), unordered)).toEqual({ sessionId: 'shell' });
  });

  it('the first of the commands of a session that have not ended: the others wait', () => {
    const commands = known([exec('third', 50, 12), exec('second', 50, 11), exec('first', 50, 40)], inSession);
    const owner = ownerOf(by(50), 45, commands, inOrder('first', 'second', 'third'));
    expect(owner).toEqual({ execId: 'first', sessionId: 'shell' });
  });
});
