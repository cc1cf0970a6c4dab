import type { EnvironmentConfig } from '@dsec/contract';
import type { ImageConfig } from './image-schema.ts';

/** Without a PATH of its own an image gets what container engines give it. */
export const DEFAULT_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

const ENV_ENTRY = /^([A-Za-z_][A-Za-z0-9_.-]{0,255})=([^\0]*)$/s;

/**
 * What an image says about how its processes run. Variables whose names no shell can hold are left out: nothing could read them.
 */
export const environmentConfig = ({ config }: ImageConfig): EnvironmentConfig => {
  const env = new Map([['PATH', DEFAULT_PATH]]);
  for (const entry of config?.Env ?? []) {
    const match = ENV_ENTRY.exec(entry);
    if (match?.[1] !== undefined) env.set(match[1], match[2] ?? '');
  }
  return {
    env: Object.fromEntries(env),
    user: config?.User || 'root',
    workdir: config?.WorkingDir || '/',
    entrypoint: [...(config?.Entrypoint ?? [])],
    cmd: [...(config?.Cmd ?? [])],
    labels: { ...config?.Labels },
    ...exposed(Object.keys(config?.ExposedPorts ?? {})),
  };
};

const MAX_EXPOSED = 1024;
const EXPOSED = /^([0-9]{1,5})(?:\/(tcp|udp|sctp))?$/;

/** What is no port is left out: it opens nothing anyway. */
const exposed = (ports: readonly string[]): Pick<EnvironmentConfig, 'exposedPorts'> => {
  const found = ports.flatMap((port) => {
    const [, number, protocol = 'tcp'] = EXPOSED.exec(port.toLowerCase()) ?? [];
    return number === undefined ? [] : [`${number}/${protocol}`];
  });
  return found.length === 0 ? {} : { exposedPorts: [...new Set(found)].slice(0, MAX_EXPOSED) };
};
