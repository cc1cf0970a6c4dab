import { isDeepStrictEqual } from 'node:util';
import type { BehaviourEvent, DSecClient, Sandbox } from '@dsec/libdsec';

/** What an event must say, member by member. */
export type WantedEvent = Partial<BehaviourEvent>;

/** Launcher and resolver tell at once, or a second later what is alike. */
const PATIENCE_MS = 10_000;

/** Waits for an event of the sandbox that says all this, one from before too; fails with what there was instead. */
export async function behaviourOf(
  client: DSecClient,
  { sandboxId }: Pick<Sandbox, 'sandboxId'>,
  wanted: WantedEvent,
): Promise<BehaviourEvent> {
  const seen: string[] = [];
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    for await (const event of client.events({ sandboxId, signal })) {
      if (says(event, wanted)) return event;
      seen.push(JSON.stringify(event));
    }
  } catch (cause) {
    throw new Error(`no event of ${sandboxId} is ${JSON.stringify(wanted)}, only:\n${seen.join('\n')}`, { cause });
  }
  throw new Error('a stream that follows has no end');
}

const says = (event: BehaviourEvent, wanted: WantedEvent): boolean =>
  Object.entries(wanted).every(([member, value]) => isDeepStrictEqual(event[member as keyof BehaviourEvent], value));
