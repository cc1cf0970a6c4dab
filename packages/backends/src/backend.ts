/** What makes sandboxes real. The edge knows this interface and nothing of what is behind it. */
import type { CreateSandbox, PlatformError, ProfileName, Usage } from '@dsec/contract';
import type { RelayOptions, RelayOutcome, WireServerStream } from '@dsec/native-link';
import type { ActObserver } from './act.ts';
import type { NetworkControl } from './network-control.ts';

export type BackendKind = NonNullable<CreateSandbox['backend']>;

/** What a backend has to know to make a sandbox. */
export interface SandboxSpec {
  readonly sandboxId: string;
  /** Digests, top first. */
  readonly layers: readonly string[];
  readonly hostname: string;
  /** Whom programs inside ask for names. @default nobody */
  readonly nameserver?: string | undefined;
  readonly memoryMib: number;
  readonly cpuMillis: number;
  readonly pids: number;
  readonly diskMib: number;
  /** What its processes may do. */
  readonly profile: ProfileName;
  /** Files whose touch is told as an act. */
  readonly tripwires: readonly string[];
}

/** A sandbox that was made. */
export interface MadeSandbox {
  readonly channel: Channel;
  /** Tripwires that are no file of its root, and so are not watched. */
  readonly absentTripwires: readonly string[];
}

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  readonly timeoutMs?: number | undefined;
}

/** A command that runs for itself. */
export interface DetachedProgram {
  readonly execId: string;
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly user: string;
  readonly cwd: string;
}

/** One command of a sandbox. */
export interface ChannelExec {
  readonly execId: string;
  /** Of its first process, inside; in a session that of the session's shell. */
  readonly pid: number;
  readonly isRunning: boolean;
  readonly startedAtMs: number;
  /** Undefined while it runs. */
  readonly endedAtMs: number | undefined;
}

export interface ChannelSession {
  readonly sessionId: string;
  /** Of its shell, inside. */
  readonly pid: number;
}

/** The way into one live sandbox: a connection to its aether. */
export interface Channel {
  readonly isClosed: boolean;
  /**
   * Follows an exec without its output; resolves when it has ended, and at once when there is none of this id.
   * @throws PlatformError when the channel breaks
   */
  execEnded(execId: string): Promise<void>;
  /**
   * Starts a program that nobody follows; resolves when it runs.
   * @throws PlatformError `command_not_found`, `command_not_executable`, `cwd_not_found`, `user_not_found`, `argv_too_long`, `pids_exhausted`; when the
   * channel breaks
   */
  start(program: DetachedProgram, options?: CallOptions): Promise<void>;
  /** Those that run, and those that ended not long ago. */
  execs(options?: CallOptions): Promise<readonly ChannelExec[]>;
  sessions(options?: CallOptions): Promise<readonly ChannelSession[]>;
  /** Writes a file as root of the sandbox, whatever is there. @throws PlatformError of files; when the channel breaks */
  writeFile(path: string, bytes: Buffer, options?: CallOptions): Promise<void>;
  /** Joins a stream that an apiserver opened with a new one into the sandbox; what they carry is not looked at. */
  relay(near: WireServerStream, method: string, params: object, options: RelayOptions): Promise<RelayOutcome>;
  /** Ends the connection and every stream in it. Idempotent. */
  close(): Promise<void>;
}

export interface ChannelOptions extends CallOptions {
  /** The channel broke, or was closed; `protocol_error` when what came out of the sandbox is not the protocol. */
  readonly onClose: (error: PlatformError) => void;
}

/** How the first process of a sandbox ended. */
export interface SandboxExit {
  readonly exitCode?: number | undefined;
  readonly signal?: number | undefined;
  /** Processes of the sandbox that the kernel killed for memory, since its creation. */
  readonly oomKills: number;
}

/** What was merged of several layers on a node, and the bytes that it takes. */
export interface SetOnNode {
  readonly set: string;
  readonly sizeBytes: number;
}

/** A sandbox that the node has. */
export interface PresentSandbox {
  readonly sandboxId: string;
  readonly isLive: boolean;
  readonly exit?: SandboxExit | undefined;
}

