/** Verbs that work on the machine of a server by themselves, as root, tell its audit log. */
import { PlatformError, type AuditNote } from '@dsec/contract';
import type { DSecClient } from '@dsec/libdsec';
import { say, type Context } from './context.ts';

type Verb = AuditNote['verb'];
type Facts = Pick<AuditNote, 'environment' | 'detail'>;

/** Does the work of a verb, and has it written down with its outcome. */
export async function noted<T>(
  context: Context,
  client: DSecClient,
  verb: Verb,
  work: { readonly facts?: Facts; readonly run: () => Promise<T>; readonly factsOf?: (result: T) => Facts },
): Promise<T> {
  let result: T;
  try {
    result = await work.run();
  } catch (error) {
    await note(context, client, { verb, outcome: PlatformError.is(error) ? error.code : 'internal', ...work.facts });
    throw error;
  }
  await note(context, client, { verb, outcome: 'ok', ...work.facts, ...work.factsOf?.(result) });
  return result;
}

/** Writes one note. A server that cannot take it is no reason for the verb to fail. */
export async function note(context: Context, client: DSecClient, { detail, ...rest }: AuditNote): Promise<void> {
  const { SUDO_USER: user = 'root' } = context.variables;
  try {
    await client.noteOperation({ ...rest, detail: { user, ...detail } });
  } catch (error) {
    if (!PlatformError.is(error)) throw error;
    // Of a key that is not the admin's, the log has what it asked the server for.
    if (error.code !== 'permission_denied')
      say(context, `warning: this is not in the audit log: ${error.message} [${error.code}]`);
  }
}
