/**
 * Configuration of a process: one schema, a JSON file, and `DSEC_<PROCESS>_*` variables over it; an unknown key in either is an error.
 * The only reader of the environment of this process.
 */
import { readFileSync } from 'node:fs';
import { PlatformError } from '@dsec/contract';
import type { Static, TObject, TSchema } from 'typebox';
import { redact } from './redact.ts';
import { compileSchema } from './schema.ts';

export interface ConfigOptions {
  /** JSON file; left out means variables only. */
  readonly file?: string | undefined;
  /** Prefix of the variables, with its last underscore: `DSEC_EDGE_`. `DSEC_EDGE_DATA_DIR` sets `dataDir`. */
  readonly envPrefix?: string;
  /** Default: the environment of this process. */
  readonly env?: Readonly<Record<string, string | undefined>>;
}

/**
 * Reads and checks a configuration. Variables win over the file; the schema's `default`s fill what neither sets.
 * @throws PlatformError `config_invalid` with `details.field`
 */
export function loadConfig<S extends TObject>(schema: S, options: ConfigOptions): Static<S> {
  const values: Record<string, unknown> = {};
  for (const [name, property] of Object.entries(schema.properties)) {
    if ('default' in property) values[name] = property.default;
  }
  if (options.file !== undefined) Object.assign(values, readObject(options.file));
  if (options.envPrefix !== undefined)
    Object.assign(values, fromEnv(schema, options.envPrefix, options.env ?? process.env));
  return compileSchema(schema).parse(values, { what: 'the configuration', code: 'config_invalid' });
}

/** One variable of the environment of this process; empty counts as absent. */
export function envVariable(name: string): string | undefined {
  const value = process.env[name];
  return value === undefined || value === '' ? undefined : value;
}

/** The effective configuration, fit to be shown: secrets are left out. */
export const printableConfig = (config: object): unknown => redact(config);

function readObject(file: string): object {
  let value: unknown;
  try {
    value = JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    const reason = cause instanceof SyntaxError ? 'is not JSON' : 'cannot be read';
    throw new PlatformError('config_invalid', `the configuration file ${reason}`, { details: { field: '' }, cause });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new PlatformError('config_invalid', 'the configuration file is not a JSON object', {
      details: { field: '' },
    });
  }
  return value;
}

function fromEnv(
  schema: TObject,
  prefix: string,
  env: Readonly<Record<string, string | undefined>>,
): Record<string, unknown> {
  const values: Record<string, unknown> = {};
  for (const [variable, text] of Object.entries(env)) {
    if (!variable.startsWith(prefix) || text === undefined) continue;
    const name = variable
      .slice(prefix.length)
      .toLowerCase()
      .replaceAll(/_([a-z0-9])/g, (_match, letter: string) => letter.toUpperCase());
    const property = schema.properties[name];
    if (property === undefined) {
      throw new PlatformError('config_invalid', `the variable ${variable} sets nothing that is known`, {
        details: { field: variable },
      });
    }
    values[name] = convert(property, text, variable);
  }
  return values;
}

function convert(schema: TSchema, text: string, variable: string): unknown {
  const type: unknown = 'type' in schema ? schema.type : undefined;
  if (type === 'string') return text;
  try {
    return JSON.parse(text);
  } catch (cause) {
    // Unions of literals have no type of their own: what is not JSON is meant as a string.
    if (type === undefined) return text;
    throw new PlatformError(
      'config_invalid',
      `the variable ${variable} does not hold ${typeof type === 'string' ? type : 'such a value'}`,
      {
        details: { field: variable },
        cause,
      },
    );
  }
}
