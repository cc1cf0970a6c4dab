/** What sandboxes do that is denied, over a real server: events with the command that caused them, reports, and a webhook that a real receiver gets. */
import { createHmac, randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { WebhookPayload } from '@dsec/contract';
import type { BehaviourEvent, Exec, Sandbox } from '@dsec/libdsec';
import { afterAll, describe, expect, test } from 'vitest';
import { onX64Only } from '../misbehaviour/attack.ts';
import { behaviourOf, type WantedEvent } from './behaviour-of.ts';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';
import { waitFor } from './wait-for.ts';
import { EVIL, GOOD, World } from './world.ts';

const BPF = 321;
const KEYCTL = 250;
/** The launcher lets a sandbox try about 200 a second. */
const FLOOD = 600;
/** Programs and daemons are started. */
const SLOW = { timeout: 120_000 };
const TRIPWIRE = '/root/answers.txt';
const key = randomBytes(32);

interface Posted {
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}
const posted: Posted[] = [];
let isRefusing = false;
let refusals = 0;
let directory = '';
let receiver: Server | undefined;
let world: World | undefined;
afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
  receiver?.closeAllConnections();
  receiver?.close();
  if (directory !== '') await rm(directory, { recursive: true });
});

const server = useServer(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-behaviour-'));
  receiver = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      if (isRefusing) refusals++;
      else posted.push({ headers: request.headers, body: Buffer.concat(chunks).toString() });
      response.writeHead(isRefusing ? 503 : 200).end();
    });
  });
  await new Promise<void>((resolve) => receiver?.listen(0, '127.0.0.1', resolve));
  const webhook = join(directory, 'webhook.json');
  const url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/`;
  await writeFile(webhook, JSON.stringify({ url, secret: `whsec_${key.toString('base64')}` }), { mode: 0o600 });
  world = await World.start({ 'good.test': [GOOD] });
  return { network: true, webhook, variables: { DSEC_RESOLVER_RESOLV_CONF: world.resolvConf } };
}, ['egress']);
onX64Only();

const eventOf = (sandbox: Sandbox, wanted: WantedEvent): Promise<BehaviourEvent> =>
  behaviourOf(server().client, sandbox, wanted);
/** One system call, by number, in a program of its own. */
const callOf = (number: number): readonly string[] => [
  'python3',
  '-c',
  `import ctypes; ctypes.CDLL(None).syscall(${number}, 0, 0, 0)`,
];

/** Runs a command to its end; its id. */
async function execIdOf(exec: Exec): Promise<string> {
  await exec;
  return (await exec.started()).execId;
}

describe('an event says which command caused it', () => {
  test('of calls that are denied', async () => {
    await using sandbox = await server().sandbox();
    const bpf = await execIdOf(sandbox.exec(callOf(BPF)));
    expect(await eventOf(sandbox, { kind: 'call', call: 'bpf' })).toMatchObject({
      what: 'bpf',
      outcome: 'EPERM',
      execId: bpf,
      command: callOf(BPF),
      process: { uid: 0, comm: 'python3' },
    });
    // A child that its parent does not wait for, in a session of its own: the command has ended by then, as far as its caller knows.
    const script = `(${callOf(KEYCTL)
      .map((word) => `'${word}'`)
      .join(' ')} &) ; true`;
    const keyctl = await execIdOf(sandbox.runShell(script));
    expect(await eventOf(sandbox, { kind: 'call', call: 'keyctl' })).toMatchObject({
      execId: keyctl,
      command: [script],
    });
    const terminal = `import fcntl, pty, os; m, s = pty.openpty(); fcntl.ioctl(s, 0x5412, b'x')`;
    const tiocsti = await execIdOf(sandbox.exec(['python3', '-c', terminal]));
    expect(await eventOf(sandbox, { argument: 'TIOCSTI' })).toMatchObject({
      what: 'ioctl TIOCSTI',
      outcome: 'ENOTTY',
      execId: tiocsti,
    });
  });

  test('of what a session runs', async () => {
    await using sandbox = await server().sandbox();
    await using session = await sandbox.session();
    await session.run('true');
    const script = callOf(BPF)
      .map((word) => `'${word}'`)
      .join(' ');
    const execId = await execIdOf(session.run(script));
    await session.run('true');
    expect(await eventOf(sandbox, { call: 'bpf' })).toMatchObject({
      sessionId: session.sessionId,
      execId,
      command: [script],
    });
  });

  test('of a tripwire, and the report says which are none', async () => {
    const policy = { tripwires: [TRIPWIRE, '/etc/hostname', '/etc/shadow', '/nowhere'] };
    await using sandbox = await server().sandbox({ policy });
    expect((await sandbox.policy.get()).tripwires).toEqual(policy.tripwires);
    const refused = failureOf(sandbox.policy.set({ tripwires: [] }));
    expect(await refused).toMatchObject({ code: 'invalid_argument', details: { field: 'policy.tripwires' } });
    const honest = await execIdOf(sandbox.exec(['cat', '/etc/passwd']));
    const touched = await execIdOf(sandbox.exec(['sh', '-c', 'ln /etc/shadow /tmp/other && cat /tmp/other']));
    const event = await eventOf(sandbox, { kind: 'tripwire' });
    expect(event).toMatchObject({ what: '/etc/shadow', outcome: 'seen', execId: touched });
    expect(event.execId).not.toBe(honest);
    const { tripwires, absentTripwires, counts } = await sandbox.behaviour();
    expect(tripwires).toEqual(policy.tripwires);
    expect(absentTripwires).toEqual(expect.arrayContaining([TRIPWIRE, '/nowhere']));
    expect(absentTripwires).not.toContain('/etc/shadow');
    expect(counts.tripwire).toBeGreaterThan(0);
  });

  test('of a name that is not allowed, and of a connection', async () => {
    const rules = [{ action: 'allow', to: 'good.test' }] as const;
    await using sandbox = await server().sandbox({ policy: { network: { rules } } });
    const lookup = [
      'python3',
      '-c',
      'import socket\ntry: socket.getaddrinfo("secret.evil.test", 443)\nexcept OSError: pass',
    ];
    const asked = await execIdOf(sandbox.exec(lookup));
    expect(await eventOf(sandbox, { kind: 'name', name: 'secret.evil.test', type: 'A' })).toMatchObject({
      outcome: 'name',
      execId: asked,
      command: lookup,
    });
    const connect = [
      'python3',
      '-c',
      `import socket; s = socket.socket(); s.settimeout(1); s.connect_ex(("${EVIL}", 8443))`,
    ];
    const connected = await execIdOf(sandbox.exec(connect));
    expect(await eventOf(sandbox, { kind: 'connect', address: EVIL, port: 8443 })).toMatchObject({
      what: `tcp ${EVIL}:8443`,
      protocol: 'tcp',
      execId: connected,
      command: connect,
      process: { comm: 'python3' },
    });
  });
});

describe('who listens', () => {
  test('sees it on the command line, and in a report of a sandbox that has ended', SLOW, async () => {
    const sandbox = await server().sandbox();
    const { sandboxId } = sandbox;
    const execId = await execIdOf(sandbox.exec(callOf(BPF)));
    await eventOf(sandbox, { call: 'bpf' });
    await sandbox.stop();
    const shown = await server().cli(['events', '--sandbox', sandboxId, '--kind', 'call']);
    expect([shown.exitCode, shown.stdout.toString()]).toEqual([
      0,
      expect.stringContaining(`call  bpf  EPERM  exec ${execId}`),
    ]);
    const json = await server().cli(['events', '--sandbox', sandboxId, '--json']);
    expect(JSON.parse(json.stdout.toString().split('\n')[0] ?? '')).toMatchObject({ sandboxId, what: 'bpf', execId });
    const inspected = await server().cli(['inspect', '--behaviour', sandboxId]);
    expect(JSON.parse(inspected.stdout.toString())).toMatchObject({
      counts: { call: 1 },
      entries: [{ kind: 'call', what: 'bpf', outcome: 'EPERM', samples: [{ execId }] }],
    });
  });

  test('goes on when edge and launcher are killed, and the reports stay', SLOW, async () => {
    await using sandbox = await server().sandbox();
    await sandbox.exec(callOf(BPF));
    await eventOf(sandbox, { call: 'bpf' });
    // What is younger than this is not in its file yet.
    await waitFor('the file of the report', async () => {
      return readFile(join(server().data, 'state/edge/behaviour', `${sandbox.sandboxId}.json`), 'utf8').catch(
        () => undefined,
      );
    });
    const lost: (number | null)[] = [];
    const heard: string[] = [];
    const controller = new AbortController();
    const options = {
      sandboxId: sandbox.sandboxId,
      signal: controller.signal,
      onLost: (count: number | null) => void lost.push(count),
    };
    const listening = (async () => {
      for await (const { call = '' } of server().client.events(options)) heard.push(call);
    })();
    listening.catch(() => undefined);
    await waitFor('the first', () => heard.includes('bpf'));
    await server().kill('edge');
    await server().kill('launcher');
    expect((await sandbox.behaviour()).counts.call).toBe(1);
    await waitFor('an event of the launcher that came anew', async () => {
      await sandbox.exec(callOf(KEYCTL));
      return heard.includes('keyctl');
    });
    expect(lost).toContain(null);
    expect((await sandbox.behaviour()).counts.call).toBeGreaterThan(1);
    controller.abort();
    expect(await failureOf(listening)).toMatchObject({ code: 'cancelled' });
  });

  test('gets a bounded part of a flood, whose report counts the rest', async () => {
    await using sandbox = await server().sandbox();
    const flood = `
