import { PlatformError } from '@dsec/contract';
import type { DSecClient, EnvironmentUsage } from '@dsec/libdsec';

/** Who uses an environment of a listing; undefined for one that was taken away meanwhile. */
export async function usageIfThere(
  client: DSecClient,
  name: string,
  signal: AbortSignal,
): Promise<EnvironmentUsage | undefined> {
  try {
    return await client.environments.usage(name, { signal });
  } catch (error) {
    if (PlatformError.is(error) && error.code === 'environment_not_found') return undefined;
    throw error;
  }
}
