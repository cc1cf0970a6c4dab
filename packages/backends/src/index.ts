export type {
  Backend,
  BackendKind,
  BackendObserver,
  CallOptions,
  Channel,
  ChannelOptions,
  LayerState,
  NodeDisk,
  PresentSandbox,
  SandboxChanges,
  SandboxExit,
  SandboxSpec,
} from './backend.ts';
export { ContainerBackend, type ContainerBackendOptions, type LayerPlaces } from './container/container-backend.ts';