import ctypes
libc = ctypes.CDLL(None)
for index in range(${FLOOD}): libc.syscall([321, 250, 163, 248, 249][index % 5], 0, 0, 0)`;
    await sandbox.exec(['python3', '-c', flood], { timeoutMs: 120_000 });
    const report = await waitFor('the count', async () => {
      const told = await sandbox.behaviour();
      return told.counts.call >= FLOOD && told;
    });
    expect(report.entries.length).toBeLessThanOrEqual(6);
    let events = 0;
    for await (const _event of server().client.events({ sandboxId: sandbox.sandboxId, follow: false })) events++;
    expect(events).toBeGreaterThan(0);
    expect(events).toBeLessThan(FLOOD / 4);
    expect((await sandbox.exec(['true'])).exitCode).toBe(0);
  });
});

test('a webhook gets every event, signed, and what came while it refused', async () => {
  await using sandbox = await server().sandbox();
  const { sandboxId } = sandbox;
  isRefusing = true;
  const execId = await execIdOf(sandbox.exec(callOf(BPF)));
  await waitFor('a post that is refused', () => refusals > 0);
  isRefusing = false;
  const mine = (): readonly BehaviourEvent[] =>
    posted
      .flatMap(({ body }) => (JSON.parse(body) as WebhookPayload).data.events)
      .filter((event) => event.sandboxId === sandboxId);
  await waitFor('the post', () => mine().length > 0, 60_000);
  expect(mine()).toMatchObject([{ kind: 'call', what: 'bpf', execId }]);
  for (const { headers, body } of posted) {
    const signed = `${String(headers['webhook-id'])}.${String(headers['webhook-timestamp'])}.${body}`;
    expect(headers['webhook-signature']).toBe(`v1,${createHmac('sha256', key).update(signed).digest('base64')}`);
  }
  const ids = posted.map(({ headers }) => headers['webhook-id']);
  expect(new Set(ids).size).toBe(ids.length);
});
