/**
 * The resolver as a process: `main.ts --config FILE`. It loads its modules, binds the ports that only root may bind, gives up root for good, and only
 * then hears anybody. It ends when its stdin closes; what it has had put into the kernel stays in force.
 */
import { parseArgs } from 'node:util';
import { createLogger, dropPrivileges, loadConfig, SystemClock, SystemNetwork, SystemRandom } from '@dsec/kit';
import { ResolverConfigSchema } from './config.ts';
import { bindSockets, startResolver } from './resolver.ts';
import { loadServices } from './services/service.ts';

const { values } = parseArgs({ options: { config: { type: 'string' } } });
const config = loadConfig(ResolverConfigSchema, { file: values.config, envPrefix: 'DSEC_RESOLVER_' });
const clock = new SystemClock();
const logger = createLogger({ component: 'resolver', level: config.logLevel, clock });
const environment = { network: new SystemNetwork(), clock, random: new SystemRandom(), logger };

const fatal = (event: string, error: unknown): never => {
  logger.error(event, { outcome: 'failed', error });
  process.exit(1);
};
process.on('uncaughtException', (error) => fatal('resolver.fault', error));
process.on('unhandledRejection', (error) => fatal('resolver.fault', error));

try {
  const services = config.servicesFile === undefined ? [] : loadServices(config.servicesFile);
  const sockets = await bindSockets(config, environment, services);
  dropPrivileges({ uid: config.uid, gid: config.gid });
  const resolver = await startResolver({ ...environment, config, sockets, services });
  let isClosing = false;
  const close = (reason: string): void => {
    if (isClosing) return;
    isClosing = true;
    logger.info('resolver.stop', { reason });
    resolver[Symbol.asyncDispose]().then(
      () => process.exit(0),
      (error: unknown) => fatal('resolver.stop', error),
    );
  };
  process.stdin.once('end', () => close('stdin'));
  process.stdin.once('error', () => close('stdin'));
  process.stdin.resume();
  process.once('SIGTERM', () => close('SIGTERM'));
  process.once('SIGINT', () => close('SIGINT'));
  const [dns] = sockets.dns;
  const [service] = sockets.services;
  logger.info('resolver.start', {
    outcome: 'ok',
    dnsPort: dns?.port,
    servicePort: service?.port,
    services: services.length,
  });
} catch (error) {
  fatal('resolver.start', error);
}
