/** The methods of aether (docs/wire.md), asked of it directly or through an edge; what comes back is checked. */
import type { ExecStatus, FileEntry, SessionInfo } from '@dsec/contract';

import { type AetherInfo, aetherAnswer, type ProcessInfo } from './aether-answers.ts';
import { Download, ExecStream, FileListing, FileReading, FileWatch, Upload } from './aether-streams.ts';
import type { Answer } from './answer.ts';
import type { WireClient } from './wire/client.ts';
import type { StreamOptions, WireStream } from './wire/stream-api.ts';

type Env = Readonly<Record<string, string>>;

export interface ExecStartParams {
  readonly execId: string;
  readonly fingerprint?: string | undefined;
  readonly argv?: readonly string[] | undefined;
  readonly shell?: { readonly script: string; readonly login?: boolean | undefined } | undefined;
  readonly sessionId?: string | undefined;
  readonly env: Env;
  readonly cwd?: string | undefined;
  readonly user?: string | undefined;
  readonly stdin: 'none' | 'open';
  readonly pty?: { readonly rows: number; readonly cols: number } | undefined;
  readonly timeoutMs?: number | undefined;
  readonly outputLimitBytes?: number | undefined;
  readonly tag?: string | undefined;
}

export interface ExecAttachParams {
  readonly execId: string;
  readonly stdoutFrom?: number | undefined;
  readonly stderrFrom?: number | undefined;
  readonly follow?: boolean | undefined;
}

export interface SessionOpenParams {
  readonly sessionId: string;
  readonly env: Env;
  readonly cwd?: string | undefined;
  readonly user?: string | undefined;
}

/** A file and who asks for it. */
export interface FileParams {
  readonly path: string;
  readonly user?: string | undefined;
}

/** A connection to aether; or, with `scope`, to an edge that relays to the aether of one sandbox. */
export class AetherClient {
  readonly #wire: WireClient;
  readonly #scope: { readonly sandboxId: string } | undefined;

  constructor(wire: WireClient, scope?: { readonly sandboxId: string }) {
    this.#wire = wire;
    this.#scope = scope;
  }

  info(options?: StreamOptions): Promise<AetherInfo> {
    return this.#call('info', {}, aetherAnswer.info, options);
  }

