/** The changes of a sandbox, handed on as they come. */
import { PlatformError } from '@dsec/contract';
import type { Backend, SandboxChanges } from '@dsec/backends';
import type { WireServerStream } from '@dsec/native-link';
import type { Sandbox } from './sandbox.ts';

/** What an end of the sandbox meanwhile looks like from here. */
const SIGNS_OF_AN_END: ReadonlySet<string> = new Set(['internal', 'sandbox_not_found', 'sandbox_not_ready']);

/** Changes of a live sandbox. One that ends meanwhile is the reason why there are none. */
export async function takeChanges(backend: Backend, sandbox: Sandbox, signal: AbortSignal): Promise<SandboxChanges> {
  await sandbox.recovery;
  if (!sandbox.isLive || sandbox.channel === undefined) throw sandbox.refusal();
  try {
    return await backend.changes(sandbox.sandboxId, { signal });
  } catch (error) {
    if (!sandbox.isLive && PlatformError.is(error) && SIGNS_OF_AN_END.has(error.code)) throw sandbox.refusal();
    throw error;
  }
}

/** Sends them; the sandbox is busy meanwhile, so that its idle timeout does not end it. */
export async function sendChanges(backend: Backend, sandbox: Sandbox, stream: WireServerStream): Promise<object> {
  sandbox.lifetime?.enter();
  try {
    await using changes = await takeChanges(backend, sandbox, stream.signal);
    await stream.message({ frozenMs: changes.frozenMs });
    for await (const bytes of changes.bytes) await stream.write(bytes);
    stream.end();
    return {};
  } finally {
    sandbox.lifetime?.leave();
  }
}
