import { lacking, takeHostSnapshot, expectNoLeak, TestServer, waitFor } from '@dsec/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup');

describe.skipIf(lack !== undefined)(`a supervised server${lack === undefined ? '' : ` (${lack})`}`, () => {
  let started: TestServer | undefined;
  beforeAll(async () => {
    started = await TestServer.start({ volumeSize: '16G' });
  }, 900_000);
  afterAll(() => started?.[Symbol.asyncDispose](), 120_000);
  const server = (): TestServer => started ?? expect.unreachable();

  test.each(['apiserver', 'edge', 'launcher'] as const)(
    'a killed %s is started again, and commands that run go on',
    async (name) => {
      await using sandbox = await server().client.runContainer({
        containerImage: 'debian',
        memoryLimitMb: 128,
        diskLimitMb: 256,
      });
      await server().poolFull();
      const before = await takeHostSnapshot(server());
      const exec = sandbox.runShell('for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.5; done; exit 4');
      await exec.started();
      await server().killDaemon(name);
      const result = await exec;
      expect(result.stdout).toBe([1, 2, 3, 4, 5, 6, 7, 8].map((i) => `line ${i}\n`).join(''));
      expect(result.exitCode).toBe(4);
      expect((await sandbox.exec(['true'])).exitCode).toBe(0);
      await expectNoLeak(server().clock, server(), before);
    },
    60_000,
  );

  test('each daemon but the launcher has given root up', async () => {
    const { readFile } = await import('node:fs/promises');
    const uidOf = async (name: 'launcher' | 'edge' | 'apiserver'): Promise<string | undefined> =>
      /^Uid:\t(\d+)/m.exec(await readFile(`/proc/${await server().pid(name)}/status`, 'utf8'))?.[1];
    expect(await Promise.all([uidOf('launcher'), uidOf('edge'), uidOf('apiserver')])).toEqual(['0', '64801', '64802']);
  });

  test('sandboxes outlive the server, and the next one on the directory takes them over', async () => {
    const sandbox = await server().client.runContainer({
      containerImage: 'debian',
      memoryLimitMb: 128,
      diskLimitMb: 256,
    });
    const { execId } = await sandbox.execDetached(['sh', '-c', 'echo before; sleep 5; echo after']);
    await server().stopDaemons();
    await using next = await TestServer.start({ data: server().data, environments: [] });
    const same = await next.client.getSandbox(sandbox.sandboxId);
    await waitFor(next.clock, 'the sandbox is adopted', async () => (await same.info()).state === 'running');
    expect((await same.attach(execId)).stdout).toBe('before\nafter\n');
    await same.stop();
    started = undefined;
  }, 60_000);
});
