import { SandboxSchema, type SandboxInfo } from '@dsec/contract';
import { Type } from 'typebox';
import { parserOf } from './http/schema.ts';

export const parseSandbox = parserOf<typeof SandboxSchema, SandboxInfo>(SandboxSchema, 'sandbox');

const PageSchema = Type.Object({
  sandboxes: Type.Array(SandboxSchema),
  cursor: Type.Union([Type.String(), Type.Null()]),
});
export const parsePage = parserOf<
  typeof PageSchema,
  { readonly sandboxes: readonly SandboxInfo[]; readonly cursor: string | null }
>(PageSchema, 'list of sandboxes');
