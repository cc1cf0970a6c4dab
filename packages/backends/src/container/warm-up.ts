/**
 * Asks each kind of question once of a launcher and an aether that exist in memory only, so that the first real create finds every check
 * compiled and every path walked. The first create of a process otherwise takes several times as long as the next.
 */
import { PlatformError } from '@dsec/contract';
import { connectionPair, type Clock } from '@dsec/kit';
import { AetherClient, LauncherClient, serve, WireClient } from '@dsec/native-link';

/** Enough for the engine to see what is called often. */
const ROUNDS = 20;
const PARAMS = { id: 's', layers: [], hostname: 's', memoryBytes: 1, cpuMillis: 1, pids: 1, diskBytes: 1 };

const answers: Readonly<Record<string, unknown>> = {
  'sandbox.create': { id: 's', pid: 1, socket: '/' },
  'sandbox.destroy': {},
  'sandbox.usage': { memoryBytes: 0, memoryPeakBytes: 0, cpuUsec: 0, pids: 0, diskBytes: 0, oomKills: 0 },
  'exec.list': { execs: [] },
};

export async function warmUp(clock: Clock): Promise<void> {
  const [near, far] = connectionPair();
  const server = serve(far, (method) => Promise.resolve(answers[method]), {
    role: 'launcher',
    clock,
    onFault: (cause, method) => {
      throw new PlatformError('internal', `${method} could not be tried`, { cause });
    },
  });
  const wire = WireClient.connect(near, { role: 'edge', clock });
  const launcher = new LauncherClient(wire);
  const aether = new AetherClient(wire);
  try {
    await wire.greeted();
    for (let round = 0; round < ROUNDS; round++) {
      await launcher.sandboxCreate(PARAMS);
      await aether.execList();
      await launcher.sandboxUsage('s');
      await launcher.sandboxDestroy('s');
    }
  } finally {
    await wire.close();
    await server.close();
  }
}
