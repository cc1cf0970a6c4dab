/** Mirror services as the operator defines them: HTTP servers that sandboxes reach by name, through the node, without its credentials. */
import { readFileSync } from 'node:fs';
import { PlatformError } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import { Type } from 'typebox';
import { MAX_PINNED_VERSIONS, MAX_SERVICE_HEADERS, MAX_SERVICES } from './bounds.ts';

const closed = { additionalProperties: false } as const;

const serviceKinds = ['generic', 'pypi', 'goproxy', 'npm'] as const;
/** What the service speaks; `generic` is any HTTP, which cannot be pinned. */
type ServiceKind = (typeof serviceKinds)[number];

const ServiceSchema = Type.Object(
  {
    name: Type.String({
      pattern: '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$',
      description: 'What a policy opens, and the first label of the host name.',
    }),
    kind: Type.Union(serviceKinds.map((kind) => Type.Literal(kind))),
    upstream: Type.String({
      pattern: '^https?://',
      maxLength: 2048,
      description: 'Where requests go, and nowhere else.',
    }),
    files: Type.Optional(
      Type.String({
        pattern: '^https?://',
        maxLength: 2048,
        description: 'pypi only: where the files of the index are, when that is another server. Served below /+files/.',
      }),
    ),
    headers: Type.Optional(
      Type.Record(
        Type.String({ pattern: '^[A-Za-z0-9-]{1,64}$' }),
        Type.String({ maxLength: 4096, pattern: '^[\\x20-\\x7e]*$' }),
        {
          maxProperties: MAX_SERVICE_HEADERS,
          description: 'Put on every request; a sandbox can neither see nor replace them.',
        },
      ),
    ),
    pins: Type.Optional(
      Type.Object(
        {
          before: Type.Optional(
            Type.String({
              pattern: '^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]+Z)?$',
              description: 'Versions published after this moment (UTC) do not exist.',
            }),
          ),
          allow: Type.Optional(
            Type.Array(Type.String({ minLength: 1, maxLength: 512 }), {
              maxItems: MAX_PINNED_VERSIONS,
              description:
                'What exists: `name` with all its versions, or `name@version`. With `before` both must hold.',
            }),
          ),
        },
        closed,
      ),
    ),
  },
  closed,
);

export interface VersionRules {
  readonly before?: string;
  readonly allow?: readonly string[];
}

export interface Service {
  readonly name: string;
  readonly kind: ServiceKind;
  readonly upstream: string;
  readonly files?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly pins?: VersionRules;
}

const parser = compileSchema(Type.Array(ServiceSchema, { maxItems: MAX_SERVICES }));

/**
 * Reads a file of services.
 * @throws PlatformError `config_invalid` with `details.field`
 */
export function loadServices(file: string): readonly Service[] {
  let value: unknown;
  try {
    value = JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    throw invalid('', cause instanceof SyntaxError ? 'is not JSON' : 'cannot be read', cause);
  }
  return parseServices(value);
}

/** @throws PlatformError `config_invalid` with `details.field` */
export function parseServices(value: unknown): readonly Service[] {
  // The schema has checked it; its derived type has lost the names of literals.
  const services = parser.parse(value, { what: 'the file of services', code: 'config_invalid' }) as readonly Service[];
  const names = new Set<string>();
  for (const [index, service] of services.entries()) {
    const { name, kind, upstream, files, pins } = service;
    if (names.has(name)) throw invalid(`${index}.name`, `names ${name} twice`);
    names.add(name);
    checkUrl(upstream, `${index}.upstream`);
    if (files !== undefined) checkUrl(files, `${index}.files`);
    if (files !== undefined && kind !== 'pypi') throw invalid(`${index}.files`, 'is for services of the kind pypi');
    if (pins !== undefined && kind === 'generic') {
      throw invalid(`${index}.pins`, 'need a kind whose versions are known: pypi, goproxy or npm');
    }
    if (pins?.before !== undefined && Number.isNaN(Date.parse(pins.before))) {
      throw invalid(`${index}.pins.before`, 'is no moment');
    }
  }
  return services;
}

function checkUrl(text: string, field: string): void {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') {
    throw invalid(field, 'is no URL without account, query and fragment; credentials belong into `headers`');
  }
}

const invalid = (field: string, reason: string, cause?: unknown): PlatformError =>
  new PlatformError('config_invalid', `the file of services${field === '' ? '' : `: ${field}`} ${reason}`, {
    details: { field },
    cause,
  });
