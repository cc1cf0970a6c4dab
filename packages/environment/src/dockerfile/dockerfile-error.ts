import { type ErrorDetails, PlatformError } from '@dsec/contract';

/** Where in a Dockerfile something is wrong. */
export interface DockerfilePlace {
  /** Counted from 1: the first line of the instruction. */
  readonly line: number;
  /** In upper case; empty where there is none yet. */
  readonly instruction: string;
}

/** @param reason for programs: one of a few words with underscores */
export const invalidDockerfile = (
  { line, instruction }: DockerfilePlace,
  reason: string,
  message: string,
  details: ErrorDetails = {},
): PlatformError =>
  new PlatformError('dockerfile_invalid', `line ${line}${instruction === '' ? '' : `, ${instruction}`}: ${message}`, {
    details: { line, instruction, reason, ...details },
  });
