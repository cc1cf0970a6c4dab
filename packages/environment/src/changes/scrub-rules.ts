/** What never belongs into a layer that others build on: traces of whoever worked in the sandbox, and what can be made again. */

export interface ScrubRule {
  readonly name: string;
  /** Of a path without a slash at either end, its bytes as Latin-1; what is below a match must match as well. */
  readonly pattern: RegExp;
  readonly why: string;
}

const home = '(?:root|home/[^/]+)';
/** At or below. */
const tree = (path: string): RegExp => new RegExp(`^${path}(?:/|$)`, 's');
/** Below: the directory itself stays. */
const below = (path: string): RegExp => new RegExp(`^${path}/.`, 's');
/** At or below a name anywhere. */
const anywhere = (name: string): RegExp => new RegExp(`(?:^|/)${name}(?:/|$)`, 's');

export const defaultScrubRules: readonly ScrubRule[] = [
  {
    name: 'shell-history',
    pattern: new RegExp(
      `^${home}/\\.(?:(?:bash|zsh|ash|sh|python|node_repl|sqlite|mysql|psql|rediscli|irb|lua)_history|zhistory|histfile|lesshst|viminfo|wget-hsts)$`,
      's',
    ),
    why: 'tells what was typed',
  },
  {
    name: 'ssh-known-hosts',
    pattern: new RegExp(`^${home}/\\.ssh/(?:known_hosts(?:\\.old)?|agent(?:/|$))`, 's'),
    why: 'tells what was connected to',
  },
  {
    name: 'user-cache',
    pattern: tree(`${home}/\\.(?:cache|npm/_(?:cacache|logs|npx)|local/share/Trash)`),
    why: 'can be made again',
  },
  {
    name: 'package-cache',
    pattern: below('var/(?:cache/(?:apt|dnf|yum|apk|debconf|man|fontconfig)|lib/apt/lists)'),
    why: 'is fetched again by the package manager',
  },
  { name: 'logs', pattern: below('var/log'), why: 'tells what happened in the sandbox' },
  { name: 'temporary', pattern: below('(?:tmp|var/tmp|run|dev/shm)'), why: 'is of one run' },
  { name: 'python-bytecode', pattern: anywhere('__pycache__'), why: 'is made again from the sources' },
  {
    name: 'tool-cache',
    pattern: anywhere('\\.(?:pytest_cache|mypy_cache|ruff_cache|tox|nox|gradle/caches|ipynb_checkpoints)'),
    why: 'is made again by the tool',
  },
  {
    name: 'editor-swap',
    pattern: /(?:^|\/)(?:\.[^/]*\.sw[a-p]|\.#[^/]*|#[^/]+#|[^/]+~)$/s,
    why: 'is what an editor left of a file',
  },
  {
    name: 'machine-identity',
    pattern: /^(?:etc\/machine-id|etc\/ssh\/ssh_host_[^/]*|var\/lib\/(?:dbus\/machine-id|systemd\/random-seed))$/s,
    why: 'is to differ from sandbox to sandbox',
  },
];
