/** The SDK of dsec, for Node 20 and newer and for browsers. Begin with `DSecClient`. */
export {
  PlatformError,
  type BehaviourAttribution,
  type BehaviourEntry,
  type BehaviourEvent,
  type BehaviourKind,
  type BehaviourProcess,
  type BehaviourReport,
  type BehaviourSample,
  type AuditRecord,
  type Composition,
  type EntrypointMode,
  type Environment,
  type EnvironmentImage,
  type EnvironmentKind,
  type EnvironmentUsage,
  type ErrorCode,
  type ExecStatus,
  type FileEntry,
  type FileEvent,
  type KeyInfo,
  type ReleasedLayers,
  type NetworkPolicy,
  type NetworkPolicyRequest,
  type NetworkRule,
  type Policy,
  type PolicyPhase,
  type PolicyRequest,
  type PolicyUpdate,
  type ProfileName,
  type SandboxInfo,
  type SandboxState,
  type SessionInfo,
  type Packed,
  type PackAllowance,
  type PackCheck,
  type PackKind,
  type PackProgress,
  type PackReport,
  type PackRequest,
  type Usage,
} from '@dsec/contract';
export type { AuditFilter, AuditList } from './audit-list.ts';
export type { EventsOptions } from './behaviour-events.ts';
export type { BulkOutcome } from './bulk.ts';
export { DEFAULT_ENDPOINT, DSecClient, type ClientOptions, type RunOptions, type StopFilter } from './client.ts';
export type { CompositionFilter, CompositionList } from './composition-list.ts';
export type { ContainerRunArgs } from './container-args.ts';
export type { Environments } from './environments.ts';
export type { AttachOptions } from './exec/commands.ts';
export type { OutputOffsets } from './exec/exec-follower.ts';
export type { ExecOptions } from './exec/exec-options.ts';
export type { ExecResult } from './exec/exec-result.ts';
export type { ExecStdin } from './exec/exec-stdin.ts';
export type { Exec } from './exec/exec.ts';
export type { OutputEvent, OutputLine } from './exec/output-event.ts';
export type { Pty, PtyOptions } from './exec/pty.ts';
export type { Session, SessionOptions, SessionRunOptions } from './exec/session.ts';
export type { Signal } from './exec/signals.ts';
export type { FileList, FileOptions, Files, ReadOptions, WriteOptions } from './files/files.ts';
export type { Watch, WatchEvent, WatchOptions } from './files/watch.ts';
export type { ByteSource } from './http/byte-source.ts';
export type { CallOptions } from './http/deadline.ts';
export type { Fetch } from './http/fetch-transport.ts';
export type { RetryOptions } from './http/retry.ts';
export type { Keys } from './keys.ts';
export type { Timing } from './platform/timing.ts';
export type { Ports } from './ports.ts';
export type { EnvironmentFilter, EnvironmentList } from './environment-list.ts';
export type { ListOptions, PagedList } from './paged-list.ts';
export type { SandboxFilter, SandboxList } from './sandbox-list.ts';
export type { Sandbox, SandboxProcess, TtlOptions } from './sandbox.ts';
export type { PolicyChangeOptions, SandboxPolicy } from './sandbox-policy.ts';
export type { PackOptions } from './pack.ts';
