import { PlatformError } from '@dsec/contract';
import type { Recipe, RecipeFile, RecipeUser } from './recipe.ts';

/** The kernel's bound for one argument (MAX_ARG_STRLEN), less some room. */
const MAX_HOOK_BYTES = 128 * 1024 - 1024;

const DEFAULT_SHELL = '/bin/bash';

/**
 * What mmdebstrap runs when the packages are installed: users, then files (which may belong to them), then commands. All of it runs inside
 * the chroot, so that links in it lead nowhere else. `$1` is the root directory.
 *
 * @param sources the prepared copies of the recipe's files, in its order
 * @throws PlatformError `recipe_invalid` when a command and the environment are too long together
 */
export const recipeHooks = (recipe: Recipe, sources: readonly string[]): string[] => {
  const env = Object.entries(recipe.env ?? {}).map(([name, value]) => quote(`${name}=${value}`));
  const commands = recipe.commands ?? [];
  const hooks = [
    ...(recipe.users ?? []).map(userHook),
    ...(recipe.files ?? []).flatMap((file, index) => fileHooks(file, sources[index] ?? '')),
    ...commands.map((command, index) =>
      [
        say(`running command ${index + 1} of ${commands.length}`),
        ['chroot "$1" /usr/bin/env HOME=/root', ...env, '/bin/sh -ec', quote(command), '</dev/null >&2'].join(' '),
      ].join('; '),
    ),
    ...(recipe.user === undefined ? [] : [`chroot "$1" id -u ${quote(recipe.user)} >&2`]),
  ];
  const tooLong = hooks.findIndex((hook) => Buffer.byteLength(hook) > MAX_HOOK_BYTES);
  if (tooLong !== -1) {
    throw new PlatformError('recipe_invalid', 'A command of the recipe and its env are too long together', {
      details: { field: 'commands', limit: MAX_HOOK_BYTES },
    });
  }
  return hooks;
};

const userHook = (user: RecipeUser): string => {
  const gid = user.gid ?? user.uid;
  const script = [
    'getent group "$2" >/dev/null || groupadd --gid "$2" "$1"',
    'useradd --create-home --uid "$3" --gid "$2" --shell "$4" "$1"',
    ...(user.sudo === undefined
      ? []
      : [
          'mkdir -p /etc/sudoers.d',
          'printf "%s ALL=(ALL:ALL) NOPASSWD: ALL\\n" "$1" >"/etc/sudoers.d/$1"',
          'chmod 0440 "/etc/sudoers.d/$1"',
        ]),
  ].join('\n');
  const args = [user.name, String(gid), String(user.uid), user.shell ?? DEFAULT_SHELL];
  return `${say(`adding user ${user.name}`)}; ${inChroot(script, args)} </dev/null >&2`;
};

/**
 * mmdebstrap copies the file in itself (`upload`, which finds the place inside the chroot): without root the hooks run as mapped users, who may
 * not read what belongs to the caller.
 */
const fileHooks = (file: RecipeFile, source: string): string[] => [
  `${inChroot('mkdir -p -- "${1%/*}/"', [file.path])} >&2`,
  `upload ${quote(source)} ${quote(file.path)}`,
  `${inChroot('chmod "$2" "$1"; chown "$3" "$1"', [file.path, file.mode ?? '0644', file.owner ?? '0:0'])} >&2`,
];

const inChroot = (script: string, args: readonly string[]): string =>
  ['chroot "$1" /bin/sh -ec', quote(script), 'sh', ...args.map(quote)].join(' ');

/** A line in the form of mmdebstrap's own, so that it shows as progress. */
const say = (text: string): string => `echo ${quote(`I: ${text}...`)} >&2`;

const quote = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;
