export { hashSecret, newSecret } from './key-record.ts';
export { Keys, MAX_KEYS, type KeysOptions } from './keys.ts';
export { DEFAULT_PROJECT, hasRight, requireRight, type Principal, type Right } from './principal.ts';
