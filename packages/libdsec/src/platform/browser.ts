import { PlatformError } from '@dsec/contract';
import { fetchTransport } from '../http/fetch-transport.ts';
import type { Platform } from './platform.ts';

const noDirectories = (): Promise<never> =>
  Promise.reject(new PlatformError('invalid_argument', 'a browser has no directories: write the files one by one'));

export const platform: Platform = {
  transport: () => fetchTransport((url, init) => fetch(url, init)),
  fetch: (url, init) => fetch(url, init),
  variable: () => undefined,
  packDirectory: noDirectories,
  unpackDirectory: noDirectories,
};
