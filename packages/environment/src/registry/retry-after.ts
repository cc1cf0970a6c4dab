import type { Clock } from '@dsec/kit';
import type { HttpAnswer } from './http-exchange.ts';

const MAX_MS = 7 * 24 * 3600 * 1000;

/** Retry-After (RFC 9110, 10.2.3): seconds, or a date. Undefined when it is neither. */
export const retryAfterMs = (answer: Pick<HttpAnswer, 'header'>, clock: Clock): number | undefined => {
  const text = answer.header('retry-after')?.trim() ?? '';
  const waitMs = /^[0-9]{1,9}$/.test(text) ? Number(text) * 1000 : Date.parse(text) - clock.now();
  return Number.isNaN(waitMs) ? undefined : Math.min(MAX_MS, Math.max(0, waitMs));
};
