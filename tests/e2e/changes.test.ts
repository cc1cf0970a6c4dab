/** The changes of live sandboxes: read, made into layers, and found again in a sandbox on top of them. */
import { packChanges, Selection, type BuildContext } from '@dsec/environment';
import { SystemRandom } from '@dsec/kit';
import type { Sandbox } from '@dsec/libdsec';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';
import { clock } from './wait-for.ts';

const server = useServer();

/** Packs what a sandbox has written and names what it stood on with that above. */
async function branch(sandbox: Sandbox, name: string): Promise<void> {
  const context: BuildContext = { layersDirectory: join(server().data, 'layers'), clock, random: new SystemRandom() };
  const base = await server().client.environments.get(server().environment);
  const { config, architecture } = base.image;
  const changes = await sandbox.changes();
  const image = await packChanges(context, { changes, name, config, architecture, selection: new Selection() });
  const layers = [...image.layers, ...base.image.layers];
  await server().client.environments.put(name, { ...image, layers });
}

/** Every path with what can be told of it, and the digests of all files. */
const LIST = `cd / && for d in etc opt root srv usr/local home; do find $d -xdev 2>/dev/null; done | LC_ALL=C sort | tr '\\n' '\\0' |
  while IFS= read -r -d '' f; do if [ -d "$f" ]; then stat -c '%N %F %a %u:%g' "$f"; else stat -c '%N %F %a %u:%g %h %s' "$f"; fi; done | grep -v "'etc/\\(hosts\\|hostname\\|resolv.conf\\)'"; python3 -c "import os
for p in ('/opt/app/one','/srv/data'): print(p, sorted((n, os.getxattr(p, n)) for n in os.listxattr(p) if n.startswith('user.') or 'posix' in n))"; find etc opt root srv usr/local home -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | grep -v ' etc/\\(hosts\\|hostname\\)$'`;

describe('a sandbox on the changes of another', () => {
  test('shows files, deletions, opaque directories, renames, links, owners and modes as they were', async () => {
    await using first = await server().sandbox();
    const script = `set -e
      mkdir -p /opt/app/deep/er /srv/data; echo one > /opt/app/one; ln /opt/app/one /opt/app/two; ln -s one /opt/app/three
      mkfifo /opt/app/pipe; chmod 4755 /opt/app/two; chown 1000:33 /srv/data; chmod 1777 /srv/data
      echo more >> /etc/profile; rm -r /etc/init.d; rm -rf /usr/local/lib; mkdir /usr/local/lib; echo new > /usr/local/lib/new
      mv /etc/passwd /etc/passwd.moved; cp /etc/passwd.moved /etc/passwd; touch -d '2001-02-03 04:05:06.789' /opt/app/deep
      truncate -s 50M /opt/app/sparse; printf x | dd of=/opt/app/sparse bs=1 seek=30000000 conv=notrunc 2>/dev/null
      python3 -c "import os; os.setxattr('/opt/app/one', 'user.\xe9', b'\\0v'); os.setxattr('/srv/data', 'user.d', b'1')"`;
    const made = await first.runShell(script);
    expect(made).toMatchObject({ exitCode: 0 });
    const before = await first.runShell(LIST);
    expect(before.exitCode, before.stderr).toBe(0);
    await branch(first, 'changed:1');
    await using second = await server().client.runContainer({ containerImage: 'changed:1', memoryLimitMb: 256 });
    const after = await second.runShell(LIST);
    expect(after.stdout).toBe(before.stdout);
    const times =
      'stat -c %.9Y /opt/app/deep; du -k /opt/app/sparse | cut -f1; ls /etc/init.d 2>&1; ls -A /usr/local/lib';
    expect((await second.runShell(times)).stdout).toMatch(/^981173106\.789000000\n[0-9]+\n.*No such.*\nnew\n$/s);
  });
});

test('the key of no builder may not read changes', async () => {
  await using sandbox = await server().sandbox();
  const { key } = await server().client.keys.create('agent');
  const client = server().connect({ apiKey: key });
  const seen = await client.getSandbox(sandbox.sandboxId);
  expect(await failureOf(seen.changes())).toMatchObject({ code: 'permission_denied' });
  const builder = await server().client.keys.create('builder', { builder: true });
  const own = await server().connect({ apiKey: builder.key }).getSandbox(sandbox.sandboxId);
  const bytes = await Array.fromAsync(await own.changes());
  expect(Buffer.concat(bytes).length % 512).toBe(0);
});
