/** Configuration of a resolver. */
import { Type, type Static } from 'typebox';

const uid = { minimum: 1, maximum: 4_294_967_294 } as const;
const port = { minimum: 0, maximum: 65_535 } as const;

export const ResolverConfigSchema = Type.Object(
  {
    socket: Type.String({ minLength: 1, description: 'Where the edge connects. Its directory decides who may.' }),
    egressdSocket: Type.String({ minLength: 1 }),
    address4: Type.String({
      minLength: 7,
      description: 'Where sandboxes ask: an address of this host. DNS and services listen there.',
    }),
    address6: Type.Optional(Type.String({ minLength: 2, description: 'The same for IPv6. Default: none.' })),
    dnsPort: Type.Integer({ ...port, default: 53, description: '0 takes a free one.' }),
    servicePort: Type.Integer({
      ...port,
      default: 7300,
      description: 'Of the mirror services; one of those that egressd opens. 0 takes a free one.',
    }),
    serviceZone: Type.String({
      pattern: '^[a-z0-9-]+(\\.[a-z0-9-]+)*$',
      default: 'mirror.internal',
      description: 'Services are called NAME.ZONE. `internal` is a domain of nobody on the internet.',
    }),
    servicesFile: Type.Optional(
      Type.String({
        minLength: 1,
        description: 'JSON array of the mirror services, with their credentials; read as root. Default: none.',
      }),
    ),
    nodeNetworks: Type.Array(Type.String({ minLength: 1 }), {
      maxItems: 64,
      default: [],
      description: 'CIDRs of the sandboxes and of the node; no name may resolve into them.',
    }),
    resolvConf: Type.String({
      minLength: 1,
      default: '/etc/resolv.conf',
      description: 'Names the servers that are asked.',
    }),
    uid: Type.Integer({ ...uid, description: 'The user that the resolver becomes.' }),
    gid: Type.Integer({ ...uid }),
    logLevel: Type.Union(
      (['debug', 'info', 'warn', 'error', 'silent'] as const).map((level) => Type.Literal(level)),
      { default: 'info' },
    ),
  },
  { additionalProperties: false },
);
export type ResolverConfig = Omit<Static<typeof ResolverConfigSchema>, 'logLevel'>;
