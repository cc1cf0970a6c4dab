import { run, type Clock } from '@dsec/kit';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

const env = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' } as const;
/** mount(2), which differs. */
const SYS_MOUNT = process.arch === 'arm64' ? 40 : 165;
const MS_RDONLY = 1;

/** Mounts a layer straight from its files, as the launcher does: mount(8) would put loop devices between, which cannot have a second device. */
export async function mountLayer(layer: string, at: string, clock: Clock): Promise<void> {
  const data = join(layer, 'data');
  const options = existsSync(data) ? `device=${data}` : '';
  const program = `my $type = "erofs"; syscall(${SYS_MOUNT}, $ARGV[0], $ARGV[1], $type, ${MS_RDONLY}, $ARGV[2]) == 0 or die $!`;
  await run(['perl', '-e', program, join(layer, 'rootfs.erofs'), at, options], { clock, env });
}
