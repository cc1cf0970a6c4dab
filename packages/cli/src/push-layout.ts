import { AuthFile, pushImage, type PushedImage } from '@dsec/environment';
import type { Context } from './context.ts';
import { size } from './table.ts';
import type { Progress } from './terminal/progress.ts';

export interface PushRequest {
  /** An OCI layout. */
  readonly layout: string;
  /** Where to. */
  readonly image: string;
  /** Which image of the layout. */
  readonly which?: string | undefined;
  readonly authFile?: string | undefined;
  readonly insecure?: readonly string[] | undefined;
}

/** Puts an image of an OCI layout into a registry. */
export async function pushLayout(context: Context, request: PushRequest, progress: Progress): Promise<PushedImage> {
  const { layout, image, which, authFile, insecure = [] } = request;
  const auth = await AuthFile.find({ path: authFile, variables: context.variables });
  progress.step(`pushing ${image}`);
  return await pushImage(context, {
    path: layout,
    image: which,
    reference: image,
    auth,
    insecure,
    signal: context.interrupted,
    onBlob: ({ digest, doneBytes, totalBytes }) =>
      progress.detail(`${digest.slice(0, 19)} ${size(doneBytes)} of ${size(totalBytes)}`),
  });
}
