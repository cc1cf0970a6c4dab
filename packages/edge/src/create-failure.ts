/** What a failed create is to its caller, and why the sandbox then ended. */
import { causeOf, PlatformError, type Cause, type CauseKind, type ErrorCode } from '@dsec/contract';

export interface CausedFailure {
  readonly error: PlatformError;
  readonly cause: Cause;
}

/** Errors that tell the caller what he can do, so they reach him as they are. */
const passed: Partial<Record<ErrorCode, CauseKind>> = {
  environment_broken: 'image',
  environment_not_found: 'image',
  layer_not_found: 'image',
  layer_corrupt: 'image',
  blob_unavailable: 'image',
  // Of the program that the environment begins with.
  command_not_found: 'completed',
  command_not_executable: 'completed',
  cwd_not_found: 'completed',
  user_not_found: 'completed',
  argv_too_long: 'completed',
  pids_exhausted: 'completed',
  no_capacity: 'runtime',
  disk_full: 'runtime',
  host_unsuitable: 'runtime',
  too_many_requests: 'internal',
  unavailable: 'runtime',
  // Of its network, where the node could say so only now.
  network_unavailable: 'runtime',
  service_unknown: 'runtime',
  invalid_argument: 'runtime',
};

/** Errors after which nobody knows whether it happened; the sandbox is destroyed in any case, so asking again is safe. */
const unclear: readonly ErrorCode[] = ['connection_lost', 'timeout', 'cancelled'];

/** `kind` says whose fault an error of unknown kind is. */
export function describeFailure(failure: unknown, kind: CauseKind = 'runtime'): CausedFailure {
  if (!PlatformError.is(failure)) {
    return {
      error: new PlatformError('internal', 'the sandbox could not be made by a fault of the edge', { cause: failure }),
      cause: causeOf('internal', 'A fault of the edge.'),
    };
  }
  const passedKind = passed[failure.code];
  if (passedKind !== undefined)
    return { error: failure, cause: causeOf(passedKind, `It could not be made: ${failure.message}.`) };
  const cause = causeOf(kind, `It could not be made: ${failure.message}.`);
  if (unclear.includes(failure.code)) {
    return {
      error: new PlatformError('unavailable', 'the node lost the creation on its way', { cause: failure }),
      cause,
    };
  }
  return {
    error: new PlatformError('create_failed', 'the sandbox could not be made', {
      details: failure.details,
      cause: failure,
    }),
    cause,
  };
}
