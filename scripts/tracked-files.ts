import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';

/** Files that are tracked, or would be if added: what a commit can hold. Paths are relative to the working directory. */
export function trackedFiles(): readonly string[] {
  const listed = execFileSync('git', ['ls-files', '-z', '--cached', '--others', '--exclude-standard'], {
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  return listed.split('\0').filter((path) => path !== '' && existsSync(path));
}

/** The hand-written TypeScript of the packages and of the suites that span packages. */
export function sourceFiles(): readonly string[] {
  return trackedFiles().filter((path) => /^(packages|tests)\/.*\.ts$/.test(path));
}
