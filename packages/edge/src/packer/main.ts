/**
 * The packer as a process: `main.ts --config FILE`. It loads its modules, gives up root for good, and only then opens anything. It ends when its
 * stdin closes; a pack that is under way is lost then, and asked for again.
 */
import { chmod } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import {
  askedToEnd,
  createLogger,
  dropPrivileges,
  exitOnFault,
  loadConfig,
  SystemClock,
  SystemNetwork,
  SystemRandom,
} from '@dsec/kit';
import { DaemonLink, PublisherClient, serve, type WireServer } from '@dsec/native-link';
import { PackerConfigSchema } from './config.ts';
import { PackedLayers, PUBLISH_TIMEOUT_MS } from './packed-layers.ts';
import { Packer } from './packer.ts';

/** Its directory lets the edge in. */
const SOCKET_MODE = 0o660;
const MAX_CONNECTIONS = 64;

const { values } = parseArgs({ options: { config: { type: 'string' } } });
const config = loadConfig(PackerConfigSchema, { file: values.config, envPrefix: 'DSEC_PACKER_' });
const clock = new SystemClock();
const logger = createLogger({ component: 'packer', level: config.logLevel, clock });
const network = new SystemNetwork();

const fatal = (event: string, error: unknown): never => {
  logger.error(event, { outcome: 'failed', error });
  process.exit(1);
};
exitOnFault(logger, 'packer.fault');

try {
  dropPrivileges({ uid: config.uid, gid: config.gid });
  const random = new SystemRandom();
  const publisher = new DaemonLink({
    network,
    clock,
    random,
    socket: config.publisherSocket,
    name: 'publisher',
    role: 'packer',
    client: (wire) => new PublisherClient(wire),
    patienceMs: PUBLISH_TIMEOUT_MS,
  });
  const handover = new PackedLayers(config.draftsDirectory, publisher);
  await handover.prepare();
  const packer = new Packer({ layersDirectory: config.layersDirectory, handover, clock, random });
  const connections = new Set<WireServer>();
  const listener = await network.listenUnix(config.socket, (connection) => {
    if (connections.size >= MAX_CONNECTIONS) {
      connection.destroy();
      return;
    }
    const wire = serve(connection, (method, params, stream) => packer.handle(method, params, stream), {
      role: 'packer',
      clock,
      onFault: (error, method) => logger.error('packer.fault', { method, outcome: 'internal', error }),
      onClose: () => connections.delete(wire),
    });
    connections.add(wire);
  });
  await chmod(config.socket, SOCKET_MODE);
  const end = async (): Promise<never> => {
    const reason = await askedToEnd();
    logger.info('packer.stop', { reason });
    await Promise.all([listener.close(), ...[...connections].map((wire) => wire.close())]);
    process.exit(0);
  };
  end().catch((error: unknown) => fatal('packer.stop', error));
  logger.info('packer.start', { outcome: 'ok' });
} catch (error) {
  fatal('packer.start', error);
}
