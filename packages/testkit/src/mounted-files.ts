import { mkdir } from 'node:fs/promises';
import { run, SystemClock } from '@dsec/kit';

const clock = new SystemClock();
const PATH = '/usr/sbin:/usr/bin:/sbin:/bin';

const tool = (program: string, ...args: string[]) =>
  run([program, ...args], { clock, env: { PATH }, timeoutMs: 30_000 });

/** mount(2), which differs. */
const SYS_MOUNT = process.arch === 'arm64' ? 40 : 165;
const MS_RDONLY = 1;

/** Has the kernel mount an EROFS image and its data from their files: mount(8) would put loop devices between. */
export const mountedFiles = async (
  image: string,
  data: string | readonly string[] | undefined,
  at: string,
): Promise<AsyncDisposable> => {
  await mkdir(at, { recursive: true });
  const program = `my $type = "erofs"; syscall(${SYS_MOUNT}, $ARGV[0], $ARGV[1], $type, ${MS_RDONLY}, $ARGV[2]) == 0 or die $!`;
  const devices = typeof data === 'string' ? [data] : (data ?? []);
  await tool('perl', '-e', program, image, at, devices.map((path) => `device=${path}`).join(','));
  return {
    [Symbol.asyncDispose]: async () => {
      await tool('umount', at);
    },
  };
};
