import { EnvironmentSchema, type Environment, type EnvironmentKind } from '@dsec/contract';
import { Type } from 'typebox';
import type { Api } from './http/api.ts';
import { parserOf } from './http/schema.ts';
import { PagedList, type ListOptions, type ListPage } from './paged-list.ts';

interface EnvironmentPage {
  readonly environments: readonly Environment[];
  readonly cursor: string | null;
}
const PageSchema = Type.Object({
  environments: Type.Array(EnvironmentSchema),
  cursor: Type.Union([Type.String(), Type.Null()]),
});
const parsePage = parserOf<typeof PageSchema, EnvironmentPage>(PageSchema, 'list of environments');
const parseList = (value: unknown): ListPage<Environment> => {
  const { environments, cursor } = parsePage(value);
  return { items: environments, cursor };
};

/** Which environments. */
export interface EnvironmentFilter extends ListOptions {
  /** Those whose name begins with it. @default all */
  readonly prefix?: string | undefined;
  /** Those that are for this. @default all */
  readonly kind?: EnvironmentKind | undefined;
}

/** Environments by name; one that is named or removed meanwhile may or may not be among them, every other one is there exactly once. */
export type EnvironmentList = PagedList<Environment>;

export function listEnvironments(api: Api, { prefix, kind, ...options }: EnvironmentFilter): EnvironmentList {
  const query = { prefix, kind };
  return new PagedList(
    api,
    { path: '/environments', what: 'listing the environments', query, parse: parseList },
    options,
  );
}
