/** As much of aether as the edge itself asks of it, over a real socket; faults are scripted. Commands do what their test says. */
import { PlatformError } from '@dsec/contract';
import { SystemClock, SystemNetwork, type Connection, type Listener } from '@dsec/kit';
import { serve, type JsonObject, type WireServer, type WireServerStream } from '@dsec/native-link';

const clock = new SystemClock();

interface DoubleExec {
  readonly execId: string;
  readonly pid: number;
  readonly startedAtMs: number;
  isRunning: boolean;
  readonly followers: Set<WireServerStream>;
}

export class AetherDouble {
  readonly #execs = new Map<string, DoubleExec>();
  readonly #connections = new Set<Connection>();
  /** By path. */
  readonly files = new Map<string, string>();
  readonly sessions: { readonly sessionId: string; readonly pid: number; readonly busy: boolean }[] = [];
  readonly opened: { readonly method: string; readonly params: JsonObject }[] = [];
  #nextPid = 2;
  #listener: Listener | undefined;

  async listen(path: string): Promise<void> {
    this.#listener = await new SystemNetwork().listenUnix(path, (connection) => {
      this.#connections.add(connection);
      connection.once('close', () => this.#connections.delete(connection));
      const wire: WireServer = serve(connection, (method, params, stream) => this.#handle(method, params, stream), {
        role: 'aether',
        clock,
        onFault: (fault) => {
          throw fault;
        },
      });
      void wire.closed;
    });
  }

  get connections(): number {
    return this.#connections.size;
  }

  /** Ends a command. */
  finish(execId: string): void {
    const exec = this.#execs.get(execId);
    if (exec === undefined) throw new Error(`there is no exec ${execId}`);
    exec.isRunning = false;
    for (const follower of exec.followers) follower.close(statusOf(exec));
  }

  /** Breaks every connection, as a crash of the channel would; it can be connected again. */
  breakConnections(): void {
    for (const connection of this.#connections) connection.destroy();
  }

  /** Sends bytes that are not the protocol. */
  babble(): void {
    for (const connection of this.#connections) connection.write(Buffer.alloc(64, 0xff));
  }

  async close(): Promise<void> {
    await this.#listener?.close();
  }

  #handle(method: string, params: JsonObject, stream: WireServerStream): Promise<unknown> | void {
    this.opened.push({ method, params });
    const execId = String(params.execId);
    switch (method) {
      case 'info':
        return Promise.resolve({ version: 'double', processes: 1, execs: this.#execs.size });
      case 'exec.list':
        return Promise.resolve({
          execs: [...this.#execs.values()].map(statusOf),
        });
      case 'session.list':
        return Promise.resolve({ sessions: this.sessions });
      case 'exec.start':
        this.#execs.set(execId, {
          execId,
          pid: this.#nextPid++,
          startedAtMs: clock.now(),
          isRunning: true,
          followers: new Set(),
        });
        this.#follow(execId, stream);
        return;
      case 'exec.attach':
        this.#follow(execId, stream);
        return;
      case 'file.stat':
        return Promise.resolve({ path: params.path });
      case 'file.write':
        return this.#write(String(params.path), stream);
      default:
        throw new PlatformError('unknown_method', `the double has no ${method}`);
    }
  }

  async #write(path: string, stream: WireServerStream): Promise<object> {
    const parts: Buffer[] = [];
    for (;;) {
      const next = await stream.next();
      if (next.done === true || next.value.type === 'end') break;
      if (next.value.type === 'data') parts.push(Buffer.from(next.value.bytes));
    }
    const bytes = Buffer.concat(parts);
    this.files.set(path, bytes.toString());
    return {
      path,
      name: path.split('/').at(-1) ?? '',
      kind: 'file',
      sizeBytes: bytes.length,
      mode: 0o644,
      uid: 0,
      gid: 0,
      mtimeMs: 1,
      target: null,
    };
  }

  #follow(execId: string, stream: WireServerStream): void {
    const exec = this.#execs.get(execId);
    if (exec === undefined) {
      stream.fail(new PlatformError('exec_not_found', 'no such exec'));
      return;
    }
    if (!exec.isRunning) {
      stream.close(statusOf(exec));
      return;
    }
    exec.followers.add(stream);
    stream.signal.addEventListener('abort', () => exec.followers.delete(stream), { once: true });
    void stream.message({ started: { execId, pid: exec.pid } });
  }
}

const statusOf = (exec: DoubleExec): object => ({
  execId: exec.execId,
  state: exec.isRunning ? 'running' : 'exited',
  pid: exec.pid,
  pty: false,
  startedAtMs: exec.startedAtMs,
  timedOut: false,
  oomKilled: false,
  stdoutBytes: 0,
  stderrBytes: 0,
  stdoutDropped: 0,
  stderrDropped: 0,
});
