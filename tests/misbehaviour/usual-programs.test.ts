/** What agents work with goes on under the lists of calls and requests. */
import { expect, test } from 'vitest';
import { useServer } from '../e2e/started-server.ts';

const server = useServer();

/** Each prints what it did last. */
const PROGRAMS = [
  ['processes', `python3 -c 'import multiprocessing as m; print(sum(m.Pool(2).map(abs, [-1, -2])))'`, '3'],
  ['threads', `python3 -c 'import threading as t; x = t.Thread(target=lambda: print(1)); x.start(); x.join()'`, '1'],
  [
    'a database',
    `python3 -c 'import sqlite3; c = sqlite3.connect("q"); c.execute("create table t(x)"); c.commit(); print(2)'`,
    '2',
  ],
  ['another user', 'su user -c "id -u"', '1000'],
  ['packages', 'dpkg --configure -a && dpkg-query -W -f "\\${Status}" tar', 'install ok installed'],
  [
    'tmux',
    `tmux new-session -d 'echo in-tmux > t; sleep 0.1' && while [ ! -s t ]; do sleep 0.05; done; cat t`,
    'in-tmux',
  ],
  ['a terminal of its own', 'script -qec "stty size; tty" /dev/null | tail -1 | cut -c1-8', '/dev/pts'],
  [
    'copies',
    'head -c 100000 /dev/urandom > f && cp --reflink=auto f g && tar cf - g | tar xf - -C /tmp && cmp f /tmp/g && echo same',
    'same',
  ],
  ['addresses', 'ip -o link show lo | cut -d: -f2', 'lo'],
  ['attributes', 'touch l && lsattr l >/dev/null && echo shown', 'shown'],
  ['limits and priorities', 'nice -n 5 prlimit --nofile=100 sh -c "nice; ulimit -n" | xargs', '5 100'],
  [
    'a sandbox inside',
    'unshare -Urmp --fork sh -c "mount -t tmpfs x /mnt && mkdir /mnt/p && mount -t proc p /mnt/p && ls /mnt/p | head -1"',
    '1',
  ],
  [
    'a tracer',
    `python3 -c 'import ctypes, os; pid = os.fork(); pid or (ctypes.CDLL(None).ptrace(0, 0, 0, 0), os._exit(7)); print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))'`,
    '7',
  ],
] as const;

test('they do what they do', { timeout: 120_000 }, async () => {
  await using sandbox = await server().sandbox();
  const outcomes: [string, string][] = [];
  for (const [name, script] of PROGRAMS) {
    const result = await sandbox.runShell(`mkdir -p ~/w && cd ~/w && ${script}`, { timeoutMs: 30_000 });
    outcomes.push([name, result.stdout.trim().split('\n').at(-1) + (result.exitCode === 0 ? '' : ` ${result.stderr}`)]);
  }
  expect(outcomes).toEqual(PROGRAMS.map(([name, , told]) => [name, told]));
});
