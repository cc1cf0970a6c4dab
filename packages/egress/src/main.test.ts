/** The resolver as the process that it is. */
import { chmod, chown, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Process, SystemClock, SystemNetwork } from '@dsec/kit';
import { WireClient } from '@dsec/native-link';
import { lacking, waitFor } from '@dsec/testkit';
import { describe, expect, test } from 'vitest';
import { NameServer, zone } from './dns/name-server.fixture.ts';

const RESOLVER_UID = 64_804;
const START_MS = 20_000;
const missing = lacking('root');
if (missing !== undefined) process.stderr.write(`skipped: the resolver as a process: ${missing}\n`);

const clock = new SystemClock();
const network = new SystemNetwork();

describe.skipIf(missing !== undefined)('a resolver', () => {
  test('serves its edge without privileges, reads its credentials before that, and ends when its stdin closes', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'dsec-resolver-'));
    await using upstream = await NameServer.start(zone({}));
    try {
      await chmod(directory, 0o755);
      const run = join(directory, 'run');
      await mkdir(run);
      await chown(run, RESOLVER_UID, RESOLVER_UID);
      const servicesFile = join(directory, 'services.json');
      const service = {
        name: 'index',
        kind: 'generic',
        upstream: 'http://127.0.0.1:1',
        headers: { authorization: 'secret' },
      };
      await writeFile(servicesFile, JSON.stringify([service]), { mode: 0o600 });
      const config = {
        socket: join(run, 'resolver.sock'),
        egressdSocket: join(run, 'egressd.sock'),
        address4: '127.0.0.1',
        dnsPort: 0,
        servicePort: 0,
        servicesFile,
        uid: RESOLVER_UID,
        gid: RESOLVER_UID,
      };
      const configFile = join(directory, 'resolver.json');
      await writeFile(configFile, JSON.stringify(config));
      const main = join(import.meta.dirname, 'main.ts');
      const argv = [process.execPath, '--disable-warning=ExperimentalWarning', main, '--config', configFile] as const;
      await using resolver = await Process.start(argv, { clock, env: { PATH: '/usr/bin:/bin' } });
      const connection = await waitFor(
        clock,
        'the socket of the resolver',
        () => network.connectUnix(config.socket),
        START_MS,
      );
      await using edge = WireClient.connect(connection, { role: 'edge', clock });
      expect(await edge.call('resolver.info', {})).toEqual({
        address4: '127.0.0.1',
        services: ['index'],
        sandboxes: 0,
        cachedNames: 0,
        refused: 0,
      });
      const status = await readFile(`/proc/${resolver.pid}/status`, 'utf8');
      expect(status).toContain(`Uid:\t${[1, 2, 3, 4].map(() => RESOLVER_UID).join('\t')}`);
      expect(status).toMatch(/CapEff:\t0+\n/);
      // Without egressd nothing can be put in force, and nothing is said to be.
      const set = edge.call('policy.set', { sandbox: 's1', policy: { default: 'allow' } });
      await expect(set).rejects.toMatchObject({ code: 'unavailable' });
      expect(upstream.asked).toEqual([]);
      resolver.stdin.end();
      expect(await resolver.exited).toEqual({ exitCode: 0, signal: undefined });
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  });

  test('does not start with a configuration that it does not understand', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'dsec-resolver-'));
    try {
      const configFile = join(directory, 'resolver.json');
      await writeFile(configFile, JSON.stringify({ address4: '127.0.0.1', port: 53 }));
      const main = join(import.meta.dirname, 'main.ts');
      const argv = [process.execPath, '--disable-warning=ExperimentalWarning', main, '--config', configFile] as const;
      await using resolver = await Process.start(argv, { clock, env: {} });
      expect((await resolver.exited).exitCode).toBe(1);
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  });
});
