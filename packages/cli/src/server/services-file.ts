/**
 * The mirror services of a server: `--services` names the operator's file, and `keys/services.json` keeps what is in it, for the resolver. It has credentials: it is root's
 * alone, and the resolver reads it before it gives up root.
 */
import { rm } from 'node:fs/promises';
import { loadServices } from '@dsec/egress';
import { writeDurably } from '@dsec/kit';
import { exists, type DataDirectory } from './data-directory.ts';

/** Instead of a file: no services from now on. */
const NO_SERVICES = 'none';

/**
 * Keeps the services of a file; without one those that were named before stay. Says where they are kept; undefined when there are none.
 * @throws PlatformError `config_invalid` with `details.field`
 */
export async function keepServices(data: DataDirectory, file: string | undefined): Promise<string | undefined> {
  if (file === NO_SERVICES) await rm(data.servicesFile, { force: true });
  else if (file !== undefined) {
    const services = loadServices(file);
    await writeDurably(data.servicesFile, `${JSON.stringify(services, null, 2)}\n`, {
      mode: 0o600,
      owner: { uid: 0, gid: 0 },
    });
  }
  return (await exists(data.servicesFile)) ? data.servicesFile : undefined;
}
