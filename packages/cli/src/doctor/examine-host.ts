import type { Context } from '../context.ts';
import { examineKernel } from './examine-kernel.ts';
import { examineNetwork } from './examine-network.ts';
import { examinePacketFilters } from './examine-packet-filters.ts';
import { examinePrograms } from './examine-programs.ts';
import { examineResources } from './examine-resources.ts';
import type { Finding } from './finding.ts';

/** Looks at everything; nothing is changed. */
export async function examineHost(context: Context): Promise<readonly Finding[]> {
  return [
    ...(await examineResources(context)),
    ...(await examinePrograms(context)),
    ...(await examineKernel(context)),
    ...(await examineNetwork()),
    ...(await examinePacketFilters(context.clock)),
  ];
}
