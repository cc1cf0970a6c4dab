/** What the edge and its packer say to each other. */
import type { EnvironmentConfig, EnvironmentImage, PackReport, PackRequest } from '@dsec/contract';

export interface PackParams {
  readonly request: PackRequest;
  readonly config: EnvironmentConfig;
  readonly architecture: string;
}

export interface PackAnswer {
  /** One layer; absent after a dry run. */
  readonly image?: EnvironmentImage;
  readonly report: PackReport;
}
