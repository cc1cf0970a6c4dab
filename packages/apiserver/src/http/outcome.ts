/** How a request ended, for its line in the log: an answer that began well may still fail. */
import type { IncomingMessage } from 'node:http';
import type { PlatformError } from '@dsec/contract';

const failures = new WeakMap<IncomingMessage, PlatformError>();

export const noteFailure = (request: IncomingMessage, error: PlatformError): void => void failures.set(request, error);

export const failureOf = (request: IncomingMessage): PlatformError | undefined => failures.get(request);
