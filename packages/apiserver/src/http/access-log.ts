/** One canonical line for each request. */
import type { PlatformError } from '@dsec/contract';
import type { Logger } from '@dsec/kit';

export interface RequestRecord {
  readonly requestId: string;
  readonly method: string;
  /** The pattern of the route, so that lines can be counted. */
  readonly route: string;
  readonly status: number;
  readonly durationMs: number;
  readonly keyId: string | undefined;
  readonly sandboxId: string | undefined;
  readonly error: PlatformError | undefined;
}

/** Writes it: faults of the platform as errors, with their causes. */
export function logRequest(logger: Logger, record: RequestRecord): void {
  const { error, ...fields } = record;
  const line = { ...fields, durationMs: Math.round(record.durationMs * 1000) / 1000, outcome: error?.code ?? 'ok' };
  if (error === undefined) logger.info('http.request', line);
  else if (error.infrastructure || error.status >= 500) logger.error('http.request', { ...line, error });
  else logger.info('http.request', line);
}