  /** Runs a command, or attaches from 0 to the one that was started with this id and fingerprint before. */
  execStart(params: ExecStartParams, options?: StreamOptions): ExecStream {
    return new ExecStream(this.#open('exec.start', params, options), params.execId);
  }

  execAttach(params: ExecAttachParams, options?: StreamOptions): ExecStream {
    return new ExecStream(this.#open('exec.attach', params, options), params.execId);
  }

  /** Its `end` closes the stdin of the command, its `reset` leaves that open. */
  execStdin(execId: string, options?: StreamOptions): Upload<{ bytes: number }> {
    return new Upload(this.#open('exec.stdin', { execId }, options), aetherAnswer.bytes);
  }

  execSignal(
    params: { readonly execId: string; readonly signal: number; readonly tree: boolean },
    options?: StreamOptions,
  ): Promise<{ delivered: boolean }> {
    return this.#call('exec.signal', params, aetherAnswer.delivered, options);
  }

  async execResize(
    params: {
      readonly execId: string;
      readonly rows: number;
      readonly cols: number;
      readonly clientId?: string | undefined;
    },
    options?: StreamOptions,
  ): Promise<void> {
    await this.#call('exec.resize', params, aetherAnswer.none, options);
  }

  execGet(execId: string, options?: StreamOptions): Promise<ExecStatus> {
    return this.#call('exec.get', { execId }, aetherAnswer.exec, options);
  }

  async execList(options?: StreamOptions): Promise<readonly ExecStatus[]> {
    return (await this.#call('exec.list', {}, aetherAnswer.execs, options)).execs;
  }

  sessionOpen(params: SessionOpenParams, options?: StreamOptions): Promise<{ pid: number }> {
    return this.#call('session.open', params, aetherAnswer.pid, options);
  }

  async sessionClose(sessionId: string, options?: StreamOptions): Promise<void> {
    await this.#call('session.close', { sessionId }, aetherAnswer.none, options);
  }

  async sessionList(options?: StreamOptions): Promise<readonly SessionInfo[]> {
    return (await this.#call('session.list', {}, aetherAnswer.sessions, options)).sessions;
  }

  fileStat(
    params: FileParams & { readonly followLinks?: boolean | undefined },
    options?: StreamOptions,
  ): Promise<FileEntry> {
    return this.#call('file.stat', params, aetherAnswer.entry, options);
  }

  fileList(
    params: FileParams & { readonly depth?: number | undefined; readonly limit?: number | undefined },
    options?: StreamOptions,
  ): FileListing {
    return new FileListing(this.#open('file.list', params, options));
  }

  async fileRead(
    params: FileParams & { readonly offset?: number | undefined; readonly length?: number | undefined },
    options?: StreamOptions,
  ): Promise<FileReading> {
    return await FileReading.begin(this.#open('file.read', params, options));
  }

  fileWrite(
    params: FileParams & {
      readonly mode?: number | undefined;
      readonly createParents?: boolean | undefined;
      readonly append?: boolean | undefined;
    },
    options?: StreamOptions,
  ): Upload<FileEntry> {
    return new Upload(this.#open('file.write', params, options), aetherAnswer.entry);
  }

  fileMkdir(
    params: FileParams & { readonly mode?: number | undefined; readonly parents?: boolean | undefined },
    options?: StreamOptions,
  ): Promise<FileEntry> {
    return this.#call('file.mkdir', params, aetherAnswer.entry, options);
  }

  async fileRemove(
    params: FileParams & { readonly recursive?: boolean | undefined },
    options?: StreamOptions,
  ): Promise<void> {
    await this.#call('file.remove', params, aetherAnswer.none, options);
  }

  fileMove(
    params: {
      readonly from: string;
      readonly to: string;
      readonly user?: string | undefined;
      readonly overwrite?: boolean | undefined;
    },
    options?: StreamOptions,
  ): Promise<FileEntry> {
    return this.#call('file.move', params, aetherAnswer.entry, options);
  }

  fileChmod(params: FileParams & { readonly mode: number }, options?: StreamOptions): Promise<FileEntry> {
    return this.#call('file.chmod', params, aetherAnswer.entry, options);
  }

  fileChown(params: FileParams & { readonly owner: string }, options?: StreamOptions): Promise<FileEntry> {
    return this.#call('file.chown', params, aetherAnswer.entry, options);
  }

  fileSymlink(params: FileParams & { readonly target: string }, options?: StreamOptions): Promise<FileEntry> {
    return this.#call('file.symlink', params, aetherAnswer.entry, options);
  }

  fileWatch(params: FileParams & { readonly recursive?: boolean | undefined }, options?: StreamOptions): FileWatch {
    return new FileWatch(this.#open('file.watch', params, options));
  }

  /** A pax tar of a directory. */
  treeRead(params: FileParams, options?: StreamOptions): Download<{ entries: number }> {
    return new Download(this.#open('tree.read', params, options), aetherAnswer.entries);
  }

  /** Takes a tar. */
  treeWrite(params: FileParams, options?: StreamOptions): Upload<{ entries: number }> {
    return new Upload(this.#open('tree.write', params, options), aetherAnswer.entries);
  }

  /** Bytes both ways on channel 0. */
  portConnect(
    params: { readonly port: number; readonly host?: string | undefined },
    options?: StreamOptions,
  ): WireStream {
    return this.#open('port.connect', params, options);
  }

  async processes(options?: StreamOptions): Promise<readonly ProcessInfo[]> {
    return (await this.#call('processes', {}, aetherAnswer.processes, options)).processes;
  }

  #params(params: object): object {
    return this.#scope === undefined ? params : { ...params, sandboxId: this.#scope.sandboxId };
  }

  #open(method: string, params: object, options?: StreamOptions): WireStream {
    return this.#wire.open(method, this.#params(params), options);
  }

  async #call<T>(method: string, params: object, check: Answer<T>, options?: StreamOptions): Promise<T> {
    return check(await this.#wire.call(method, this.#params(params), options), method);
  }
}
