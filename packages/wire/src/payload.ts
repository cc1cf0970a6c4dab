/** The JSON payloads: parsed as an attack, since some come out of a sandbox. */
import { isUtf8 } from 'node:buffer';

import { type ErrorDetails, PlatformError } from '@dsec/contract';

import { MAX_CONTROL, MAX_DATA } from './frame.ts';
import { protocolError } from './protocol-error.ts';

const PROTOCOL_NAME = 'dsec-wire';
const PROTOCOL_VERSION = 1;
/** Nesting of arrays and objects in any JSON payload. */
const MAX_JSON_DEPTH = 32;
/** Characters of a message of an error that are kept. */
const MAX_ERROR_MESSAGE = 4_096;
const MAX_ERROR_CODE = 64;

export type JsonObject = Readonly<Record<string, unknown>>;

const isJsonObject = (value: unknown): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const isTooDeep = (value: unknown, left: number): boolean => {
  if (typeof value !== 'object' || value === null) return false;
  if (left === 0) return true;
  if (Array.isArray(value)) {
    for (const item of value) if (isTooDeep(item, left - 1)) return true;
    return false;
  }
  for (const key in value) if (isTooDeep((value as JsonObject)[key], left - 1)) return true;
  return false;
};

/** The JSON object in `chunk[start..end)`. */
export const parseObject = (chunk: Buffer, start: number, end: number): JsonObject => {
  const text = chunk.toString('utf8', start, end);
  // Decoding puts U+FFFD for what is not UTF-8, but one may also have been sent.
  if (text.includes('\ufffd') && !isUtf8(chunk.subarray(start, end))) throw protocolError('bad_json');
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw protocolError('bad_json', cause);
  }
  if (!isJsonObject(value)) throw protocolError('bad_json');
  if (isTooDeep(value, MAX_JSON_DEPTH)) throw protocolError('too_deep');
  return value;
};

const encode = (value: unknown, limit: number, what: string): Buffer => {
  const text = JSON.stringify(value);
  const bytes = Buffer.from(text, 'utf8');
  if (bytes.length > limit || isTooDeep(value, MAX_JSON_DEPTH)) {
    throw new PlatformError('request_too_large', `${what} is larger or deeper than a frame may be.`, {
      details: { sizeBytes: bytes.length, limitBytes: limit },
    });
  }
  return bytes;
};

export const encodeHello = (role: string): Buffer =>
  encode({ protocol: PROTOCOL_NAME, version: PROTOCOL_VERSION, role }, MAX_DATA, 'HELLO');

/** The role that the other side gives itself. */
export const parseHello = (chunk: Buffer, start: number, end: number): string => {
  const hello = parseObject(chunk, start, end);
  if (typeof hello.protocol !== 'string' || typeof hello.version !== 'number' || typeof hello.role !== 'string') {
    throw protocolError('bad_json');
  }
  if (hello.protocol !== PROTOCOL_NAME || hello.version !== PROTOCOL_VERSION) throw protocolError('hello_mismatch');
  return hello.role;
};

export const encodeOpen = (method: string, params: object): Buffer =>
  encode({ method, params }, MAX_CONTROL, `The params of ${method}`);

export interface OpenPayload {
  readonly method: string;
  readonly params: JsonObject;
}

export const parseOpen = (chunk: Buffer, start: number, end: number): OpenPayload => {
  const { method, params, ...others } = parseObject(chunk, start, end);
  if (typeof method !== 'string' || Object.keys(others).length > 0) {
    throw protocolError('bad_json');
  }
  if (params === undefined) return { method, params: {} };
  if (!isJsonObject(params)) throw protocolError('bad_json');
  return { method, params };
};

export const encodeMessage = (value: object): Buffer => encode(value, MAX_DATA, 'A message');

export const encodeClose = (result: unknown): Buffer => encode({ ok: result ?? null }, MAX_CONTROL, 'A result');

export const encodeFailure = (error: PlatformError): Buffer => {
  const { code, message, details } = error.toWire();
  try {
    return encode({ error: { code, message: message.slice(0, MAX_ERROR_MESSAGE), details } }, MAX_DATA, 'An error');
  } catch (tooLarge) {
    if (!PlatformError.is(tooLarge)) throw tooLarge;
    return encode({ error: { code, message: message.slice(0, MAX_ERROR_MESSAGE), details: {} } }, MAX_DATA, 'An error');
  }
};

const isDetail = (value: unknown): value is ErrorDetails[string] =>
  value === null ||
  typeof value === 'string' ||
  typeof value === 'number' ||
  typeof value === 'boolean' ||
  (Array.isArray(value) && value.every((item) => typeof item === 'string'));

const isDetails = (value: unknown): value is ErrorDetails =>
  isJsonObject(value) && Object.values(value).every(isDetail);

const parseFailure = (value: unknown): PlatformError => {
  if (!isJsonObject(value)) throw protocolError('bad_json');
  const { code, message, details = {}, ...others } = value;
  if (typeof code !== 'string' || code.length > MAX_ERROR_CODE || typeof message !== 'string')
    throw protocolError('bad_json');
  if (!isDetails(details) || Object.keys(others).length > 0) throw protocolError('bad_json');
  return PlatformError.fromWire({ code, message: message.slice(0, MAX_ERROR_MESSAGE), details });
};

/** How a stream ended: the result, or the error that the server gave. */
export type CloseOutcome = { readonly ok: unknown } | { readonly error: PlatformError };

export const parseClose = (chunk: Buffer, start: number, end: number): CloseOutcome => {
  const close = parseObject(chunk, start, end);
  const keys = Object.keys(close);
  if (keys.length !== 1) throw protocolError('bad_json');
  if (keys[0] === 'ok') return { ok: close.ok };
  if (keys[0] !== 'error' || end - start > MAX_DATA) throw protocolError('bad_json');
  return { error: parseFailure(close.error) };
};

const ERROR_PREFIX = Buffer.from('{"error":');

/**
 * The code of the error in a CLOSE that is only passed on, `undefined` for a result. Results are not parsed; an error that
 * does not parse is `protocol_error`.
 */
export const sniffCloseCode = (chunk: Buffer, start: number, end: number): string | undefined => {
  if (
    end - start < ERROR_PREFIX.length ||
    chunk.compare(ERROR_PREFIX, 0, ERROR_PREFIX.length, start, start + ERROR_PREFIX.length) !== 0
  ) {
    return undefined;
  }
  try {
    const outcome = parseClose(chunk, start, end);
    return 'error' in outcome ? outcome.error.code : undefined;
  } catch (error) {
    if (!PlatformError.is(error)) throw error;
    return error.code;
  }
};
