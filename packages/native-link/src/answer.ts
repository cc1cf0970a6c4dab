/** Checks what the other side answers: some of it comes out of a sandbox. */
import { compileSchema, type Parser } from '@dsec/kit';
import { type Static, type TObject, type TProperties, Type } from 'typebox';

/** An object with these members and no others. */
export const closed = <P extends TProperties>(properties: P): TObject<P> =>
  Type.Object(properties, { additionalProperties: false });

export type Answer<T> = (value: unknown, method: string) => T;

/**
 * A check of one answer. The schema is compiled when it is first needed: most programs need few of them.
 * The check throws PlatformError `protocol_error`.
 */
export const answer = <S extends TObject>(schema: S): Answer<Static<S>> => {
  let parser: Parser<Static<S>> | undefined;
  return (value, method) => {
    parser ??= compileSchema(schema);
    return parser.parse(value, { what: `the answer of ${method}`, code: 'protocol_error' });
  };
};
