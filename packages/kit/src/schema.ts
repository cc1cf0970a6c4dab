/** From outside data to typed data: a schema is compiled once and says which field is wrong. */
import { PlatformError, type ErrorCode } from '@dsec/contract';
import type { Static, TSchema } from 'typebox';
import { Compile } from 'typebox/compile';

export interface ParseOptions {
  /** What is parsed, for the message; default "the request". */
  readonly what?: string;
  /** Default `invalid_argument`. */
  readonly code?: ErrorCode;
}

/** A compiled schema. Strict: nothing is converted, filled in or dropped. */
export interface Parser<T> {
  /** @throws PlatformError `invalid_argument` with `details.field` and `details.reason` */
  parse(value: unknown, options?: ParseOptions): T;
  is(value: unknown): value is T;
}

/** One value that does not match. */
interface Mismatch {
  /** Dotted path of the field; empty for the whole value. */
  readonly field: string;
  readonly reason: string;
}

export function compileSchema<S extends TSchema>(schema: S): Parser<Static<S>> {
  const validator = Compile(schema);
  return {
    is: (value: unknown): value is Static<S> => validator.Check(value),
    parse(value, options = {}) {
      if (validator.Check(value)) return value as Static<S>;
      const mismatch = firstMismatch(validator.Errors(value));
      const what = options.what ?? 'the request';
      const message =
        mismatch.field === '' ? `${what} ${mismatch.reason}` : `${what}: ${mismatch.field} ${mismatch.reason}`;
      throw new PlatformError(options.code ?? 'invalid_argument', message, {
        details: { field: mismatch.field, reason: mismatch.reason },
      });
    },
  };
}

interface ValidationError {
  readonly keyword: string;
  readonly instancePath: string;
  readonly params: object;
  readonly message: string;
}

/** A name from outside is shown up to this length. */
const MAX_SHOWN = 64;

function firstMismatch(errors: readonly ValidationError[]): Mismatch {
  // A union reports each failed branch before itself; the union's own line is the one that says something about the field.
  const error = errors.find(({ keyword }) => keyword === 'anyOf' || keyword === 'additionalProperties') ?? errors[0];
  if (error === undefined) return { field: '', reason: 'is not valid' };
  const path = error.instancePath.split('/').slice(1).map(unescapePointer);
  if (
    error.keyword === 'required' &&
    'requiredProperties' in error.params &&
    Array.isArray(error.params.requiredProperties)
  ) {
    return { field: fieldName([...path, String(error.params.requiredProperties[0])]), reason: 'is missing' };
  }
  if (
    error.keyword === 'additionalProperties' &&
    'additionalProperties' in error.params &&
    Array.isArray(error.params.additionalProperties)
  ) {
    return {
      field: fieldName([...path, String(error.params.additionalProperties[0])]),
      reason: 'is not a known or well-formed name',
    };
  }
  if (error.keyword === 'anyOf') {
    const values = errors
      .filter(({ keyword, instancePath }) => keyword === 'const' && instancePath === error.instancePath)
      .map(({ params }) => ('allowedValue' in params ? JSON.stringify(params.allowedValue) : '?'));
    return {
      field: fieldName(path),
      reason: values.length > 0 ? `must be one of ${values.join(', ')}` : 'has none of the possible forms',
    };
  }
  if (error.keyword === 'pattern') return { field: fieldName(path), reason: 'does not have the required form' };
  return { field: fieldName(path), reason: error.message };
}

const unescapePointer = (part: string): string => part.replaceAll('~1', '/').replaceAll('~0', '~');

const fieldName = (path: readonly string[]): string =>
  path.map((part) => (part.length > MAX_SHOWN ? `${part.slice(0, MAX_SHOWN)}…` : part)).join('.');
