/** Records and requests for tests. */
import type { CreateSandbox, EnvironmentImage, Policy } from '@dsec/contract';
import type { CreateRequest } from '../src/creator.ts';
import { RECORD_VERSION, type SandboxRecord } from '../src/sandbox-record.ts';

/** The policy of a sandbox that nobody gave one. */
export const aPolicy = (changes: Partial<Policy> = {}): Policy => ({
  profile: 'default',
  network: { default: 'deny', rules: [], services: {}, ipLiterals: true },
  phase: null,
  version: 1,
  changedAtMs: 1,
  ...changes,
});

export const aRecord = (sandboxId: string, changes: Partial<SandboxRecord> = {}): SandboxRecord => ({
  version: RECORD_VERSION,
  sandboxId,
  project: 'p',
  keyId: 'k',
  phase: 'creating',
  cause: null,
  createdAtMs: 1,
  endedAtMs: null,
  ttlEndsAtMs: 2,
  ttlRunningStopSeconds: 3,
  environment: 'debian',
  backend: 'container',
  layers: [`sha256:${'0'.repeat(64)}`],
  memoryMib: 64,
  cpuMillis: 1000,
  diskMib: 64,
  pids: 64,
  user: 'root',
  workdir: '/',
  hostname: 'h',
  env: { PATH: '/bin', ODD: 'a\nb\'"$(id)' },
  policy: aPolicy(),
  metadata: { 'a=b&c %/ü': '☕' },
  idempotency: null,
  ...changes,
});

export const anImage: EnvironmentImage = {
  layers: [`sha256:${'0'.repeat(64)}`],
  config: {
    env: { PATH: '/usr/bin:/bin', FROM_IMAGE: '1' },
    user: 'user',
    workdir: '/home/user',
    entrypoint: [],
    cmd: [],
    labels: {},
  },
  architecture: 'amd64',
  sizeBytes: 1,
};

/** Limits that let many fit. */
export const aRequest = (changes: Partial<CreateSandbox> = {}): CreateSandbox => ({
  environment: 'debian',
  memoryMib: 64,
  diskMib: 64,
  pids: 64,
  ...changes,
});

export const aCreate = (changes: Partial<CreateRequest> = {}): CreateRequest => ({
  principal: { keyId: 'k', project: 'p' },
  request: aRequest(),
  image: anImage,
  claim: undefined,
  ...changes,
});
