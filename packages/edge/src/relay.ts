/**
 * The way of a request into a sandbox, which is the hot path: one lookup, the params with what the sandbox adds to them, and then the
 * frames pass as they are.
 */
import type { Channel } from '@dsec/backends';
import { busyMethods, PlatformError, relayedMethods, type RelayedMethod } from '@dsec/contract';
import type { JsonObject, RelayOutcome, WireServerStream } from '@dsec/native-link';
import type { Sandbox } from './sandbox.ts';
import type { SandboxRecord } from './sandbox-record.ts';

/** Streams that apiservers may have open into one sandbox; aether takes 256, and the edge keeps some for itself. */
const MAX_RELAYED = 248;

/** Looking at a sandbox is no use of it: these do not put off its idle timeout. */
const pollingMethods: ReadonlySet<RelayedMethod> = new Set<RelayedMethod>([
  'exec.get',
  'exec.list',
  'session.list',
  'processes',
]);

const methods: ReadonlySet<string> = new Set(relayedMethods);

export const isRelayed = (method: string): method is RelayedMethod => methods.has(method);

/** Joins a stream of an apiserver with one into the sandbox. Takes the stream over: it is answered here, whatever happens. */
export function relayInto(sandbox: Sandbox, method: RelayedMethod, params: JsonObject, near: WireServerStream): void {
  const { channel } = sandbox;
  if (channel !== undefined && sandbox.isLive && sandbox.state.phase === 'running')
    join(sandbox, channel, { method, params, near });
  else void whenReady(sandbox, { method, params, near });
}

interface Request {
  readonly method: RelayedMethod;
  readonly params: JsonObject;
  readonly near: WireServerStream;
}

/** Waits for a channel that is being replaced; a sandbox that is not ready or has ended is refused. Never rejects. */
async function whenReady(sandbox: Sandbox, request: Request): Promise<void> {
  await sandbox.recovery;
  const { channel } = sandbox;
  if (channel === undefined || sandbox.state.phase !== 'running') request.near.fail(sandbox.refusal());
  else join(sandbox, channel, request);
}

function join(sandbox: Sandbox, channel: Channel, { method, params, near }: Request): void {
  if (sandbox.relayed >= MAX_RELAYED) {
    near.fail(
      new PlatformError('too_many_streams', `sandbox ${sandbox.sandboxId} has its greatest number of open streams`, {
        details: { limit: MAX_RELAYED },
      }),
    );
    return;
  }
  const isBusy = busyMethods.has(method);
  const isUse = !pollingMethods.has(method);
  if (isBusy) sandbox.lifetime?.enter();
  else if (isUse) sandbox.lifetime?.touch();
  sandbox.relayed++;
  const onClose = (outcome: RelayOutcome): void => {
    sandbox.relayed--;
    // A command goes on without its stream; the sandbox stays busy with it.
    if (method === 'exec.start' && outcome.end === 'reset' && typeof params.execId === 'string')
      sandbox.detached?.add(params.execId);
    if (isBusy) sandbox.lifetime?.leave();
    else if (isUse) sandbox.lifetime?.touch();
  };
  try {
    void channel.relay(near, method, filled(sandbox.record, method, params), {
      onClose,
      lost: (error) => explain(sandbox, error),
    });
  } catch (error) {
    // It was refused before it was joined, so nothing else ends it.
    onClose({ end: 'closed' });
    near.fail(
      PlatformError.is(error)
        ? error
        : new PlatformError('internal', `${method} could not be relayed`, { cause: error }),
    );
  }
}

/** What a client is told whose stream broke: why the sandbox ended, as soon as that is known, or that only the channel did. */
async function explain(sandbox: Sandbox, error: PlatformError): Promise<PlatformError> {
  // The streams of a connection end just before it tells of its own end, which is what begins a recovery.
  await Promise.resolve();
  await sandbox.recovery;
  return sandbox.isLive ? error : sandbox.refusal();
}

/** The params as aether takes them: without the id, and with what the sandbox says where the caller says nothing. */
function filled(record: SandboxRecord, method: RelayedMethod, params: JsonObject): JsonObject {
  const { sandboxId: _sandboxId, ...rest } = params;
  switch (method) {
    case 'exec.start':
      // A session has an environment, a directory and a user of its own.
      if (rest.sessionId !== undefined) return { env: {}, ...rest };
      return { user: record.user, cwd: record.workdir, ...rest, env: merged(record, rest.env) };
    case 'session.open':
      return { user: record.user, cwd: record.workdir, ...rest, env: merged(record, rest.env) };
    case 'file.stat':
    case 'file.list':
    case 'file.read':
    case 'file.write':
    case 'file.mkdir':
    case 'file.remove':
    case 'file.move':
    case 'file.chmod':
    case 'file.chown':
    case 'file.symlink':
    case 'file.watch':
    case 'tree.read':
    case 'tree.write':
      return { user: record.user, ...rest };
    case 'exec.attach':
    case 'exec.stdin':
    case 'exec.signal':
    case 'exec.resize':
    case 'exec.get':
    case 'exec.list':
    case 'session.close':
    case 'session.list':
    case 'port.connect':
    case 'processes':
      return rest;
  }
}

/** The sandbox's variables under the caller's; what is no object is left to aether to refuse. */
const merged = (record: SandboxRecord, env: unknown): unknown =>
  env === undefined || (typeof env === 'object' && env !== null && !Array.isArray(env))
    ? { ...record.env, ...env }
    : env;