/** What a sandbox has written since its creation, as it was at one moment: a tar archive that can be read once. */
export interface SandboxChanges extends AsyncDisposable {
  /** How long the sandbox stood still for it. */
  readonly frozenMs: number;
  /**
   * The archive, in overlayfs's own words: a character device 0:0 says that a name is gone, `trusted.overlay.opaque` that a directory shows nothing of
   * lower layers. A socket is a fifo with the attribute `dsec.socket`. Owners are those inside. Ends only when the archive is whole.
   * @throws PlatformError `archive_unsafe`, `connection_lost`, `internal`
   */
  readonly bytes: AsyncIterable<Buffer>;
}

/** How much of a layer is on the node. */
export interface LayerState {
  /** Bytes of its data; undefined: the layer is not on the node. */
  readonly dataBytes: number | undefined;
  readonly presentBytes: number;
  /** Bytes of its data that were ever read here; undefined where nobody counts: all of it was built here, or it is not here. */
  readonly touchedBytes: number | undefined;
}

export interface NodeDisk {
  readonly totalMib: number;
  readonly freeMib: number;
}

/** Hears of what happens on the node. */
export interface BackendObserver extends ActObserver {
  /** The backend answers and its events arrive from now on. What happened before must be looked up by `list`. Comes again after each loss. */
  onReady(): void;
  onExited(sandboxId: string, exit: SandboxExit): void;
}

export interface Backend extends AsyncDisposable {
  readonly kind: BackendKind;
  readonly network: NetworkControl;
  /** Does now what the first create would otherwise wait for. */
  prepare(): Promise<void>;
  /** Begins to connect, and goes on as often as the connection is lost, until disposed. */
  start(observer: BackendObserver): void;
  /**
   * Brings to the node what a create on these layers (`sha256:` digests) needs of them; undefined when it is there. A create before that fails.
   * @throws PlatformError `layer_not_found`, `layer_corrupt`, `blob_unavailable`, `environment_broken`, `disk_full`, `unavailable`
   */
  provide(layers: readonly string[]): Promise<void> | undefined;
  /** In the order of the layers (`sha256:` digests). @throws PlatformError `unavailable` when a layer is filled on demand and nobody fills */
  layerStates(layers: readonly string[], options?: CallOptions): Promise<readonly LayerState[]>;
  /** What was merged of this layer and others. */
  setsOn(layer: string): readonly SetOnNode[];
  /**
   * Lets go of a layer that no sandbox is known to need, and of its sets, so that its files can be removed. Creates that begin once this was called
   * wait for it, and look for the layer anew. Its files may be gone already. False: somebody stands on it after all.
   * @throws PlatformError `unavailable`, `timeout`
   */
  releaseLayer(layer: string, options?: CallOptions): Promise<boolean>;
  /**
   * Makes a sandbox; resolves when commands can run in it.
   * @throws PlatformError `environment_broken`, `disk_full`, `unavailable`, `connection_lost` (it may have been made), `create_failed`
   */
  create(spec: SandboxSpec, options: ChannelOptions): Promise<MadeSandbox>;
  /** Opens the channel of a sandbox that lives already. */
  connect(sandboxId: string, options: ChannelOptions): Promise<Channel>;
  /**
   * Resolves when nothing of it is left; a sandbox that is not there is no error.
   * @throws PlatformError `cleanup_incomplete`, `unavailable`, `connection_lost`
   */
  destroy(sandboxId: string, options?: CallOptions): Promise<void>;
  list(options?: CallOptions): Promise<readonly PresentSandbox[]>;
  usage(sandboxId: string, options?: CallOptions): Promise<Usage>;
  /**
   * Holds a live sandbox still for a moment; whoever gets the changes reads or disposes of them.
   * @throws PlatformError `sandbox_not_found`, `sandbox_not_ready`, `too_many_requests`, `disk_full`
   */
  changes(sandboxId: string, options?: CallOptions): Promise<SandboxChanges>;
  disk(options?: CallOptions): Promise<NodeDisk>;
}
