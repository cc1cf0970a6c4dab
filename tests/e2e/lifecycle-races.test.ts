/** Many who want something of sandboxes at the same time. */
import { expect, test } from 'vitest';
import { PlatformError, type Sandbox } from '@dsec/libdsec';
import { failureOf } from './failure-of.ts';
import { rawJson, rawRequest } from './raw-http.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

// The node is compared with the journal as often as can be, so that whatever it would wrongly clean away is cleaned away here.
const server = useServer({ variables: { DSEC_EDGE_RECONCILE_MS: '100' } });

const several = (count: number): readonly number[] => Array.from({ length: count }, (_, index) => index);

test('L08 creates, commands, changes, looks and stops of the same sandboxes at once give only answers that make sense', {
  timeout: 60_000,
}, async () => {
  const endMs = clock.monotonicMs() + 6000;
  const shared: Sandbox[] = await Promise.all(several(4).map(() => server().sandbox({ metadata: { race: 'mix' } })));
  const codes = new Map<string, number>();
  const worker = async (index: number): Promise<void> => {
    for (let round = index; clock.monotonicMs() < endMs; round += 1) {
      const at = round % shared.length;
      const sandbox = shared[at] ?? (await server().sandbox());
      const actions: readonly (() => PromiseLike<unknown>)[] = [
        () => sandbox.exec(['true']),
        () => sandbox.setTtl(1000 + round),
        () => sandbox.info(),
        () => sandbox.files.write('/tmp/x', 'x'),
        () => sandbox.execDetached(['sleep', '1']),
        () => sandbox.stop(),
        () => sandbox.stop(),
        async () => {
          shared[at] = await server().sandbox({ metadata: { race: 'mix' } });
        },
        () =>
          server()
            .client.sandboxes({ metadata: { race: 'mix' } })
            .toArray(),
        () => sandbox.usage(),
      ];
      const outcome = await Promise.resolve(actions[(round * 7 + index) % actions.length]?.()).then(
        () => 'ok',
        (error: unknown) => (PlatformError.is(error) ? error.code : String(error)),
      );
      codes.set(outcome, (codes.get(outcome) ?? 0) + 1);
    }
  };
  await Promise.all(several(20).map(worker));
  const sensible = ['ok', 'sandbox_ended', 'sandbox_not_ready', 'connection_lost', 'sandbox_failed'];
  expect([...codes.keys()].filter((code) => !sensible.includes(code))).toEqual([]);
  expect(codes.get('ok') ?? 0).toBeGreaterThan(100);
  const outcomes = await server().client.stopSandboxes({ metadata: { race: 'mix' } });
  expect(outcomes.filter((outcome) => 'error' in outcome)).toEqual([]);
  expect(
    await server()
      .client.sandboxes({ metadata: { race: 'mix' } })
      .toArray(),
  ).toEqual([]);
  for (const sandbox of shared) expect((await sandbox.info()).state).toBe('stopped');
});

test('L08 twenty stops of one sandbox at once all say the same', async () => {
  const sandbox = await server().sandbox();
  const infos = await Promise.all(several(20).map(() => sandbox.stop()));
  expect(new Set(infos.map(({ state, cause }) => `${state} ${cause?.kind ?? ''}`))).toEqual(
    new Set(['stopped stopped']),
  );
  expect((await sandbox.stop()).state).toBe('stopped');
});

test('L09 a sandbox that is stopped while it is made stays gone', { timeout: 60_000 }, async () => {
  const metadata = { race: 'early-stop' };
  for (let round = 0; round < 15; round += 1) {
    const abort = new AbortController();
    const making = Promise.allSettled(several(6).map(() => server().sandbox({ metadata }, { signal: abort.signal })));
    // Each round at another moment of the creates: which one is what is to vary.
    await clock.sleep(round * 3);
    if (round % 3 === 0) abort.abort();
    await server().client.stopSandboxes({ metadata });
    const made = await making;
    // Those whose create came after the stop were made by it and live on: they are stopped now.
    await waitFor('every one to be settled', async () => {
      const left = await server().client.sandboxes({ metadata }).toArray();
      return left.every(({ state }) => state !== 'creating' && state !== 'stopping');
    });
    await server().client.stopSandboxes({ metadata });
    for (const outcome of made) {
      if (outcome.status === 'fulfilled') expect((await outcome.value.info()).state).toBe('stopped');
      else
        expect(PlatformError.is(outcome.reason) && outcome.reason.code).toMatch(
          /^(cancelled|sandbox_ended|sandbox_not_ready|create_failed)$/,
        );
    }
    expect(await server().client.sandboxes({ metadata }).toArray()).toEqual([]);
  }
});

test('L09 a create that is asked for again under its key after its sandbox was stopped makes no second one', async () => {
  const idempotencyKey = 'once-only';
  const first = await server().sandbox({}, { idempotencyKey });
  expect((await server().sandbox({}, { idempotencyKey })).sandboxId).toBe(first.sandboxId);
  await first.stop();
  const again = await server()
    .sandbox({}, { idempotencyKey })
    .then(
      (sandbox) => sandbox.sandboxId,
      (error: unknown) => (PlatformError.is(error) ? error.code : String(error)),
    );
  expect([first.sandboxId, 'sandbox_ended']).toContain(again);
  expect((await first.info()).state).toBe('stopped');
  expect((await failureOf(server().sandbox({ memoryLimitMb: 99 }, { idempotencyKey }))).code).toBe(
    'idempotency_conflict',
  );
});

