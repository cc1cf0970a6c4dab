/** The route of what a sandbox has written. */
import { checkChangesReady } from '../edge/answers.ts';
import { resetOnClose } from '../http/ndjson.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import { sendBytes, unexpected } from '../http/send-bytes.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';

const TAR_TYPE = 'application/x-tar';

export function changesRoute(scopes: RouteScopes, services: Services): void {
  const { keys, edge } = services;
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/changes',
    summary:
      'What a sandbox has written since its creation, as it was at one moment: a tar archive with the marks of overlayfs. For builders.',
    right: 'build',
    answers: { 200: TAR_TYPE },
    handle: async ({ params, reply }) => {
      const stream = await edge.open('sandbox.changes', { sandboxId: sandboxIdOf(services, params.id) });
      resetOnClose(reply.raw, stream);
      const first = await stream.next();
      if (first.done === true) throw unexpected(stream);
      if (first.value.type !== 'message') throw unexpected(stream);
      const { frozenMs } = checkChangesReady(first.value.value, stream.method);
      const headers = { 'content-type': TAR_TYPE, 'cache-control': 'no-store', 'dsec-frozen-ms': frozenMs.toFixed(3) };
      // What cannot be begun is told as an error; later the answer breaks off.
      const bytes = await stream.next();
      await sendBytes(reply, services, stream, 200, headers, bytes.done === true ? undefined : bytes.value);
    },
  });
}
