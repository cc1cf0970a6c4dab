/** What a kind of service makes of a request. */
import type { RequestTarget } from './request-target.ts';

export type Handling =
  /** Goes to the upstream as it is; `where` is another server than the first one of the service. */
  | { readonly kind: 'forward'; readonly target: string; readonly where: 'upstream' | 'files' }
  /** Answered here. */
  | { readonly kind: 'document'; readonly status: number; readonly type: string; readonly text: string }
  /** `reason` is a sentence for people. */
  | { readonly kind: 'refuse'; readonly status: 403 | 404 | 405; readonly reason: string };

export interface ServiceRequest {
  readonly method: string;
  readonly target: RequestTarget;
  /** The `Accept` header, or empty. */
  readonly accept: string;
  /** `http://HOST` as the sandbox sees the service. */
  readonly origin: string;
  readonly signal: AbortSignal;
}

export interface ServiceProtocol extends AsyncDisposable {
  /** @throws PlatformError `unavailable` when the upstream does not answer */
  handle(request: ServiceRequest): Promise<Handling>;
}

export const HIDDEN = 'this version is not available here: it is newer than the date that is set, or not on the list';

export const forward = ({ path, query }: RequestTarget): Handling => ({
  kind: 'forward',
  target: `${path}${query}`,
  where: 'upstream',
});

export const refuse = (status: 403 | 404 | 405, reason: string): Handling => ({ kind: 'refuse', status, reason });