test('L11 sandboxes that are being made, slowly and in numbers, are not taken for leftovers', {
  timeout: 60_000,
}, async () => {
  const launcher = await server().pid('launcher');
  process.kill(launcher, 'SIGSTOP');
  const making = several(20).map(() => server().sandbox());
  try {
    // Thirty looks for leftovers, of which one that finds none tells nobody.
    await clock.sleep(3000);
  } finally {
    process.kill(launcher, 'SIGCONT');
  }
  const sandboxes = await Promise.all(making);
  for await (const outcome of server().client.runContainers(
    { containerImage: server().environment, memoryLimitMb: 64 },
    { count: 60 },
  )) {
    if ('error' in outcome) throw outcome.error;
    sandboxes.push(outcome.sandbox);
  }
  const outputs = await Promise.all(sandboxes.map(async (sandbox) => (await sandbox.exec(['echo', 'alive'])).stdout));
  expect(outputs).toEqual(outputs.map(() => 'alive\n'));
  await Promise.all(sandboxes.map((sandbox) => sandbox.stop()));
});

test('L16 five hundred sandboxes run a command and write a file the moment that their create returns', {
  timeout: 120_000,
}, async () => {
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < 500) {
      const index = next;
      next += 1;
      await using sandbox = await server().sandbox();
      const [result, entry] = await Promise.all([
        sandbox.exec(['echo', `hi ${index}`]),
        sandbox.files.write('/root/f', `${index}`),
      ]);
      expect([result.exitCode, result.stdout, entry.sizeBytes]).toEqual([0, `hi ${index}\n`, `${index}`.length]);
    }
  };
  await Promise.all(several(16).map(worker));
});

test('L17 ten clients that use one sandbox at once do not disturb each other', async () => {
  await using sandbox = await server().sandbox();
  const ends = await Promise.all(
    several(10).map(async (index) => {
      const client = server().connect();
      const own = await client.getSandbox(sandbox.sandboxId);
      const [result, info] = await Promise.all([
        own.runShell(`echo ${index}; sleep 0.2; echo ${index}`),
        own.setTtl(1000 + index, { extendOnly: true }),
        own.setIdleTimeout(600 + index),
        own.files.write(`/tmp/${index}`, String(index)),
        own.session().then(async (session) => session.run('true')),
      ]);
      expect(result.stdout).toBe(`${index}\n${index}\n`);
      return info.ttlEndsAtMs;
    }),
  );
  expect((await sandbox.info()).ttlEndsAtMs).toBe(Math.max(...ends));
  expect((await sandbox.files.list('/tmp')).entries.map(({ name }) => name).toSorted()).toEqual(
    several(10).map(String),
  );
});

test('L19 lists by metadata of any characters have exactly what they should, page by page, while others come and go', {
  timeout: 90_000,
}, async () => {
  const metadata = { 'a=b&c %/ü': 'x=y&z %/ü\u{1f923}"\'', job: 'pages' };
  const made: string[] = [];
  for await (const outcome of server().client.runContainers(
    { containerImage: server().environment, metadata, memoryLimitMb: 64 },
    { count: 250 },
  )) {
    if ('error' in outcome) throw outcome.error;
    made.push(outcome.sandbox.sandboxId);
  }
  const other = await server().sandbox({ metadata: { job: 'other' } });
  const sizes: number[] = [];
  const listed: string[] = [];
  for await (const page of server().client.sandboxes({ metadata, pageSize: 100 }).pages()) {
    sizes.push(page.length);
    listed.push(...page.map(({ sandboxId }) => sandboxId));
    // What comes and goes between two pages must not move the cursor.
    await (await server().sandbox({ metadata: { job: 'noise' } })).stop();
  }
  expect(sizes).toEqual([100, 100, 50]);
  expect(listed.toSorted()).toEqual(made.toSorted());
  const bySingle = await server()
    .client.sandboxes({ metadata: { 'a=b&c %/ü': metadata['a=b&c %/ü'] }, pageSize: 7 })
    .toArray();
  expect(bySingle.map(({ sandboxId }) => sandboxId).toSorted()).toEqual(made.toSorted());
  expect(
    await server()
      .client.sandboxes({ metadata: { job: 'page' } })
      .toArray(),
  ).toEqual([]);
  const bad = await rawRequest(server(), '/sandboxes?cursor=forged');
  expect(bad.status).toBe(400);
  const outcomes = await server().client.stopSandboxes({ metadata: { job: 'pages' } });
  expect(outcomes).toHaveLength(250);
  expect(outcomes.filter((outcome) => 'error' in outcome)).toEqual([]);
  expect((await other.info()).state).toBe('running');
  expect((await rawJson(server(), '/sandboxes/stop', {})).status).toBe(400);
  await other.stop();
});
