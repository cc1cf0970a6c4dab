import { PlatformError } from '@dsec/contract';
import { type Digest, parseDigest } from '../oci/digest.ts';

/** An image in a registry. */
export interface ImageReference {
  /** `docker.io`, `localhost:5000`: host and port, as they were written. */
  readonly registry: string;
  /** `library/python`: the whole path below the registry. */
  readonly repository: string;
  /** Undefined only beside a digest. */
  readonly tag: string | undefined;
  /** Counts more than the tag. */
  readonly digest: Digest | undefined;
}

export const DOCKER_HUB = 'docker.io';
const DEFAULT_TAG = 'latest';
/** Names of the Hub that mean the same account and images. */
const HUB_ALIASES = new Set(['index.docker.io', 'registry-1.docker.io', 'registry.hub.docker.com']);

const MAX_REFERENCE_CHARACTERS = 1024;
const MAX_REPOSITORY_CHARACTERS = 255;
const HOST = /^(?:\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)(?::([0-9]{1,5}))?$/;
const COMPONENT = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$/;
const TAG = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/;
const MAX_PORT = 65_535;

/**
 * Reads `[registry/]repository[:tag][@digest]` as docker does: what has no registry is on the Docker Hub, and there a single name is below
 * `library/`; without tag and digest the tag is `latest`.
 *
 * @throws PlatformError `invalid_argument` with the field `reference`; `image_unsupported` for a digest other than sha256
 */
export const parseReference = (text: string): ImageReference => {
  if (text.length > MAX_REFERENCE_CHARACTERS) throw invalid('is too long');
  const at = text.indexOf('@');
  const digest = at < 0 ? undefined : digestOf(text.slice(at + 1));
  const named = at < 0 ? text : text.slice(0, at);
  const slash = named.indexOf('/');
  const first = slash < 0 ? '' : named.slice(0, slash);
  const hasRegistry = isHostLike(first);
  const registry = hasRegistry ? registryOf(first) : DOCKER_HUB;
  const path = hasRegistry ? named.slice(slash + 1) : named;
  const colon = path.lastIndexOf(':');
  const tag = colon < 0 ? undefined : path.slice(colon + 1);
  if (tag !== undefined && !TAG.test(tag)) throw invalid('has a malformed tag');
  const repository = repositoryOf(registry, colon < 0 ? path : path.slice(0, colon));
  return { registry, repository, digest, tag: tag ?? (digest === undefined ? DEFAULT_TAG : undefined) };
};

export const printReference = ({ registry, repository, tag, digest }: ImageReference): string =>
  `${registry}/${repository}${tag === undefined ? '' : `:${tag}`}${digest === undefined ? '' : `@${digest}`}`;

/** `host[:port]` in the one form that the Docker Hub has here. Undefined for what is none. */
export const parseRegistry = (text: string): string | undefined => {
  const port = HOST.exec(text)?.[1];
  if (!HOST.test(text) || (port !== undefined && (Number(port) === 0 || Number(port) > MAX_PORT))) return undefined;
  // Such as a number that looks like an address and is none.
  if (!URL.canParse(`https://${text}`)) return undefined;
  return HUB_ALIASES.has(text) ? DOCKER_HUB : text;
};

/** What only this machine can be meant by: plain HTTP to it crosses no network. */
export const isLoopback = (hostname: string): boolean =>
  hostname === 'localhost' ||
  hostname.endsWith('.localhost') ||
  /^127(?:\.[0-9]{1,3}){3}$/.test(hostname) ||
  hostname === '[::1]';

/** A first component is a registry when no repository could have it for a name: so docker tells them apart. */
const isHostLike = (first: string): boolean =>
  first === 'localhost' || /[.:]/.test(first) || first !== first.toLowerCase();

const registryOf = (text: string): string => {
  const registry = parseRegistry(text);
  if (registry === undefined) throw invalid('has a malformed registry');
  return registry;
};

const repositoryOf = (registry: string, path: string): string => {
  const repository = registry === DOCKER_HUB && !path.includes('/') ? `library/${path}` : path;
  if (repository.length > MAX_REPOSITORY_CHARACTERS) throw invalid('has a name that is too long');
  if (repository.split('/').every((component) => COMPONENT.test(component))) return repository;
  throw invalid(path === path.toLowerCase() ? 'has a malformed name' : 'has upper-case letters in its name');
};

const digestOf = (text: string): Digest => {
  try {
    return parseDigest(text);
  } catch (error) {
    if (PlatformError.is(error) && error.code === 'image_corrupt') throw invalid('has a malformed digest');
    throw error;
  }
};

/** The text itself is left out: it may hold a password, as in an address that was pasted. */
const invalid = (reason: string): PlatformError =>
  new PlatformError('invalid_argument', `The image reference ${reason}`, {
    details: { field: 'reference', reason },
  });
