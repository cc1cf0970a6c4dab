export type { Act, ActingProcess, ActObserver } from './act.ts';
export type {
  Backend,
  BackendKind,
  BackendObserver,
  CallOptions,
  Channel,
  ChannelExec,
  ChannelOptions,
  ChannelSession,
  LayerState,
  MadeSandbox,
  NodeDisk,
  PresentSandbox,
  SandboxChanges,
  SandboxExit,
  SandboxSpec,
  SetOnNode,
} from './backend.ts';
export type { NetworkControl, NetworkObserver, NetworkOffer, OpenOptions, Uplink } from './network-control.ts';
export { NoNetwork } from './no-network.ts';
export { ResolverNetwork, type ResolverNetworkOptions } from './container/resolver-network.ts';
export { ContainerBackend, type ContainerBackendOptions, type LayerPlaces } from './container/container-backend.ts';
