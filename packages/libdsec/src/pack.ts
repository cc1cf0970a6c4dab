import {
  PackedSchema,
  PackProgressSchema,
  PlatformError,
  type Packed,
  type PackProgress,
  type PackRequest,
} from '@dsec/contract';
import { segment, type Api, type ApiRequest } from './http/api.ts';
import type { CallOptions } from './http/deadline.ts';
import { detailsOf } from './http/error-body.ts';
import { ndjson } from './http/ndjson.ts';
import { parserOf } from './http/schema.ts';

const parsePacked = parserOf<typeof PackedSchema, Packed>(PackedSchema, 'pack');
const parseProgress = parserOf<typeof PackProgressSchema, PackProgress>(PackProgressSchema, 'progress of a pack');

/** What is to be packed, and how. */
export interface PackOptions extends PackRequest, CallOptions {
  /** The same pack under the same key is done once. @default a fresh one, so that a broken connection does not do it twice */
  readonly idempotencyKey?: string;
  readonly onProgress?: (progress: PackProgress) => void;
}

/** Asks for a pack and follows it to its end. */
export async function packSandbox(api: Api, sandboxId: string, options: PackOptions): Promise<Packed> {
  const { signal, timeoutMs, idempotencyKey, onProgress, ...json } = options;
  const what = `packing sandbox ${sandboxId}`;
  const request: ApiRequest = {
    method: 'POST',
    path: `/sandboxes/${segment(sandboxId)}/pack`,
    what,
    json,
    headers: { 'idempotency-key': idempotencyKey ?? api.timing.uniqueKey() },
    repeatable: 'always',
  };
  return await api.call(
    request,
    { ...(signal === undefined ? {} : { signal }), ...(timeoutMs === undefined ? {} : { timeoutMs }) },
    async (response) => {
      for await (const line of ndjson(response.body, what)) {
        const packed = takeLine(line, onProgress);
        if (packed !== undefined) return packed;
      }
      throw new PlatformError('connection_lost', `${what}: the answer ended before the pack did`);
    },
    Infinity,
  );
}

/** Takes one line; undefined when it is not the last. */
function takeLine(line: unknown, onProgress: PackOptions['onProgress']): Packed | undefined {
  if (typeof line !== 'object' || line === null) throw unknownLine();
  if ('packed' in line) return parsePacked(line.packed);
  if ('progress' in line) {
    onProgress?.(parseProgress(line.progress));
    return undefined;
  }
  if ('keepalive' in line) return undefined;
  if (!('error' in line) || typeof line.error !== 'object' || line.error === null) throw unknownLine();
  const { error } = line;
  throw PlatformError.fromWire({
    code: 'code' in error && typeof error.code === 'string' ? error.code : 'internal',
    message: 'message' in error && typeof error.message === 'string' ? error.message : 'it failed',
    details: detailsOf('details' in error ? error.details : {}),
  });
}

const unknownLine = (): PlatformError =>
  new PlatformError('protocol_error', 'a line of the answer to a pack has an unknown form');
