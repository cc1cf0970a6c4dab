/** The sandbox that a path names. */
import { PlatformError, type SandboxIds } from '@dsec/contract';
import type { Services } from '../services.ts';

/** Ids whose check was found right, of the newest requests: a check costs as much as the rest of the routing. */
const MAX_KNOWN = 8192;
const known = new WeakMap<SandboxIds, Map<string, number>>();

/**
 * @throws PlatformError `invalid_id` for a mistyped or forged id, `edge_unknown` for one of another installation
 */
export function sandboxIdOf({ ids, edgeNumber }: Services, text = ''): string {
  const edge = edgeOf(ids, text);
  if (edge !== edgeNumber) {
    throw new PlatformError('edge_unknown', 'the id names an edge that is not part of this installation', {
      details: { edge },
    });
  }
  return text;
}

function edgeOf(ids: SandboxIds, text: string): number {
  let edges = known.get(ids);
  if (edges === undefined) {
    edges = new Map();
    known.set(ids, edges);
  }
  const before = edges.get(text);
  if (before !== undefined) return before;
  const { edge } = ids.parse(text);
  if (edges.size >= MAX_KNOWN) edges.clear();
  edges.set(text, edge);
  return edge;
}
