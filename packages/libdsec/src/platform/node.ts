import { nodeTransport } from '../http/node/node-transport.ts';
import { packDirectory } from './pack-directory.ts';
import type { Platform } from './platform.ts';
import { unpackDirectory } from './unpack-directory.ts';

export const platform: Platform = {
  transport: nodeTransport,
  fetch: (url, init) => fetch(url, init),
  variable: (name) => process.env[name],
  packDirectory,
  unpackDirectory: (tar, path) => unpackDirectory(tar, path),
};
