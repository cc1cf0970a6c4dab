import type { BehaviourKind, BehaviourLine } from '@dsec/contract';
import { describe, expect, it } from 'vitest';
import { MAX_LISTENERS, MAX_PROJECT_LISTENERS } from './bounds.ts';
import { EventRing, type Listener } from './event-ring.ts';

const EPOCH_MS = 1_700_000_000_000;
const add = (
  ring: EventRing,
  what: string,
  more: { project?: string; sandboxId?: string; kind?: BehaviourKind } = {},
) => {
  const { project = 'p', sandboxId = 's1', kind = 'call' } = more;
  ring.add(project, { atMs: 1, sandboxId, keyId: 'k', kind, what, outcome: 'EPERM', count: 1 });
};
function taken(listener: Listener): readonly BehaviourLine[] {
  const lines: BehaviourLine[] = [];
  for (let line = listener.take(); line !== undefined; line = listener.take()) lines.push(line);
  return lines;
}
/** What was said, without where it begins. */
const said = (listener: Listener): readonly unknown[] =>
  taken(listener)
    .filter((line) => !('at' in line))
    .map((line) => ('event' in line ? line.event.what : line));

describe('a listener', () => {
  it('hears what is kept, then what happens, from the cursor that it names', () => {
    const ring = new EventRing(EPOCH_MS);
    for (const what of ['a', 'b', 'c']) add(ring, what);
    using all = ring.listen({});
    const lines = taken(all);
    expect(lines).toHaveLength(4);
    add(ring, 'd');
    expect(said(all)).toEqual(['d']);
    const cursors = lines.map((line) => ('at' in line ? line.at : 'event' in line ? line.event.cursor : ''));
    const rest = cursors.map((cursor) => {
      using after = ring.listen({}, cursor);
      return said(after);
    });
    expect(rest).toEqual([['a', 'b', 'c', 'd'], ['b', 'c', 'd'], ['c', 'd'], ['d']]);
    using later = ring.listen({}, 'now');
    expect(said(later)).toEqual([]);
    add(ring, 'e');
    expect(said(later)).toEqual(['e']);
  });

  it('hears of its project, sandbox and kinds alone', () => {
    const ring = new EventRing(EPOCH_MS);
    add(ring, 'mine');
    add(ring, 'theirs', { project: 'q' });
    add(ring, 'of another sandbox', { sandboxId: 's2' });
    add(ring, 'a name', { kind: 'name' });
    const heard = (filter: Parameters<EventRing['listen']>[0]): readonly unknown[] => {
      using listener = ring.listen(filter);
      return said(listener);
    };
    expect(heard({ project: 'p' })).toEqual(['mine', 'of another sandbox', 'a name']);
    expect(heard({ project: 'p', sandboxId: 's1' })).toEqual(['mine', 'a name']);
    expect(heard({ kinds: ['name', 'open'] })).toEqual(['a name']);
    expect(heard({ project: 'nobody' })).toEqual([]);
  });

  it('that is slow is told how much of what it wanted it has lost, and no more', () => {
    const ring = new EventRing(EPOCH_MS, 4);
    using mine = ring.listen({ project: 'p' });
    using theirs = ring.listen({ project: 'q' });
    for (let index = 0; index < 10; index++) add(ring, `${index}`, index % 2 === 0 ? {} : { project: 'q' });
    expect(said(mine)).toEqual([{ lost: 3 }, '6', '8']);
    ring.noteLost(2);
    expect(said(theirs)).toEqual([{ lost: 5 }, '7', '9']);
    expect(said(mine)).toEqual([{ lost: 2 }]);
    expect(said(mine)).toEqual([]);
  });

  it('that comes with a cursor of before the restart, or of what is gone, hears that it lost it knows not how many', () => {
    const ring = new EventRing(EPOCH_MS, 2);
    const before = new EventRing(EPOCH_MS - 1);
    for (const what of ['a', 'b', 'c']) {
      add(ring, what);
      add(before, what);
    }
    using listener = before.listen({});
    const old = taken(listener).at(-1);
    const cursor = old !== undefined && 'event' in old ? old.event.cursor : '';
    for (const after of [cursor, `${EPOCH_MS.toString(36)}-0`, `${EPOCH_MS.toString(36)}-zz`, 'x-y']) {
      using anew = ring.listen({}, after);
      expect([after, said(anew)]).toEqual([after, [{ lost: null }, 'b', 'c']]);
    }
  });

  it('waits until there is something, or until it goes', async () => {
    const ring = new EventRing(EPOCH_MS);
    const controller = new AbortController();
    using listener = ring.listen({});
    said(listener);
    let isWoken = false;
    const more = listener.more(controller.signal).then(() => (isWoken = true));
    await Promise.resolve();
    expect(isWoken).toBe(false);
    add(ring, 'a');
    await more;
    expect(said(listener)).toEqual(['a']);
    const never = listener.more(controller.signal);
    controller.abort(new Error('gone'));
    await expect(never).rejects.toThrow('gone');
    await expect(listener.more(controller.signal)).rejects.toThrow('gone');
  });

  it('is one of a bounded number, for a project and in all', () => {
    const ring = new EventRing(EPOCH_MS);
    const listeners = Array.from({ length: MAX_PROJECT_LISTENERS }, () => ring.listen({ project: 'p' }));
    const refused = expect.objectContaining({ code: 'too_many_requests' }) as Error;
    expect(() => ring.listen({ project: 'p' })).toThrow(refused);
    for (let index = listeners.length; index < MAX_LISTENERS; index++) ring.listen({ project: `p${index}` });
    expect(() => ring.listen({ project: 'another' })).toThrow(refused);
    listeners[0]?.[Symbol.dispose]();
    ring.listen({ project: 'p' })[Symbol.dispose]();
    expect(ring.listeners).toBe(MAX_LISTENERS - 1);
  });
});
