/** Configuration of an edge. */
import { MAX_EDGE_NUMBER } from '@dsec/contract';
import { daemonConfig } from '@dsec/kit';
import { Type, type Static } from 'typebox';
import { DEFAULT_HALF_LIFE_MS } from './composition-counts.ts';

const HOUR_MS = 3_600_000;
const factor = { minimum: 0.01, maximum: 10_000 } as const;

export const EdgeConfigSchema = Type.Object(
  {
    edge: Type.Integer({
      minimum: 0,
      maximum: MAX_EDGE_NUMBER,
      default: 0,
      description: 'Number of this edge; its sandbox ids carry it.',
    }),
    socket: Type.String({ minLength: 1, description: 'Where apiservers connect. Its directory decides who may.' }),
    apiserverKeySha256: Type.Optional(
      Type.String({
        pattern: '^[0-9a-f]{64}$',
        description:
          'sha256 of what apiservers prove themselves with; what comes without is told. Default: nothing is.',
      }),
    ),
    launcherSocket: Type.String({ minLength: 1 }),
    sandboxSockets: Type.String({ minLength: 1, description: 'Directory of the sockets to aether.' }),
    packerSocket: Type.String({ minLength: 1, description: 'Where the packer listens.' }),
    resolverSocket: Type.Optional(
      Type.String({ minLength: 1, description: 'Where the resolver listens. Default: sandboxes get no network.' }),
    ),
    noNetworkReason: Type.Optional(
      Type.String({
        minLength: 1,
        description: 'Why there is no resolver: what a policy that needs one is refused with.',
      }),
    ),
    publisherSocket: Type.String({ minLength: 1, description: 'Where the publisher listens.' }),
    sets: Type.Object(
      {
        setsDirectory: Type.String({
          minLength: 1,
          description: 'Where the publisher keeps sets of layers.',
        }),
        draftsDirectory: Type.String({
          minLength: 1,
          description: 'Where sets are made for the publisher; what is in it is removed at the start.',
        }),
        layersDirectory: Type.String({ minLength: 1, description: 'The layers of the node.' }),
      },
      { additionalProperties: false, description: 'Several layers are merged into a set before they are mounted.' },
    ),
    journal: Type.String({ minLength: 1, description: 'File of the journal.' }),
    behaviourDirectory: Type.String({
      minLength: 1,
      description:
        'Where it keeps what sandboxes tried and were denied; what is of none of its sandboxes is removed at the start.',
    }),
    idKeyFile: Type.String({ minLength: 1, description: 'The key that sandbox ids are checked with.' }),
    layers: Type.Optional(
      Type.Object(
        {
          directory: Type.String({ minLength: 1, description: 'The layers of the node.' }),
          fetchDirectory: Type.String({
            minLength: 1,
            description: 'Where layers are fetched to; what is in it is removed at the start.',
          }),
          layerdSocket: Type.String({ minLength: 1 }),
          blobFile: Type.Optional(
            Type.String({ minLength: 1, description: 'Which blob store they are fetched from. Default: none.' }),
          ),
        },
        { additionalProperties: false, description: 'Default: every layer that is asked for is on the node.' },
      ),
    ),
    ...daemonConfig('edge'),

    memoryMib: Type.Optional(
      Type.Integer({ minimum: 1, description: 'Memory to be shared out. Default: that of the node.' }),
    ),
    diskMib: Type.Optional(
      Type.Integer({ minimum: 1, description: 'Disk to be shared out. Default: that of the data volume.' }),
    ),
    pids: Type.Optional(
      Type.Integer({ minimum: 1, description: 'Processes to be shared out. Default: pid_max without a reserve.' }),
    ),
    sandboxes: Type.Integer({ minimum: 1, maximum: 65_536, default: 4096, description: 'Most sandboxes at once.' }),
    memoryOvercommit: Type.Number({
      ...factor,
      default: 8,
      description: 'Memory limits may add up to this many times the memory.',
    }),
    diskOvercommit: Type.Number({
      ...factor,
      default: 64,
      description: 'A quota bounds the runaway; what is really free guards the node (minDiskFreeMib).',
    }),
    pidsOvercommit: Type.Number({
      ...factor,
      default: 64,
      description: 'A limit on processes bounds the runaway; few sandboxes come near it.',
    }),
    minDiskFreeMib: Type.Integer({
      minimum: 0,
      default: 512,
      description: 'With less really free on the data volume nothing is admitted.',
    }),
    minMemoryAvailableMib: Type.Integer({ minimum: 0, default: 256 }),
    maxMemoryStallPercent: Type.Number({ minimum: 0, maximum: 100, default: 50 }),

    createConcurrency: Type.Integer({
      minimum: 1,
      maximum: 256,
      default: 8,
      description: 'Sandboxes that are made at the same time.',
    }),
    countHalfLifeHours: Type.Integer({
      minimum: 1,
      maximum: 876_000,
      default: DEFAULT_HALF_LIFE_MS / HOUR_MS,
      description: 'How long a sandbox takes to count half as much among those that ran lately from the same names.',
    }),
    reconcileMs: Type.Integer({
      minimum: 100,
      default: 30_000,
      description: 'How often the node is compared with the journal.',
    }),
  },
  { additionalProperties: false },
);
export type EdgeConfig = Static<typeof EdgeConfigSchema>;
