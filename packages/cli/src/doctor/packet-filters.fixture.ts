/** What a doctor in this network namespace finds in its packet filters, as JSON on stdout. */
import { SystemClock } from '@dsec/kit';
import { examinePacketFilters } from './examine-packet-filters.ts';

process.stdout.write(JSON.stringify(await examinePacketFilters(new SystemClock())));
