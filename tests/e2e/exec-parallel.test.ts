/** Commands side by side. */
import { expect, test } from 'vitest';
import { fileAppears, running } from './in-sandbox.ts';
import { useServer } from './started-server.ts';
import { timed } from './wait-for.ts';

const server = useServer();

const PARALLEL = 20;
const several = Array.from({ length: PARALLEL }, (_, index) => index);

test('X33 twenty commands at once, some of them long, mix nothing and hold up nobody', async () => {
  await using sandbox = await server().sandbox();
  const long = several
    .slice(0, 5)
    .map((index) =>
      sandbox.runShell(`echo long ${index}; until [ -e /tmp/go ]; do sleep 0.1; done; echo end ${index}`),
    );
  await Promise.all(long.map((exec) => exec.started()));
  const { value: results, tookMs } = await timed(() =>
    Promise.all(
      several.map((index) =>
        sandbox.runShell(`for i in 1 2 3; do echo out-${index}-$i; echo err-${index}-$i >&2; done; exit ${index}`),
      ),
    ),
  );
  for (const [index, result] of results.entries()) {
    expect(result.stdout).toBe([1, 2, 3].map((i) => `out-${index}-${i}\n`).join(''));
    expect(result.stderr).toBe([1, 2, 3].map((i) => `err-${index}-${i}\n`).join(''));
    expect(result.exitCode).toBe(index);
  }
  expect(tookMs).toBeLessThan(8000);
  await sandbox.files.write('/tmp/go', '');
  for (const [index, exec] of long.entries()) expect((await exec).stdout).toBe(`long ${index}\nend ${index}\n`);
});

test('X33 twenty calls at once in one session run one after another and each gets its own output and exit code', async () => {
  await using sandbox = await server().sandbox();
  await using session = await sandbox.session();
  const results = await Promise.all(
    several.map((index) =>
      session.run(
        `echo "start ${index}"; sleep 0.0$((RANDOM % 5)); echo "err ${index}" >&2; echo "end ${index}"; (exit ${index})`,
      ),
    ),
  );
  for (const [index, result] of results.entries()) {
    expect(result.stdout).toBe(`start ${index}\nend ${index}\n`);
    expect(result.stderr).toBe(`err ${index}\n`);
    expect(result.exitCode).toBe(index);
  }
});

test('X33 a call in a session that lasts holds up neither other sessions nor commands, files nor lists', async () => {
  await using sandbox = await server().sandbox();
  await using busy = await sandbox.session();
  await using free = await sandbox.session();
  const long = busy.run('until [ -e /tmp/go ]; do sleep 0.05; done; echo done');
  await long.started();
  expect((await free.run('echo free')).stdout).toBe('free\n');
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  expect((await sandbox.sessions()).filter((session) => session.busy)).toHaveLength(1);
  await sandbox.files.write('/tmp/go', '');
  expect((await long).stdout).toBe('done\n');
});

test('X33 what one call sets in a session the next one has, and other sessions have not', async () => {
  await using sandbox = await server().sandbox();
  await using one = await sandbox.session({ cwd: '/tmp' });
  await using other = await sandbox.session();
  await one.run('cd /var; export A=1; B=2; f() { echo "f $1"; }; alias ll=ls; sleep 77 & set -- x y; umask 027');
  expect((await one.run('pwd; echo "$A$B"; f z; jobs -r | grep -c "sleep 77"; echo "$1"; umask')).stdout).toBe(
    '/var\n12\nf z\n1\nx\n0027\n',
  );
  expect((await other.run('pwd; echo "[$A$B]"; type f 2>/dev/null | wc -l')).stdout).not.toContain('12');
  await one.close();
  expect(await running(sandbox, 'sleep 77')).toEqual([]);
});

test('X33 a hundred silent streams hold up no other sandbox', async () => {
  await using crowded = await server().sandbox();
  await using other = await server().sandbox();
  const silent = Array.from({ length: 100 }, () =>
    crowded.runShell('until [ -e /tmp/go ]; do sleep 0.5; done; echo woke'),
  );
  await Promise.all(silent.map((exec) => exec.started()));
  const { value, tookMs } = await timed(() => other.exec(['echo', 'hi']));
  expect(value.stdout).toBe('hi\n');
  expect(tookMs).toBeLessThan(2000);
  await crowded.files.write('/tmp/go', '');
  for (const exec of silent) expect((await exec).stdout).toBe('woke\n');
  expect(await fileAppears(crowded, '/tmp/go')).toBe('');
});
