/** Query strings, parsed explicitly: nothing is guessed, dropped or taken twice. */
import { PlatformError } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import type { Static, TObject } from 'typebox';

/** Most parameters of one query. */
const MAX_PAIRS = 128;

const invalid = (field: string, reason: string): PlatformError =>
  new PlatformError('invalid_argument', `the query: ${field} ${reason}`, { details: { field, reason } });

/** Name and value of each parameter, in order. `+` is a space. */
export function parsePairs(text: string): readonly (readonly [string, string])[] {
  if (text === '') return [];
  const parts = text.split('&').filter((part) => part !== '');
  if (parts.length > MAX_PAIRS) throw invalid('', `has more than ${MAX_PAIRS} parameters`);
  return parts.map((part) => {
    const at = part.indexOf('=');
    return at < 0 ? [decode(part), ''] : [decode(part.slice(0, at)), decode(part.slice(at + 1))];
  });
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    throw invalid(text.slice(0, 64), 'is not well-formed percent-encoded UTF-8');
  }
}

/** Turns a raw query string into what its schema says. */
export type QueryParser<T> = (text: string) => T;

/**
 * A parser for a flat schema: strings as they are, integers in decimal, booleans as `true` and `false`. Unknown and repeated names are errors.
 */
export function defineQuery<S extends TObject>(schema: S): QueryParser<Static<S>> {
  const parser = compileSchema(schema);
  const types = new Map(
    Object.entries(schema.properties).map(([name, property]) => [name, 'type' in property ? property.type : undefined]),
  );
  return (text) => {
    const values = new Map<string, unknown>();
    for (const [name, value] of parsePairs(text)) {
      if (values.has(name)) throw invalid(name.slice(0, 64), 'is given twice');
      values.set(name, convert(name, value, types.get(name)));
    }
    return parser.parse(Object.fromEntries(values), { what: 'the query' });
  };
}

function convert(name: string, value: string, type: unknown): unknown {
  if (type === 'integer') {
    if (!/^-?\d{1,15}$/.test(value)) throw invalid(name, 'must be an integer');
    return Number(value);
  }
  if (type === 'boolean') {
    if (value !== 'true' && value !== 'false') throw invalid(name, 'must be true or false');
    return value === 'true';
  }
  return value;
}
