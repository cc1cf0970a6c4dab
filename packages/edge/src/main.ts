/**
 * The edge as a process: `main.ts --config FILE`. It loads its modules, gives up root for good, and only then opens anything. It ends when
 * its stdin closes; the sandboxes live on.
 */
import { readFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { ContainerBackend, NoNetwork, ResolverNetwork } from '@dsec/backends';
import { PlatformError } from '@dsec/contract';
import { MergeThread } from '@dsec/environment';
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
import { EdgeConfigSchema } from './config.ts';
import { Edge } from './edge.ts';
import { JournalThread } from './journal-thread.ts';
import { layerPlaces } from './layers.ts';

const { values } = parseArgs({ options: { config: { type: 'string' } } });
const config = loadConfig(EdgeConfigSchema, { file: values.config, envPrefix: 'DSEC_EDGE_' });
const clock = new SystemClock();
const logger = createLogger({ component: 'edge', level: config.logLevel, clock });
const network = new SystemNetwork();
const random = new SystemRandom();

const fatal = (event: string, error: unknown): never => {
  logger.error(event, { outcome: 'failed', error });
  process.exit(1);
};
exitOnFault(logger, 'edge.fault');

try {
  const journal = await JournalThread.start((error) => fatal('journal.lost', error));
  // Later this process may not read the thread's modules; the next one may.
  const merger = await MergeThread.start(config.sets, { onLost: (error) => fatal('merge.lost', error) });
  dropPrivileges({ uid: config.uid, gid: config.gid });
  const idKey = await readFile(config.idKeyFile).catch((cause: unknown) => {
    throw new PlatformError('config_invalid', 'the key of the sandbox ids cannot be read', {
      details: { field: 'idKeyFile' },
      cause,
    });
  });
  const backend = new ContainerBackend({
    network,
    clock,
    random,
    logger,
    launcherSocket: config.launcherSocket,
    sandboxSockets: config.sandboxSockets,
    layers: await layerPlaces(config.layers, { clock, random }),
    setsDirectory: config.sets.setsDirectory,
    setDraftsDirectory: config.sets.draftsDirectory,
    publisherSocket: config.publisherSocket,
    merger,
    sandboxNetwork:
      config.resolverSocket === undefined
        ? new NoNetwork(config.noNetworkReason ?? 'it runs no egress daemons')
        : new ResolverNetwork({ network, clock, random, logger, socket: config.resolverSocket }),
  });
  const edge = await Edge.start({ config, idKey, backend, journal, clock, random, network, logger });
  const end = async (): Promise<never> => {
    const reason = await askedToEnd();
    logger.info('edge.stop', { reason });
    await edge[Symbol.asyncDispose]();
    process.exit(0);
  };
  end().catch((error: unknown) => fatal('edge.stop', error));
} catch (error) {
  fatal('edge.start', error);
}
