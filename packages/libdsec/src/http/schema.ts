import { PlatformError } from '@dsec/contract';
import type { Static, TSchema } from 'typebox';
import { Compile } from 'typebox/compile';

/** Turns what the server sent into the type that it should have, or throws `protocol_error`. */
export type Parse<T> = (value: unknown) => T;

/**
 * A parser for one schema of the contract. Members that the schema does not know pass, so that an older SDK works with
 * a newer server. Compiled on first use: most programs need few of them.
 */
export function parserOf<S extends TSchema, T = Static<S>>(schema: S, what: string): Parse<T> {
  let validator: { Check(value: unknown): boolean } | undefined;
  return (value) => {
    validator ??= Compile(opened(schema) as TSchema);
    if (!validator.Check(value))
      throw new PlatformError('protocol_error', `the server sent something that is no ${what}`);
    // The validator has just checked it.
    return value as T;
  };
}

function opened(node: unknown): unknown {
  if (Array.isArray(node)) return node.map(opened);
  if (typeof node !== 'object' || node === null) return node;
  const copy: Record<string, unknown> = {};
  for (const [key, member] of Object.entries(node)) {
    if (key !== 'additionalProperties') copy[key] = opened(member);
  }
  return copy;
}
