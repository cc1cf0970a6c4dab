import { chmod, chown, mkdir, readFile, stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { createHash } from 'node:crypto';
import { PlatformError } from '@dsec/contract';
import { writeDurably, type Random } from '@dsec/kit';
import { dropSets, takeLayers } from './owned-by-root.ts';

/** Where a server keeps everything, unless told otherwise. */
export const DEFAULT_DATA_DIRECTORY = '/var/lib/dsec';

/** The users of the daemons: fixed numbers that need no entry in /etc/passwd, outside of what sandboxes are mapped to. */
export const EDGE_USER = { uid: 64_801, gid: 64_801 } as const;
export const APISERVER_USER = { uid: 64_802, gid: 64_802 } as const;
export const PACKER_USER = { uid: 64_803, gid: 64_803 } as const;
/** Of the gate too, which egressd starts. */
export const RESOLVER_USER = { uid: 64_804, gid: 64_804 } as const;

const ID_KEY_BYTES = 32;
const LINK_KEY_BYTES = 32;
const EDGE_KEY_BYTES = 32;
const ADMIN_KEY_BYTES = 24;
/** How a secret of an API key begins, so that scanners for leaked secrets know it. */
const ADMIN_KEY_PREFIX = 'dsec_';

/** The paths of one data directory (see `docs/architecture.md`). */
export class DataDirectory {
  readonly path: string;

  constructor(path: string) {
    this.path = path;
  }

  get layers(): string {
    return join(this.path, 'layers');
  }
  /** Which layer was made from what, so that a build does not do again what an earlier one did. */
  get notes(): string {
    return join(this.path, 'notes');
  }
  /** Which layers builds rely on that have no name yet. */
  get holds(): string {
    return join(this.path, 'holds');
  }
  get sets(): string {
    return join(this.path, 'sets');
  }
  get logs(): string {
    return join(this.path, 'log');
  }
  get volume(): string {
    return join(this.path, 'volume');
  }
  get controlSocket(): string {
    return join(this.path, 'run/up.sock');
  }
  get serverFile(): string {
    return join(this.path, 'run/server.json');
  }
  get launcherSocket(): string {
    return join(this.path, 'run/launcher.sock');
  }
  get layerdSocket(): string {
    return join(this.path, 'run/layerd.sock');
  }
  get publisherSocket(): string {
    return join(this.path, 'run/publisher.sock');
  }
  get packerSocket(): string {
    return join(this.path, 'run/packer/packer.sock');
  }
  /** What egressd keeps. */
  get egress(): string {
    return join(this.path, 'run/egress');
  }
  get egressdSocket(): string {
    return join(this.path, 'run/egressd.sock');
  }
  get resolverSocket(): string {
    return join(this.path, 'run/resolver/resolver.sock');
  }
  get apiSocket(): string {
    return join(this.path, 'run/api/api.sock');
  }
  get edgeSocket(): string {
    return join(this.path, 'run/edge/edge.sock');
  }
  get sandboxSockets(): string {
    return join(this.path, 'run/s');
  }
  /** Where the edge fetches layers to; the publisher makes them layers of the node (native/publisher/src/layers.rs). */
  get fetchDirectory(): string {
    return join(this.path, 'state/edge/layers');
  }
  /** Where the edge makes sets, for the publisher too. */
  get setDrafts(): string {
    return join(this.path, 'state/edge/sets');
  }
  /** Where the packer makes layers, for the publisher too. */
  get packDrafts(): string {
    return join(this.path, 'state/packer/layers');
  }
  /** Which blob store this server uses, with its account. */
  get blobFile(): string {
    return join(this.path, 'keys/blob.json');
  }
  /** The mirror services of this server, with their credentials. */
  get servicesFile(): string {
    return join(this.path, 'keys/services.json');
  }
  /** Where the behaviour of sandboxes is posted to, with the secret that signs it. */
  get webhookFile(): string {
    return join(this.path, 'keys/webhook.json');
  }
  get journal(): string {
    return join(this.path, 'state/edge/journal.db');
  }
  /** Where the edge keeps what sandboxes tried and were denied. */
  get behaviour(): string {
    return join(this.path, 'state/edge/behaviour');
  }
  get store(): string {
    return join(this.path, 'state/api/store.db');
  }
  get auditDirectory(): string {
    return join(this.path, 'state/api/audit');
  }
  /** How the audit log ended when root looked last whether it is whole. */
  get auditHead(): string {
    return join(this.path, 'keys/audit.head');
  }
  /** What the apiserver proves itself to the edge with. */
  get edgeKey(): string {
    return join(this.path, 'keys/edge.key');
  }
  get idKey(): string {
    return join(this.path, 'keys/id.key');
  }
  get linkKey(): string {
    return join(this.path, 'keys/link.key');
  }
  get adminKey(): string {
    return join(this.path, 'keys/admin.key');
  }

  configFile(process: 'edge' | 'packer' | 'apiserver' | 'resolver'): string {
    return join(this.path, `run/${process}.json`);
  }

  logFile(process: string): string {
    return join(this.logs, `${process}.log`);
  }
}

/** Makes what is missing of a data directory, with its owners, and the keys of the installation. What is there is kept. */
export async function prepareDataDirectory(
  data: DataDirectory,
  random: Random,
): Promise<{ readonly adminKeySha256: string; readonly apiserverKeySha256: string }> {
  await mkdir(data.path, { recursive: true, mode: 0o755 });
  // The daemons, which are not root's, have to get through to what is theirs.
  await chmod(data.path, ((await stat(data.path)).mode & 0o7777) | 0o111);
  const root = { uid: 0, gid: 0 };
  await mkdir(data.layers, { recursive: true });
  await mkdir(data.sets, { recursive: true });
  await takeLayers(data.layers);
  await dropSets(data.sets);
  for (const [name, owner, mode] of [
    ['layers', root, 0o755],
    ['sets', root, 0o755],
    ['log', root, 0o750],
    ['keys', root, 0o755],
    ['run', root, 0o755],
    ['state', root, 0o755],
    ['state/edge', EDGE_USER, 0o700],
    ['state/packer', PACKER_USER, 0o700],
    ['state/api', APISERVER_USER, 0o700],
    // Its group, which the socket in it inherits, is what lets apiservers in.
    ['run/edge', { uid: EDGE_USER.uid, gid: APISERVER_USER.gid }, 0o2750],
    ['run/api', APISERVER_USER, 0o755],
    ['run/packer', { uid: PACKER_USER.uid, gid: EDGE_USER.gid }, 0o2750],
    ['run/resolver', { uid: RESOLVER_USER.uid, gid: EDGE_USER.gid }, 0o2750],
  ] as const) {
    const path = join(data.path, name);
    await mkdir(path, { recursive: true });
    await chown(path, owner.uid, owner.gid);
    await chmod(path, mode);
  }
  await keep(data.idKey, () => random.bytes(ID_KEY_BYTES), {
    mode: 0o440,
    owner: { uid: EDGE_USER.uid, gid: APISERVER_USER.gid },
  });
  await keep(data.linkKey, () => random.bytes(LINK_KEY_BYTES), { mode: 0o400, owner: APISERVER_USER });
  const edgeKey = await keep(data.edgeKey, () => random.bytes(EDGE_KEY_BYTES), { mode: 0o400, owner: APISERVER_USER });
  const adminKey = await keep(
    data.adminKey,
    () => Buffer.from(ADMIN_KEY_PREFIX + random.bytes(ADMIN_KEY_BYTES).toString('hex')),
    { mode: 0o600, owner: root },
  );
  const sha256 = (content: string | Buffer): string => createHash('sha256').update(content).digest('hex');
  // It is sent as text.
  return { adminKeySha256: sha256(adminKey), apiserverKeySha256: sha256(edgeKey.toString('hex')) };
}

/** The secret of the first API key, for the CLI on this machine; undefined when this user may not read it. */
export async function readAdminKey(data: DataDirectory): Promise<string | undefined> {
  try {
    return (await readFile(data.adminKey, 'utf8')).trim();
  } catch (error) {
    if (isErrno(error, 'ENOENT') || isErrno(error, 'EACCES')) return undefined;
    throw error;
  }
}

/** Bytes that are free on the filesystem of a path. */
export async function freeBytes(path: string): Promise<number> {
  const { bavail, bsize } = await statfs(path);
  return bavail * bsize;
}

export async function exists(path: string): Promise<boolean> {
  try {
    await stat(path);
    return true;
  } catch (error) {
    if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return false;
    throw error;
  }
}

export const isErrno = (error: unknown, code: string): boolean =>
  error instanceof Error && 'code' in error && error.code === code;

async function keep(
  path: string,
  make: () => Buffer,
  options: { readonly mode: number; readonly owner: { readonly uid: number; readonly gid: number } },
): Promise<Buffer> {
  try {
    const content = await readFile(path);
    if (content.length === 0)
      throw new PlatformError('config_invalid', `the key file ${path} is empty`, { details: { field: path } });
    return content;
  } catch (error) {
    if (!isErrno(error, 'ENOENT')) throw error;
  }
  const content = make();
  await writeDurably(path, content, options);
  return content;
}
