/** The methods of the publisher, which makes layers and sets of the node (docs/wire.md); what comes back is checked. */
import { answer, closed } from './answer.ts';
import type { WireClient } from './wire/client.ts';
import type { StreamOptions } from './wire/stream-api.ts';

const none = answer(closed({}));

/** How a layer was made: by the edge, from the blob store, without its data; or whole, by the packer. */
export type LayerForm = 'fetched' | 'packed';

/** Layers and sets are named `sha256:` and 64 hex digits; what they are made of lies where whoever asks hands things over. */
export class PublisherClient {
  readonly #wire: WireClient;

  constructor(wire: WireClient) {
    this.#wire = wire;
  }

  /**
   * Makes a layer of the node; one that is there is no error. What was handed over stays, and is needed no more.
   * @throws PlatformError `layer_corrupt` when it is not what its name says, `layer_not_found` when a file is missing, `disk_full`
   */
  async layerPublish(layer: string, form: LayerForm, options?: StreamOptions): Promise<void> {
    none(await this.#wire.call('layer.publish', { layer, form }, options), 'layer.publish');
  }

  /** Makes a set of the node, in the place of one that is there. @throws PlatformError `invalid_argument`, `disk_full` */
  async setPublish(set: string, options?: StreamOptions): Promise<void> {
    none(await this.#wire.call('set.publish', { set }, options), 'set.publish');
  }

  /** Removes a set, or what stands in its place; none is no error. The launcher must have let go of it. */
  async setRemove(set: string, options?: StreamOptions): Promise<void> {
    none(await this.#wire.call('set.remove', { set }, options), 'set.remove');
  }
}
