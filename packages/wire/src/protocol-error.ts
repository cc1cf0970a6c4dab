import { PlatformError } from '@dsec/contract';

/** What can be wrong with the bytes of the other side; the same names as in `native/wire` and the golden vectors. */
export type ProtocolErrorKind =
  | 'bad_type'
  | 'bad_reserved'
  | 'bad_channel'
  | 'bad_stream'
  | 'bad_length'
  | 'bad_json'
  | 'too_deep'
  | 'hello_missing'
  | 'hello_twice'
  | 'hello_mismatch'
  | 'wrong_side'
  | 'stream_order'
  | 'stream_unknown'
  | 'after_end'
  | 'credit_exceeded'
  | 'credit_overflow'
  | 'flood';

export const protocolError = (kind: ProtocolErrorKind, cause?: unknown): PlatformError =>
  new PlatformError('protocol_error', `The other side broke the wire protocol: ${kind}.`, { details: { kind }, cause });
