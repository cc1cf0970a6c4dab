export {
  AetherClient,
  type ExecAttachParams,
  type ExecStartParams,
  type FileParams,
  type SessionOpenParams,
} from './aether-client.ts';
export type { AetherInfo, ExecStarted, OutputGap, ProcessInfo, WatchEvent, WatchMessage } from './aether-answers.ts';
export {
  type Denial,
  type EgressAsker,
  EgressClient,
  type EgressCounters,
  type EgressEvent,
  type EgressInfo,
  type EgressPin,
  type EgressPolicy,
  type EgressRange,
  type GateRefusal,
  type ListedUplink,
  type PolicySet,
  type Uplink,
} from './egress-client.ts';
export {
  Download,
  type ExecItem,
  ExecStream,
  FileListing,
  FileReading,
  FileWatch,
  Upload,
} from './aether-streams.ts';
export {
  type ChangesReady,
  type ChangesSent,
  type CreatedSandbox,
  type ExitedSandbox,
  LauncherChanges,
  LauncherClient,
  type LauncherEvents,
  type ListedSandbox,
  type NodeInfo,
  type SandboxCreateParams,
  type SandboxUsage,
} from './launcher-client.ts';
export type { CausingProcess, DeniedAct, RefusedAct } from './behaviour-answers.ts';
export { MessageStream } from './message-stream.ts';
export { DaemonLink, type DaemonLinkOptions } from './daemon-link.ts';
export { ResolverClient, type PlacedSandbox, type ResolverInfo } from './resolver-client.ts';
export { LayerdClient } from './layerd-client.ts';
export { type LayerForm, PublisherClient } from './publisher-client.ts';
export { WireClient, type WireClientOptions } from './wire/client.ts';
export { WireConnection, type WireConnectionOptions } from './wire/connection.ts';
export { INITIAL_WINDOW, MAX_CONTROL, MAX_DATA, MAX_STREAMS } from '@dsec/wire';
export type { JsonObject } from '@dsec/wire';
export { relay, type RelayOptions, type RelayOutcome } from './wire/relay.ts';
export { serve, WireServer, type WireHandler, type WireServerOptions } from './wire/server.ts';
export type { StreamOptions, WireItem, WireServerStream, WireStream, WireStreamBase } from './wire/stream-api.ts';
