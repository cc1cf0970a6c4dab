/** What is left when the process that builds is killed in the middle. */
import { mkdir, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Process } from '@dsec/kit';
import { waitFor } from '@dsec/testkit';
import { describe, expect, it } from 'vitest';
import { importImage } from './index.ts';
import { clock, PATH, script, testPlace, tool } from './build.fixture.ts';
import { ociLayout, saveLayout } from './oci/oci.fixture.ts';
import { tarOf } from './tar/tar.fixture.ts';

const TIMEOUT_MS = 20_000;

/** Whether any process has the text on its command line or in its environment. */
const isMentioned = async (text: string): Promise<boolean> => {
  for (const pid of (await readdir('/proc')).filter((name) => /^[0-9]+$/.test(name))) {
    if (Number(pid) === process.pid) continue;
    for (const file of ['cmdline', 'environ']) {
      // Processes come and go while they are listed.
      const content = await readFile(`/proc/${pid}/${file}`, 'latin1').catch(() => '');
      if (content.includes(text)) return true;
    }
  }
  return false;
};

describe('a build whose process is killed', () => {
  it('leaves no process and no mount, and the next build removes its files', { timeout: 60_000 }, async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    const ready = join(place.path, 'ready');
    const mmdebstrap = await script(
      place.path,
      `mkdir "$TMPDIR/chroot" "$TMPDIR/chroot/sys"
mount -t tmpfs dsec-test "$TMPDIR/chroot/sys"
echo precious >"$TMPDIR/chroot/sys/file"
sleep 1000 &
echo x >'${ready}'
exec sleep 1000`,
    );
    await mkdir(join(place.path, 'work'));
    const child = await Process.start(
      [process.execPath, join(import.meta.dirname, 'build-child.fixture.ts'), layersDirectory, mmdebstrap],
      { clock, env: { PATH, NODE_NO_WARNINGS: '1' }, stdout: 'ignore' },
    );
    try {
      await waitFor(
        clock,
        'the build is in its middle',
        async () => (await readFile(ready, 'utf8').catch(() => '')) === 'x\n',
        TIMEOUT_MS,
      );
      const [draft] = await readdir(layersDirectory);
      expect(draft).toMatch(/^\.build-/);
      expect(await readFile('/proc/self/mountinfo', 'utf8')).not.toContain(draft);
    } finally {
      child.signal('SIGKILL');
      await child.exited;
    }
    await waitFor(clock, 'its processes are gone', async () => !(await isMentioned(layersDirectory)), TIMEOUT_MS);
    expect(await readdir(layersDirectory)).toHaveLength(1);
    const path = await saveLayout(ociLayout({ layers: [tarOf({ name: 'a' })] }), join(place.path, 'layout'));
    const built = await importImage(place.context, { path });
    expect(await readdir(layersDirectory)).toEqual([built.layers[0]?.slice(7)]);
  });

  it('is not removed while something is mounted in what it left', async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    const inside = join(layersDirectory, '.build-4194999-1-gone', 'with space');
    await mkdir(inside, { recursive: true });
    const path = await saveLayout(ociLayout({ layers: [tarOf({ name: 'a' })] }), join(place.path, 'layout'));
    await tool('mount', '-t', 'tmpfs', 'dsec-test', inside);
    try {
      await importImage(place.context, { path });
      expect(await readdir(layersDirectory)).toContain('.build-4194999-1-gone');
    } finally {
      await tool('umount', inside);
    }
    await importImage(place.context, { path });
    expect(await readdir(layersDirectory)).toHaveLength(1);
  });
});
