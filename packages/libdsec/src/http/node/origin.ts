/** A server as its address names it. */
export interface Origin {
  /** Scheme, host and port, as the requests of this client write it. */
  readonly url: string;
  readonly isSecure: boolean;
  /** As the header of this name has it. */
  readonly host: string;
  readonly hostname: string;
  readonly port: number;
  /** Where it is reached instead, when it is on this machine. */
  readonly socketPath: string | undefined;
  /** The newest TLS session, which makes the next connection quicker. */
  session: Buffer | undefined;
}

/** What of `url` is before its path. */
export function originPart(url: string): string {
  const end = url.indexOf('/', url.indexOf('//') + 2);
  return end === -1 ? url : url.slice(0, end);
}

export function parseOrigin(url: string, socketPath?: string): Origin {
  const { host, hostname, port, protocol } = new URL(url);
  const isSecure = protocol === 'https:';
  return {
    url,
    isSecure,
    host,
    hostname: hostname.replace(/^\[(.*)\]$/, '$1'),
    port: port === '' ? (isSecure ? 443 : 80) : Number(port),
    socketPath,
    session: undefined,
  };
}
