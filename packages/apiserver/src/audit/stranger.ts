/** What somebody asked the edge for past the apiserver, as a record: it came with no key, and what it says of itself is not proved. */
import type { StrangerOperation } from '@dsec/contract';
import type { AuditFields } from './audit-line.ts';
import { STRANGER_OPERATION } from './operations.ts';

export const strangerFields = ({ method, sandboxId, claimedKeyId, atMs, missed }: StrangerOperation): AuditFields => ({
  operation: STRANGER_OPERATION,
  outcome: 'unproved',
  ...(sandboxId === undefined ? {} : { sandboxId }),
  detail: {
    method,
    askedAtMs: atMs,
    ...(claimedKeyId === undefined ? {} : { claimedKeyId }),
    ...(missed === 0 ? {} : { missed }),
  },
});
