import { InvalidArgumentError, type Command } from 'commander';

/** Options that every verb has that speaks to a server. */
export function withConnection(command: Command): Command {
  return command
    .option('--endpoint <url>', 'server to use (default: DSEC_ENDPOINT, else the server of --data)')
    .option('--data <dir>', 'data directory of a server on this machine (default: DSEC_DATA, else /var/lib/dsec)');
}

export function integer(text: string): number {
  if (!/^-?\d+$/.test(text)) throw new InvalidArgumentError('It must be a whole number.');
  return Number(text);
}

/** How many of something to keep: at least one. */
export function count(text: string): number {
  const number = integer(text);
  if (number < 1 || !Number.isSafeInteger(number)) throw new InvalidArgumentError('It must be 1 or more.');
  return number;
}

export function decimal(text: string): number {
  if (!/^\d+(\.\d+)?$/.test(text)) throw new InvalidArgumentError('It must be a number.');
  return Number(text);
}

const SIZE_UNITS: Readonly<Record<string, number>> = { '': 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40 };

/** `512M`, `4G`, or bytes. */
export function sizeBytes(text: string): number {
  const match = /^(\d+(?:\.\d+)?)([KMGT]?)i?B?$/i.exec(text);
  const unit = SIZE_UNITS[match?.[2]?.toUpperCase() ?? '?'];
  if (match === null || unit === undefined) throw new InvalidArgumentError('It must be a size such as 512M or 4G.');
  return Math.floor(Number(match[1]) * unit);
}

/** MiB of a size; a bare number is MiB already. */
export function sizeMib(text: string): number {
  return /^\d+$/.test(text) ? Number(text) : Math.floor(sizeBytes(text) / 2 ** 20);
}

const TIME_UNITS: Readonly<Record<string, number>> = { '': 1, s: 1, m: 60, h: 3600, d: 86_400 };

/** Seconds of `90`, `5m`, `2h`, `1d`. */
export function seconds(text: string): number {
  const match = /^(\d+(?:\.\d+)?)([smhd]?)$/.exec(text);
  const unit = TIME_UNITS[match?.[2] ?? '?'];
  if (match === null || unit === undefined)
    throw new InvalidArgumentError('It must be a time such as 90s, 5m, 2h or 1d.');
  return Math.round(Number(match[1]) * unit);
}

/** Collects the values of an option that may be given often. */
export const list = (text: string, earlier: readonly string[] = []): readonly string[] => [...earlier, text];

/** Collects `KEY=VALUE` of an option that may be given often; the value may hold anything, `=` too. */
export function pairs(text: string, earlier: Readonly<Record<string, string>> = {}): Readonly<Record<string, string>> {
  const at = text.indexOf('=');
  if (at < 1) throw new InvalidArgumentError('It must be KEY=VALUE.');
  return { ...earlier, [text.slice(0, at)]: text.slice(at + 1) };
}

/** Collects `SERVICE=on` or `SERVICE=off` of an option that may be given often. */
export function rules(
  text: string,
  earlier: Readonly<Record<string, boolean>> = {},
): Readonly<Record<string, boolean>> {
  const match = /^([^=]+)=(on|off)$/.exec(text);
  if (match?.[1] === undefined) throw new InvalidArgumentError('It must be SERVICE=on or SERVICE=off.');
  return { ...earlier, [match[1]]: match[2] === 'on' };
}
