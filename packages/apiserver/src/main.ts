/**
 * The apiserver process: `main.ts --config FILE`. It gives up its privileges before it opens anything, writes one line of JSON
 * `{"listening":{"host","port"}}` on stdout when it serves, and ends when its stdin closes.
 */
import { parseArgs } from 'node:util';
import {
  askedToEnd,
  createLogger,
  dropPrivileges,
  exitOnFault,
  loadConfig,
  Scope,
  SystemClock,
  SystemNetwork,
  SystemRandom,
} from '@dsec/kit';
import { startApiserver } from './apiserver.ts';
import { ApiserverConfigSchema } from './config.ts';

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { config: { type: 'string' } } });
  const config = loadConfig(ApiserverConfigSchema, { file: values.config, envPrefix: 'DSEC_APISERVER_' });
  const clock = new SystemClock();
  const logger = createLogger({ component: 'apiserver', level: config.logLevel, clock });
  const failure = Promise.withResolvers<string>();
  exitOnFault(logger, 'process.fault');
  dropPrivileges(config);
  await using scope = new Scope({
    clock,
    onFailure: (name, error) => {
      logger.error('loop.failed', { loop: name, error });
      process.exitCode = 1;
      failure.resolve('a background loop failed');
    },
  });
  const surroundings = { clock, random: new SystemRandom(), network: new SystemNetwork(), logger, scope };
  const port = await startApiserver(config, surroundings);
  process.stdout.write(`${JSON.stringify({ listening: { host: config.host, port } })}\n`);
  logger.info('apiserver.listening', { host: config.host, port });
  const reason = await Promise.race([askedToEnd(), failure.promise]);
  logger.info('apiserver.stopping', { reason });
}

try {
  await main();
  // stdin may still be open, and would keep the process.
  process.exit();
} catch (error) {
  createLogger({ component: 'apiserver' }).error('apiserver.failed', { error });
  process.exit(1);
}
