/** The query of a list of sandboxes: `metadata.KEY=VALUE`, each once, beside what its schema names. */
import { limits, PlatformError, sandboxStates, type SandboxState } from '@dsec/contract';
import { parsePairs } from '../http/query.ts';

export interface SandboxListQuery {
  readonly metadata?: Readonly<Record<string, string>>;
  readonly states?: readonly SandboxState[];
  readonly cursor?: string;
  readonly limit?: number;
}

const METADATA = 'metadata.';

const invalid = (field: string, reason: string): PlatformError =>
  new PlatformError('invalid_argument', `the query: ${field} ${reason}`, { details: { field, reason } });

const isState = (text: string): text is SandboxState => (sandboxStates as readonly string[]).includes(text);

function statesOf(text: string): readonly SandboxState[] {
  return text.split(',').map((state) => {
    if (!isState(state)) throw invalid('states', `must be some of ${sandboxStates.join(', ')}`);
    return state;
  });
}

function limitOf(text: string): number {
  const limit = /^\d{1,6}$/.test(text) ? Number(text) : 0;
  const { minimum, maximum } = limits.pageSize;
  if (limit < minimum || limit > maximum) throw invalid('limit', `must be ${minimum} to ${maximum}`);
  return limit;
}

/** @throws PlatformError `invalid_argument` */
export function parseSandboxListQuery(text: string): SandboxListQuery {
  const values = new Map<string, string>();
  for (const [name, value] of parsePairs(text)) {
    if (values.has(name)) throw invalid(name.slice(0, 64), 'is given twice');
    values.set(name, value);
  }
  const take = (name: string): string | undefined => {
    const value = values.get(name);
    values.delete(name);
    return value;
  };
  const states = take('states');
  const cursor = take('cursor');
  const limit = take('limit');
  for (const name of values.keys()) {
    if (!name.startsWith(METADATA) || name === METADATA) throw invalid(name.slice(0, 64), 'is not a known name');
  }
  const metadata = [...values].map(([name, value]) => [name.slice(METADATA.length), value] as const);
  return {
    ...(metadata.length === 0 ? {} : { metadata: Object.fromEntries(metadata) }),
    ...(states === undefined ? {} : { states: statesOf(states) }),
    ...(cursor === undefined ? {} : { cursor }),
    ...(limit === undefined ? {} : { limit: limitOf(limit) }),
  };
}
