import { run, type Clock } from '@dsec/kit';
import { createHash } from 'node:crypto';
import { access, mkdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';

const CACHE = join(import.meta.dirname, '../../../.cache/bench');
const PATH = '/usr/local/bin:/usr/bin:/bin';
const COMPILE_MS = 120_000;

/**
 * Compiles a static program, unless it was; its path.
 * @param source one file of C below this package, such as `floor/floor.c`
 * @throws PlatformError `host_unsuitable` without a compiler
 */
export async function compiled(source: string, clock: Clock): Promise<string> {
  const path = join(import.meta.dirname, '..', source);
  const digest = createHash('sha256')
    .update(await readFile(path))
    .digest('hex')
    .slice(0, 16);
  const program = join(CACHE, `${basename(source, '.c')}-${digest}`);
  const isBuilt = await access(program).then(
    () => true,
    () => false,
  );
  if (!isBuilt) {
    await mkdir(CACHE, { recursive: true });
    await run(['cc', '-O2', '-static', '-pthread', '-o', program, path], {
      clock,
      env: { PATH },
      timeoutMs: COMPILE_MS,
      errorCode: 'host_unsuitable',
    });
  }
  return program;
}
