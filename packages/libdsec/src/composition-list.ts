import { CompositionPageSchema, type Composition } from '@dsec/contract';
import type { Api } from './http/api.ts';
import { parserOf } from './http/schema.ts';
import { PagedList, type ListOptions, type ListPage } from './paged-list.ts';

const parsePage = parserOf(CompositionPageSchema, 'list of compositions');
const parseList = (value: unknown): ListPage<Composition> => {
  const { compositions, cursor } = parsePage(value);
  return { items: compositions, cursor };
};

export type CompositionFilter = ListOptions;

/** Names that sandboxes ran from together, and how many did. */
export type CompositionList = PagedList<Composition>;

export const listCompositions = (api: Api, filter: CompositionFilter): CompositionList =>
  new PagedList(api, { path: '/compositions', what: 'listing the compositions', parse: parseList }, filter);
