/** Daemons that are killed under load, one after another. */
import { expect, test } from 'vitest';
import type { Exec, Sandbox } from '@dsec/libdsec';
import { useServer } from './started-server.ts';
import { waitFor } from './wait-for.ts';

const server = useServer();

const SANDBOXES = 50;
/** Prints a number a line until it is told to end. */
const COUNTER =
  'i=0; until [ -e /tmp/end ]; do echo $i; echo "e$i" >&2; i=$((i+1)); sleep 0.05; done; echo "total $i"; exit 9';

interface Work {
  readonly sandbox: Sandbox;
  /** Followed from its start, over whatever happens. */
  readonly followed: Exec;
  /** Started, and left alone until the end. */
  readonly abandoned: string;
}

test('with fifty sandboxes at work each daemon is killed in turn, and no command, no byte and no sandbox is lost', {
  timeout: 180_000,
}, async () => {
  const { client, environment } = server();
  const sandboxes: Sandbox[] = [];
  for await (const outcome of client.runContainers(
    { containerImage: environment, memoryLimitMb: 64, metadata: { test: 'survive' } },
    { count: SANDBOXES },
  )) {
    if ('error' in outcome) throw outcome.error;
    sandboxes.push(outcome.sandbox);
  }
  const works = await Promise.all(
    sandboxes.map(async (sandbox): Promise<Work> => {
      const followed = sandbox.runShell(COUNTER);
      const { execId } = await sandbox.execDetached(['bash', '-c', COUNTER]);
      await followed.started();
      return { sandbox, followed, abandoned: execId };
    }),
  );
  for (const role of ['edge', 'apiserver', 'launcher', 'apiserver', 'edge'] as const) {
    const before = works.map(({ followed }) => followed.offsets.stdout);
    await server().kill(role);
    await waitFor(
      `output of all after the ${role} was killed`,
      () => works.every(({ followed }, index) => followed.offsets.stdout > (before[index] ?? 0)),
      45_000,
    );
    const listed = await client.sandboxes({ metadata: { test: 'survive' } }).toArray();
    expect(listed.map(({ state }) => state)).toEqual(sandboxes.map(() => 'running'));
  }
  // All three at once.
  await Promise.all((['edge', 'apiserver', 'launcher'] as const).map((role) => server().kill(role)));
  await Promise.all(works.map(({ sandbox }) => sandbox.files.write('/tmp/end', '')));
  for (const { sandbox, followed, abandoned } of works) {
    for (const exec of [followed, sandbox.attach(abandoned)]) {
      const result = await exec;
      expect([result.exitCode, result.stdoutDropped, result.stderrDropped]).toEqual([9, 0, 0]);
      expectCounted(result.stdout, result.stderr);
    }
  }
  const outcomes = await client.stopSandboxes({ metadata: { test: 'survive' } });
  expect(outcomes).toHaveLength(SANDBOXES);
  expect(outcomes.filter((outcome) => 'error' in outcome)).toEqual([]);
  for (const { sandbox } of works) expect((await sandbox.info()).cause?.kind).toBe('stopped');
  await server().expectNoLeftovers();
});

test('a create whose edge is killed under it makes one sandbox, and a stop whose launcher is killed under it ends it', {
  timeout: 90_000,
}, async () => {
  const { client, environment } = server();
  const creating = Promise.all(Array.from({ length: 20 }, () => server().sandbox({ metadata: { test: 'create' } })));
  await server().kill('edge');
  const sandboxes = await creating;
  expect(new Set(sandboxes.map(({ sandboxId }) => sandboxId)).size).toBe(20);
  for (const sandbox of sandboxes) expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  const ids: string[] = [];
  const bulk = client.runContainers(
    { containerImage: environment, memoryLimitMb: 64, metadata: { test: 'create' } },
    { count: 30 },
  );
  let killed: Promise<void> | undefined;
  for await (const outcome of bulk) {
    if ('error' in outcome) throw outcome.error;
    ids.push(outcome.sandbox.sandboxId);
    killed ??= server().kill('apiserver');
  }
  await killed;
  expect(new Set(ids).size).toBe(30);
  expect(await client.sandboxes({ metadata: { test: 'create' } }).toArray()).toHaveLength(50);
  const stopping = client.stopSandboxes({ metadata: { test: 'create' } });
  await server().kill('launcher');
  expect((await stopping).filter((outcome) => 'error' in outcome)).toEqual([]);
  await waitFor(
    'the list to be empty',
    async () => (await client.sandboxes({ metadata: { test: 'create' } }).toArray()).length === 0,
  );
  await server().expectNoLeftovers();
});

/** Every number is there once, in its order, on both streams. */
function expectCounted(stdout: string, stderr: string): void {
  const lines = stdout.trimEnd().split('\n');
  const total = Number(/^total (\d+)$/.exec(lines.pop() ?? '')?.[1]);
  expect(total).toBeGreaterThan(10);
  expect(lines).toEqual(Array.from({ length: total }, (_, index) => String(index)));
  expect(stderr).toBe(Array.from({ length: total }, (_, index) => `e${index}\n`).join(''));
}
