/** Configuration of an apiserver. */
import { MAX_EDGE_NUMBER } from '@dsec/contract';
import { daemonConfig } from '@dsec/kit';
import { Type, type Static } from 'typebox';

const file = { minLength: 1 } as const;

export const ApiserverConfigSchema = Type.Object(
  {
    host: Type.String({ default: '127.0.0.1', description: 'Address to listen at; loopback unless told otherwise.' }),
    port: Type.Integer({ minimum: 0, maximum: 65_535, default: 7080, description: '0 takes a free one.' }),
    socket: Type.Optional(
      Type.String({
        minLength: 1,
        description:
          'A unix socket to listen at as well, for clients on this machine; who reaches it still needs a key.',
      }),
    ),
    publicUrl: Type.Optional(
      Type.String({
        pattern: '^https?://[^/?#]+$',
        description: 'Where clients reach this server, for signed links. Default: the Host that the request names.',
      }),
    ),
    edge: Type.Integer({ minimum: 0, maximum: MAX_EDGE_NUMBER, default: 0, description: 'Number of the edge.' }),
    edgeSocket: Type.String(file),
    store: Type.String({ ...file, description: 'File of the keys and environments.' }),
    idKeyFile: Type.String({ ...file, description: 'The key that sandbox ids are checked with.' }),
    webhookFile: Type.Optional(
      Type.String({
        ...file,
        description: 'Where the behaviour of sandboxes is posted to, and what signs it. Default: nowhere.',
      }),
    ),
    linkKeyFile: Type.String({ ...file, description: 'The key of signed links, port tokens and idempotent execs.' }),
    auditDirectory: Type.String({ ...file, description: 'Directory of the audit log.' }),
    auditFileBytes: Type.Optional(
      Type.Integer({
        minimum: 4096,
        description: 'A file of the audit log is followed by another at this size. Default 32 MiB.',
      }),
    ),
    auditFiles: Type.Optional(
      Type.Integer({ minimum: 2, maximum: 65_536, description: 'Files of the audit log that are kept. Default 16.' }),
    ),
    edgeKeyFile: Type.Optional(
      Type.String({
        ...file,
        description: 'What this apiserver proves itself to the edge with. Default: the edge tells nobody apart.',
      }),
    ),
    adminKeySha256: Type.String({
      pattern: '^[0-9a-f]{64}$',
      description: 'sha256 of the first API key, which exists before any other does.',
    }),
    ...daemonConfig('apiserver'),
  },
  { additionalProperties: false },
);
export type ApiserverConfig = Static<typeof ApiserverConfigSchema>;
