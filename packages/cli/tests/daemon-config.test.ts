import { expect, test } from 'vitest';
import { daemonVariables } from '../src/server/daemon-config.ts';

test('every daemon that reads variables is handed its own, and nothing else of the caller', () => {
  const read = {
    DSEC_EDGE_SANDBOXES: '9',
    DSEC_APISERVER_X: '1',
    DSEC_PACKER_LOG_LEVEL: 'debug',
    DSEC_LAYERD_PEERS: '',
  };
  expect(
    daemonVariables({
      ...read,
      DSEC_API_KEY: 'k',
      DSEC_BLOB_SECRET_ACCESS_KEY: 's',
      PATH: '/',
      DSEC_EDGE_NONE: undefined,
    }),
  ).toEqual(read);
});
