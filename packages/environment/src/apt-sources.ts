import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';

/** One stanza of deb822 sources(5), by field name in lower case. */
type Stanza = ReadonlyMap<string, string>;

export interface AptSourcesOptions {
  /** @default /etc/apt */
  readonly directory?: string;
  /** @default /etc/os-release */
  readonly osRelease?: string;
}

export interface AptSources {
  /** The release that the sources are for. */
  readonly suite: string;
  /** In deb822 form. */
  readonly text: string;
}

/**
 * The package sources of this machine, cut down to those of one release: what mmdebstrap is fed, so that no host of a registry needs to be
 * known here.
 *
 * Third-party sources are left out: they have a suite or components of their own, never `main` of the release.
 *
 * @param suite a release, or `host` for that of this machine
 * @throws PlatformError `host_unsuitable` when the machine has no sources from which the release could be made
 */
export const hostAptSources = async (
  suite: string,
  components: readonly string[] | undefined,
  options: AptSourcesOptions = {},
): Promise<AptSources> => {
  const host = await osRelease(options.osRelease ?? '/etc/os-release');
  const wanted = suite === 'host' ? host.codename : suite;
  const stanzas = await readStanzas(options.directory ?? '/etc/apt');
  const exact = stanzas.flatMap((stanza) => forSuite(stanza, wanted, wanted));
  // One archive holds all releases of a distribution, under equal paths.
  const found =
    exact.length > 0 || wanted === '' || host.id !== 'debian'
      ? exact
      : stanzas.flatMap((stanza) => forSuite(stanza, host.codename, wanted));
  if (wanted === '' || found.length === 0) {
    throw new PlatformError('host_unsuitable', `This machine has no apt sources for ${wanted || 'its own release'}`, {
      details: { missing: `apt sources for ${wanted || 'the release of this machine'}` },
    });
  }
  const text = found
    .map((stanza) => withComponents(stanza, components))
    .map((stanza) => [...stanza].map(([field, value]) => `${field}: ${value}`).join('\n'))
    .join('\n\n');
  return { suite: wanted, text: `${text}\n` };
};

/** Keeps of a stanza the suites of one release (`bookworm`, `bookworm-updates`, `bookworm-security`), renamed to another if need be. */
const forSuite = (stanza: Stanza, from: string, to: string): Stanza[] => {
  const isBinary = (stanza.get('types') ?? '').split(/\s+/).includes('deb');
  const isEnabled = !/^(no|false|0)$/i.test(stanza.get('enabled') ?? 'yes');
  const hasMain = (stanza.get('components') ?? '').split(/\s+/).includes('main');
  const suites = (stanza.get('suites') ?? '')
    .split(/\s+/)
    .filter((suite) => suite === from || suite === `${from}-updates` || suite === `${from}-security`)
    .map((suite) => `${to}${suite.slice(from.length)}`);
  if (!isBinary || !isEnabled || !hasMain || suites.length === 0) return [];
  return [new Map([...stanza, ['types', 'deb'], ['suites', suites.join(' ')]])];
};

const withComponents = (stanza: Stanza, components: readonly string[] | undefined): Stanza =>
  components === undefined ? stanza : new Map([...stanza, ['components', components.join(' ')]]);

const readStanzas = async (directory: string): Promise<Stanza[]> => {
  const parts = join(directory, 'sources.list.d');
  const names = (await readdir(parts).catch(() => [])).sort((a, b) => a.localeCompare(b, 'en'));
  const stanzas = parseOneLine(await readText(join(directory, 'sources.list')));
  for (const name of names) {
    if (name.endsWith('.list')) stanzas.push(...parseOneLine(await readText(join(parts, name))));
    if (name.endsWith('.sources')) stanzas.push(...parseDeb822(await readText(join(parts, name))));
  }
  return stanzas;
};

const readText = (path: string): Promise<string> => readFile(path, 'utf8').catch(() => '');

/** `deb [option=value …] uri suite component …` */
const parseOneLine = (text: string): Stanza[] =>
  text.split('\n').flatMap((line) => {
    const match = /^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)/.exec(line);
    if (match === null) return [];
    const [, options = '', uri = '', suite = '', components = ''] = match;
    const fields = options
      .split(/\s+/)
      .filter((option) => option.includes('='))
      .map((option): [string, string] => {
        const at = option.indexOf('=');
        const name = option.slice(0, at).toLowerCase();
        return [name === 'arch' ? 'architectures' : name, option.slice(at + 1).replaceAll(',', ' ')];
      });
    return [
      new Map([['types', 'deb'], ['uris', uri], ['suites', suite], ['components', components.trim()], ...fields]),
    ];
  });

const parseDeb822 = (text: string): Stanza[] =>
  text
    .split('\n')
    .filter((line) => !line.startsWith('#'))
    .join('\n')
    .split(/\n\s*\n/)
    .flatMap((paragraph) => {
      const stanza = new Map<string, string>();
      let last = '';
      for (const line of paragraph.split('\n')) {
        const match = /^([A-Za-z][A-Za-z0-9-]*):\s*(.*)$/.exec(line);
        if (match !== null) {
          last = (match[1] ?? '').toLowerCase();
          stanza.set(last, (match[2] ?? '').trim());
        } else if (/^\s/.test(line) && last !== '') {
          // Continued: kept as it is, for a key may stand in the stanza itself.
          stanza.set(last, `${stanza.get(last) ?? ''}\n${line}`);
        }
      }
      return stanza.size > 0 ? [stanza] : [];
    });

const osRelease = async (path: string): Promise<{ readonly id: string; readonly codename: string }> => {
  const text = await readText(path);
  const field = (name: string): string => new RegExp(`^${name}="?([^"\n]*)"?$`, 'm').exec(text)?.[1] ?? '';
  return { id: field('ID'), codename: field('VERSION_CODENAME') };
};
