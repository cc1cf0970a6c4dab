/** What a policy does inside a sandbox, over the real launcher and aether; the network is a double. */
import { AetherClient } from '@dsec/native-link';
import { lacking } from '@dsec/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { create, EdgeFixture, stop, TemporaryDirectory } from './edge-fixture.ts';
import { NetworkDouble } from './network-double.ts';
import { NodeFixture } from './node-fixture.ts';

const missing = lacking('root', 'erofs', 'overlay', 'cgroup');
if (missing !== undefined) process.stderr.write(`skipped: policies over a real node: ${missing}\n`);

describe.skipIf(missing !== undefined)('a sandbox with an uplink', () => {
  let node: NodeFixture;
  let directory: TemporaryDirectory;
  let edge: EdgeFixture;
  const live = new Set<string>();
  beforeAll(async () => {
    node = await NodeFixture.start();
    directory = await TemporaryDirectory.make();
    edge = await EdgeFixture.start({
      launcherSocket: node.launcherSocket,
      sandboxSockets: node.sandboxSockets,
      directory: directory.path,
      sandboxNetwork: new NetworkDouble({ isLive: () => true }),
    });
  }, 60_000);
  afterAll(async () => {
    for (const sandboxId of live) await stop(edge.client, sandboxId);
    await edge[Symbol.asyncDispose]();
    await directory[Symbol.asyncDispose]();
    await node[Symbol.asyncDispose]();
  }, 60_000);

  const policy = { network: { rules: [{ action: 'allow', to: 'a.example' }] } } as const;
  const made = async (request: object): Promise<string> => {
    const { sandboxId } = await create(edge.client, { layers: [node.digest], request });
    live.add(sandboxId);
    return sandboxId;
  };
  const sh = async (sandboxId: string, script: string): Promise<string> => {
    const exec = new AetherClient(edge.client, { sandboxId }).execStart({
      execId: `x${script.length}`,
      argv: ['/bin/sh', '-c', script],
      env: {},
      stdin: 'none',
      user: 'root',
    });
    let output = '';
    for await (const item of exec) if (item.type === 'output') output += item.bytes.toString();
    await exec.result;
    return output;
  };
  const allow = (sandboxId: string): Promise<unknown> =>
    edge.client.call('policy.set', {
      sandboxId,
      principal: { keyId: 'k', project: 'p', isBuilder: false },
      update: policy,
    });

  it('finds the resolver of the node in /etc/resolv.conf from its first command on, whoever asks', async () => {
    const sandboxId = await made({ policy });
    expect(await sh(sandboxId, 'cat /etc/resolv.conf')).toMatch(/^nameserver 198\.18\.0\.1$/m);
    const user = new AetherClient(edge.client, { sandboxId });
    expect(await user.fileStat({ path: '/etc/resolv.conf', user: 'user' })).toMatchObject({ uid: 0, mode: 0o644 });
  });

  it('finds it there as soon as a change has opened something, and never before', async () => {
    const sandboxId = await made({});
    expect(await sh(sandboxId, 'cat /etc/resolv.conf')).not.toContain('nameserver');
    await allow(sandboxId);
    expect(await sh(sandboxId, 'cat  /etc/resolv.conf')).toMatch(/^nameserver 198\.18\.0\.1$/m);
  });

  it('has its policy in force although it has put something else there', async () => {
    const sandboxId = await made({});
    const aether = new AetherClient(edge.client, { sandboxId });
    await aether.fileRemove({ path: '/etc/resolv.conf', user: 'root' });
    await aether.fileMkdir({ path: '/etc/resolv.conf', user: 'root' });
    expect(await allow(sandboxId)).toMatchObject({ version: 2 });
    expect(edge.logger.records.filter(({ event }) => event === 'network.resolver')).toHaveLength(1);
  });
});
