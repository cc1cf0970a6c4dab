/** A service with its clients and what it speaks. */
import { forward, refuse, type ServiceProtocol } from './protocol.ts';
import { GoProxy } from './goproxy.ts';
import { Npm } from './npm.ts';
import { normalizeName, Pypi } from './pypi.ts';
import type { Service } from './service.ts';
import { UpstreamClient } from './upstream-client.ts';
import { VersionPins } from './version-pins.ts';

export interface OpenService extends AsyncDisposable {
  readonly protocol: ServiceProtocol;
  readonly upstream: UpstreamClient;
  readonly files: UpstreamClient | undefined;
}

export function openService(service: Service): OpenService {
  const { headers = {} } = service;
  const upstream = new UpstreamClient(service.upstream, headers);
  // The credential is for the index; its files may be anybody's.
  const files = service.files === undefined ? undefined : new UpstreamClient(service.files, {});
  const protocol = protocolOf(service, upstream, files);
  return { protocol, upstream, files, [Symbol.asyncDispose]: () => protocol[Symbol.asyncDispose]() };
}

function protocolOf(
  { kind, pins: rules }: Service,
  upstream: UpstreamClient,
  files: UpstreamClient | undefined,
): ServiceProtocol {
  const asIs = (name: string): string => name;
  const pinned = (normalize: (name: string) => string): VersionPins | undefined =>
    rules === undefined ? undefined : new VersionPins(rules, normalize);
  switch (kind) {
    case 'pypi':
      return new Pypi({ upstream, files, pins: pinned(normalizeName) });
    case 'npm':
      return new Npm({ upstream, pins: pinned(asIs) });
    case 'goproxy': {
      const pins = pinned(asIs);
      return pins === undefined ? passing(upstream, READING) : new GoProxy(upstream, pins);
    }
    case 'generic':
      return passing(upstream);
  }
}

const READING: readonly string[] = ['GET', 'HEAD'];

/** Everything goes on as it is; `methods` are those that may, all when absent. */
const passing = (upstream: UpstreamClient, methods?: readonly string[]): ServiceProtocol => ({
  handle: ({ method, target }) =>
    Promise.resolve(methods?.includes(method) === false ? refuse(405, 'the service is read only') : forward(target)),
  [Symbol.asyncDispose]: () => upstream[Symbol.asyncDispose](),
});
