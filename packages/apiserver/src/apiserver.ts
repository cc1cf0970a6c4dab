/** A whole apiserver out of its configuration and what it is given of the outside world. */
import { readFileSync } from 'node:fs';
import { chmod } from 'node:fs/promises';
import { PlatformError, SandboxIds, type StrangerOperation } from '@dsec/contract';
import type { Clock, Logger, Network, Random, Scope } from '@dsec/kit';
import { Keys } from '@dsec/iam';
import { EmbeddedStore } from '@dsec/store';
import { buildApp } from './app.ts';
import { readWebhook } from './behaviour/read-webhook.ts';
import { Webhook } from './behaviour/webhook.ts';
import { AuditLog } from './audit/audit-log.ts';
import { RequestAudit } from './audit/request-audit.ts';
import { CommandDigest } from './audit/request-subject.ts';
import { strangerFields } from './audit/stranger.ts';
import type { ApiserverConfig } from './config.ts';
import { EdgeLink } from './edge/edge-link.ts';
import { Environments } from './environments/environments.ts';
import { LinkKey } from './link-key.ts';

/** As with the port, everybody on the machine may connect: the key decides. */
const SOCKET_MODE = 0o666;

export interface Surroundings {
  readonly clock: Clock;
  readonly random: Random;
  readonly network: Network;
  readonly logger: Logger;
  /** Owns everything that is started. */
  readonly scope: Scope;
}

/** Opens the store, the connection to the edge and the listener; returns the port. */
export async function startApiserver(config: ApiserverConfig, surroundings: Surroundings): Promise<number> {
  const { clock, random, network, logger, scope } = surroundings;
  const linkKey = new LinkKey(readKey(config.linkKeyFile, 'linkKeyFile'));
  const log = scope.own('audit log', await openAudit(config, surroundings));
  const audit = scope.own(
    'audit',
    new RequestAudit({ log, clock, random, digest: new CommandDigest(linkKey.commandKey) }),
  );
  const store = scope.own('store', EmbeddedStore.open({ path: config.store }));
  const keys = await Keys.open({ store, clock, random, scope, adminKeySha256: config.adminKeySha256 });
  const environments = await Environments.open({ store, clock, scope });
  const { edgeSocket: socket, edgeKeyFile } = config;
  const proof = edgeKeyFile === undefined ? undefined : readKey(edgeKeyFile, 'edgeKeyFile').toString('hex');
  const onStranger = (operation: StrangerOperation): void => void log.append(strangerFields(operation));
  const edge = EdgeLink.open({ network, clock, random, logger, scope, socket, proof, onStranger });
  const app = await buildApp({
    clock,
    random,
    logger,
    audit,
    keys,
    environments,
    edge,
    ids: new SandboxIds(readKey(config.idKeyFile, 'idKeyFile')),
    edgeNumber: config.edge,
    linkKey,
    publicUrl: config.publicUrl,
  });
  if (config.webhookFile !== undefined) {
    const settings = readWebhook(config.webhookFile);
    const webhook = new Webhook({ settings, edge, store, clock, random, logger });
    scope.run('webhook', (signal) => webhook.run(signal));
  }
  if (config.socket !== undefined) {
    scope.own('local socket', await network.listenUnix(config.socket, (connection) => app.serve(connection)));
    await chmod(config.socket, SOCKET_MODE);
  }
  // Before the socket, which breaks what it has accepted when it closes.
  scope.defer('HTTP server', () => app.close());
  return await app.listen(config.host, config.port);
}

async function openAudit(config: ApiserverConfig, { clock, logger }: Surroundings): Promise<AuditLog> {
  const { auditDirectory: directory, auditFileBytes: fileBytes, auditFiles: files } = config;
  return await AuditLog.open({
    directory,
    clock,
    logger,
    ...(fileBytes === undefined ? {} : { fileBytes }),
    ...(files === undefined ? {} : { files }),
  });
}

function readKey(file: string, field: string): Buffer {
  try {
    return readFileSync(file);
  } catch (cause) {
    throw new PlatformError('config_invalid', `the key file of ${field} cannot be read`, { details: { field }, cause });
  }
}
