import type { EntrypointMode, Environment } from '@dsec/contract';
import { AuthFile, parsePlatform, pullImage, type BuildContext, type LayerProgress } from '@dsec/environment';
import type { DSecClient } from '@dsec/libdsec';
import type { Context } from './context.ts';
import { environmentName } from './environment-name.ts';
import { openHolds } from './prune-layers.ts';
import type { DataDirectory } from './server/data-directory.ts';
import { size } from './table.ts';
import type { Progress } from './terminal/progress.ts';

export interface PullRequest {
  readonly image: string;
  /** @default the image as it was named, without a digest */
  readonly name?: string | undefined;
  /** `linux/amd64`. @default that of this machine */
  readonly platform?: string | undefined;
  /** Consecutive layers of the image become one up to this size. */
  readonly mergeUpToBytes?: number | undefined;
  /** Whether what the image says is to run does. @default 'ignore' */
  readonly entrypoint?: EntrypointMode | undefined;
  readonly timeoutS?: number | undefined;
  readonly authFile?: string | undefined;
  readonly insecure?: readonly string[] | undefined;
  readonly mirrors?: Readonly<Record<string, readonly string[]>> | undefined;
}

/** Pulls an image into the layers of the server of this machine, and names it there. */
export async function pullEnvironment(
  context: Context,
  client: DSecClient,
  data: DataDirectory,
  request: PullRequest,
  progress: Progress,
): Promise<Environment> {
  const { image, insecure = [], mirrors = {}, platform, timeoutS, mergeUpToBytes } = request;
  const name = environmentName(request.name ?? image.split('@')[0] ?? image);
  const auth = await AuthFile.find({ path: request.authFile, variables: context.variables });
  const download = new DownloadProgress(image, progress);
  await using holds = await openHolds(context, data);
  const build: BuildContext = {
    layersDirectory: data.layers,
    notesDirectory: data.notes,
    holds,
    clock: context.clock,
    random: context.random,
    signal: context.interrupted,
    onProgress: ({ step }) => {
      // What is stored meanwhile is not what one waits for.
      if (!download.isGoingOn) progress.detail(step);
    },
  };
  progress.step(`pulling ${image}`);
  const built = await pullImage(build, {
    reference: image,
    architecture: platform === undefined ? undefined : parsePlatform(platform),
    mergeUpToBytes,
    timeoutMs: timeoutS === undefined ? undefined : timeoutS * 1000,
    auth,
    insecure,
    mirrors,
    onLayer: (event) => download.show(event),
  });
  progress.step(`registering ${name}`);
  return await client.environments.put(name, built, { entrypoint: request.entrypoint ?? 'ignore' });
}

const BAR_CELLS = 24;

/** Shows how much of all layers is here: a bar where there is a terminal, a line for each layer that is whole. */
class DownloadProgress {
  readonly #image: string;
  readonly #progress: Progress;
  readonly #whole = new Set<string>();
  #isGoingOn = false;

  constructor(image: string, progress: Progress) {
    this.#image = image;
    this.#progress = progress;
  }

  get isGoingOn(): boolean {
    return this.#isGoingOn;
  }

  show({ layer, doneBytes, totalBytes, imageDoneBytes, imageTotalBytes, layerCount }: LayerProgress): void {
    this.#isGoingOn = imageDoneBytes < imageTotalBytes;
    const filled = Math.floor((imageDoneBytes / Math.max(1, imageTotalBytes)) * BAR_CELLS);
    const far = `${size(imageDoneBytes)} of ${size(imageTotalBytes)}`;
    if (doneBytes === totalBytes && !this.#whole.has(layer)) {
      this.#whole.add(layer);
      this.#progress.step(`pulling ${this.#image}: ${this.#whole.size} of ${layerCount} layers, ${far}`);
    }
    this.#progress.detail(`${'█'.repeat(filled)}${'░'.repeat(BAR_CELLS - filled)} ${far}`);
  }
}
