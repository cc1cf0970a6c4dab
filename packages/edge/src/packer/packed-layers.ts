/** How layers that the packer has made become layers of the node: the publisher, which is root's, copies and checks them. */
import { mkdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { LayerHandover } from '@dsec/environment';
import { orAborted, Semaphore } from '@dsec/kit';
import type { DaemonLink, PublisherClient } from '@dsec/native-link';

/** The largest layer is copied and read within this, on a slow disk too. */
export const PUBLISH_TIMEOUT_MS = 3_600_000;
/** Layers that are copied at once. */
const MAX_PUBLISHING = 4;
/** As many as packs can be under way. */
const MAX_WAITING = 4096;

export class PackedLayers implements LayerHandover {
  readonly directory: string;
  readonly #publisher: DaemonLink<PublisherClient>;
  readonly #semaphore = new Semaphore({ permits: MAX_PUBLISHING, maxWaiting: MAX_WAITING });
  /** By digest: packs of equal content at the same time hand over one. */
  readonly #publishing = new Map<string, Promise<void>>();

  /** @param directory the packer's own; a layer is handed over in `<directory>/<hex>` */
  constructor(directory: string, publisher: DaemonLink<PublisherClient>) {
    this.directory = directory;
    this.#publisher = publisher;
  }

  /** Removes what a packer before has left. */
  async prepare(): Promise<void> {
    await rm(this.directory, { recursive: true, force: true });
    await mkdir(this.directory, { recursive: true, mode: 0o700 });
  }

  /** @throws PlatformError `unavailable` without a publisher, `layer_corrupt`, `disk_full`, `cancelled` */
  handOver(digest: string, staged: string, signal: AbortSignal | undefined): Promise<void> {
    let publishing = this.#publishing.get(digest);
    if (publishing === undefined) {
      publishing = this.#publish(digest, staged).finally(() => this.#publishing.delete(digest));
      this.#publishing.set(digest, publishing);
    }
    return orAborted(publishing, signal);
  }

  async #publish(digest: string, staged: string): Promise<void> {
    const handed = join(this.directory, digest.slice('sha256:'.length));
    // At once: whoever waits no longer removes what it has staged.
    await rename(staged, handed);
    try {
      using _permit = await this.#semaphore.acquire();
      await this.#publisher.call((client, options) => client.layerPublish(digest, 'packed', options));
    } finally {
      await rm(handed, { recursive: true, force: true });
    }
  }
}
