import type { SandboxInfo, SandboxState } from '@dsec/contract';
import type { Api } from './http/api.ts';
import { PagedList, type ListOptions, type ListPage } from './paged-list.ts';
import { parsePage } from './sandbox-answers.ts';

const liveStates: readonly SandboxState[] = ['creating', 'running', 'stopping'];

const parseList = (value: unknown): ListPage<SandboxInfo> => {
  const { sandboxes, cursor } = parsePage(value);
  return { items: sandboxes, cursor };
};

/** Which sandboxes. */
export interface SandboxFilter extends ListOptions {
  /** Those whose metadata has all of these entries. */
  readonly metadata?: Readonly<Record<string, string>>;
  /** Ended ones are remembered for a while. @default creating, running, stopping */
  readonly states?: readonly SandboxState[];
}

/** Sandboxes of the project; one that is made or ends meanwhile may or may not be among them, every other one is there exactly once. */
export type SandboxList = PagedList<SandboxInfo>;

export function listSandboxes(
  api: Api,
  { metadata = {}, states = liveStates, ...options }: SandboxFilter,
): SandboxList {
  const labels = Object.fromEntries(Object.entries(metadata).map(([key, value]) => [`metadata.${key}`, value]));
  const query = { ...labels, states: states.join(',') };
  return new PagedList(api, { path: '/sandboxes', what: 'listing the sandboxes', query, parse: parseList }, options);
}
