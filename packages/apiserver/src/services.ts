/** What the routes work with: made once, in `main.ts` or by a test. */
import type { SandboxIds } from '@dsec/contract';
import type { Clock, Logger, Random } from '@dsec/kit';
import type { Keys } from '@dsec/iam';
import type { RequestAudit } from './audit/request-audit.ts';
import type { EdgeLink } from './edge/edge-link.ts';
import type { Environments } from './environments/environments.ts';
import type { LinkKey } from './link-key.ts';

export interface Services {
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly keys: Keys;
  readonly audit: RequestAudit;
  readonly environments: Environments;
  readonly edge: EdgeLink;
  readonly ids: SandboxIds;
  readonly edgeNumber: number;
  readonly linkKey: LinkKey;
  /** Where clients reach this server; default: the Host that a request names. */
  readonly publicUrl: string | undefined;
}
