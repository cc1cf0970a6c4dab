/** Terminals. */
import { expect, test } from 'vitest';
import type { Pty } from '@dsec/libdsec';
import { gone, running } from './in-sandbox.ts';
import { useServer } from './started-server.ts';
import { timed, waitFor } from './wait-for.ts';

const server = useServer();

test.for([
  [40, 120],
  [1, 1],
  [1000, 1000],
] as const)('T01 a terminal of %i rows and %i columns has that size from its first moment', async ([rows, cols]) => {
  await using sandbox = await server().sandbox();
  for (let repeat = 0; repeat < 5; repeat += 1) {
    const pty = await sandbox.pty({ rows, cols, argv: ['stty', 'size'] });
    expect((await pty.exited()).stdout).toBe(`${rows} ${cols}\r\n`);
  }
});

test('T01 the shell of a terminal sees its size at the first prompt, and one of no given size is 24 by 80', async () => {
  await using sandbox = await server().sandbox();
  const pty = await sandbox.pty({ rows: 40, cols: 120 });
  await pty.write('stty size; exit 3\n');
  const result = await pty.exited();
  expect(result.stdout).toMatch(/^40 120\r$/m);
  expect(result.exitCode).toBe(3);
  expect((await (await sandbox.pty({ argv: ['stty', 'size'] })).exited()).stdout).toBe('24 80\r\n');
});

test('T02 a new size reaches what runs in the terminal, and each one in its order', async () => {
  await using sandbox = await server().sandbox();
  const pty = await sandbox.pty({
    argv: ['sh', '-c', "trap 'stty size' WINCH; echo ready; while :; do sleep .1; done"],
  });
  const screen = new Screen(pty);
  await screen.shows('ready');
  for (const [rows, cols] of [
    [50, 200],
    [10, 20],
    [51, 201],
  ] as const) {
    await pty.resize({ rows, cols });
    await screen.shows(`${rows} ${cols}`);
  }
  await pty.kill('SIGKILL');
});

test('T02 a new size reaches the foreground of a shell, also of a command that was started later', async () => {
  await using sandbox = await server().sandbox();
  const pty = await sandbox.pty({ argv: ['bash', '--norc', '-i'] });
  const screen = new Screen(pty);
  await pty.resize({ rows: 33, cols: 99 });
  await pty.write('bash -c "stty size"\n');
  await screen.shows('33 99');
  await pty.write(`sh -c "trap 'stty size' WINCH; echo rea''dy; while :; do sleep .1; done"\n`);
  await screen.shows('ready');
  await pty.resize({ rows: 34, cols: 98 });
  await screen.shows('34 98');
  await pty.kill('SIGKILL');
});

test('T04 variables of the create are in the terminal, with a terminal type and UTF-8', async () => {
  await using sandbox = await server().sandbox({ env: { FOO: '1' } });
  for (const argv of [undefined, ['bash', '--norc', '-i']]) {
    const pty = await sandbox.pty({ ...(argv === undefined ? {} : { argv }), env: { BAR: '2' } });
    await pty.write('echo "<$FOO $BAR $LANG $TERM $HOME>"; exit\n');
    expect((await pty.exited()).stdout).toMatch(/<1 2 C\.UTF-8 xterm-256color \S+>\r/);
  }
  const own = await sandbox.pty({ argv: ['sh', '-c', 'echo $TERM $LANG'], env: { TERM: 'vt100', LANG: 'C' } });
  expect((await own.exited()).stdout).toBe('vt100 C\r\n');
});

test('T04 tmux draws UTF-8 in it', async () => {
  await using sandbox = await server().sandbox();
  const pty = await sandbox.pty({ argv: ['tmux', 'new', "printf '☕ coffee'; sleep 100"], rows: 10, cols: 40 });
  const screen = new Screen(pty);
  await screen.shows('☕ coffee');
  await pty.kill('SIGKILL');
  await sandbox.runShell('tmux kill-server');
});

test('T06 the terminal is as small as its smallest client, and grows again when that one goes', async () => {
  await using sandbox = await server().sandbox();
  const first = await sandbox.pty({
    rows: 50,
    cols: 200,
    argv: ['sh', '-c', "trap 'stty size' WINCH; echo ready; while :; do sleep .1; done"],
  });
  const { execId } = await first.started();
  const screen = new Screen(first);
  await screen.shows('ready');
  const other = server().connect();
  const second = (await other.getSandbox(sandbox.sandboxId)).attachPty(execId);
  await second.started();
  await second.resize({ rows: 20, cols: 40 });
  await screen.shows('20 40');
  await first.resize({ rows: 60, cols: 100 });
  await second.resize({ rows: 25, cols: 150 });
  await screen.shows('25 100');
  await second.detach();
  await other.close();
  await screen.shows('60 100');
  await first.kill('SIGKILL');
});

test('T06 a client by WebSocket counts as any other', async () => {
  await using sandbox = await server().sandbox();
  const first = await sandbox.pty({
    rows: 50,
    cols: 200,
    argv: ['sh', '-c', "trap 'stty size' WINCH; echo ready; while :; do sleep .1; done"],
  });
  const { execId } = await first.started();
  const screen = new Screen(first);
  await screen.shows('ready');
  const socket = new WebSocket(
    `${server().endpoint.replace('http', 'ws')}/v1/sandboxes/${sandbox.sandboxId}/execs/${execId}/pty`,
    { headers: { authorization: `Bearer ${server().apiKey}` } },
  );
  await new Promise((resolve, reject) => {
    socket.addEventListener('open', resolve, { once: true });
    socket.addEventListener('error', () => reject(new Error('the WebSocket was refused')), { once: true });
  });
  socket.send(JSON.stringify({ resize: { rows: 10, cols: 30 } }));
  await screen.shows('10 30');
  socket.close();
  await screen.shows('50 200');
  await first.kill('SIGKILL');
});

test('T06 whoever attaches to a terminal again sees what it showed, and sets its size anew', async () => {
  await using sandbox = await server().sandbox();
  const first = await sandbox.pty({ rows: 50, cols: 200, argv: ['bash', '--norc', '-i'] });
  await first.write('echo be""fore\n');
  await new Screen(first).shows('before');
  const { execId } = await first.detach();
  const second = sandbox.attachPty(execId);
  const screen = new Screen(second);
  await second.started();
  await screen.shows('before');
  await second.resize({ rows: 30, cols: 90 });
  await second.write('stty size\n');
  await screen.shows('30 90');
  await second.write('exit 4\n');
  expect((await second.exited()).exitCode).toBe(4);
});

test('T07 killing a terminal hangs up on all that runs in it, and the end is no failure', async () => {
  await using sandbox = await server().sandbox();
  for (const argv of [
    ['bash', '-c', 'sleep 500 & sleep 501'],
    ['vi', '/tmp/x'],
    ['bash', '--norc', '-i'],
  ]) {
    const pty = await sandbox.pty({ argv });
    if (argv.length === 3 && argv[1] === '--norc') await pty.write('sleep 502 & sleep 503\n');
    await waitFor('it to run', async () => (await running(sandbox, argv[0] ?? '')).length > 0);
    const killed = await pty.kill(argv[1] === '--norc' ? 'SIGKILL' : 'SIGHUP');
    expect(killed).toBe(true);
    const result = await pty.exited();
    expect(result.exitCode).toBeGreaterThan(0);
    await gone(sandbox, 'sleep 50');
    expect(await pty.kill()).toBe(false);
  }
});

test('T07 a terminal whose client goes away runs on, and is killed by another', async () => {
  await using sandbox = await server().sandbox();
  const other = server().connect();
  const pty = await (await other.getSandbox(sandbox.sandboxId)).pty({ argv: ['vi', '/tmp/x'] });
  const { execId } = await pty.detach();
  await other.close();
  expect((await sandbox.execStatus(execId)).state).toBe('running');
  expect(await sandbox.attachPty(execId).kill('SIGKILL')).toBe(true);
  const { value: status } = await timed(() =>
    waitFor('its end', async () => {
      const now = await sandbox.execStatus(execId);
      return now.state === 'exited' && now;
    }),
  );
  expect(status.signal).toBe(9);
  await gone(sandbox, '/tmp/x');
});

test('T07 a terminal that ends while a child of it goes on reports its exit code', async () => {
  await using sandbox = await server().sandbox();
  const pty = await sandbox.pty({ argv: ['bash', '-c', "trap '' HUP; sleep 30 & echo bye; exit 5"] });
  const { value: result, tookMs } = await timed(() => pty.exited());
  expect([result.exitCode, result.stdout]).toEqual([5, 'bye\r\n']);
  expect(tookMs).toBeLessThan(5000);
});

test('T07 control characters work as on any terminal', async () => {
  await using sandbox = await server().sandbox();
  const pty = await sandbox.pty({ argv: ['bash', '--norc', '-i'] });
  const screen = new Screen(pty);
  await pty.write('cat\n');
  await waitFor('cat', async () => (await running(sandbox, 'cat')).length > 0);
  await pty.write('\u0003');
  await screen.shows('^C');
  // A terminal forgets what is typed while it changes hands.
  await screen.shows('# ');
  await pty.write('echo "int $?"\n');
  await screen.shows('int 130');
  await pty.write('wc -c\n');
  await waitFor('wc', async () => (await running(sandbox, 'wc -c')).length > 0);
  await pty.write('abc\n');
  await pty.write('\u0004');
  await screen.shows('\n4');
  await pty.write('exit 0\n');
  expect((await pty.exited()).exitCode).toBe(0);
});

/** What has appeared on a terminal so far. */
class Screen {
  readonly #output: AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined>;
  readonly #decoder = new TextDecoder();
  #unseen = '';

  constructor(pty: Pty) {
    this.#output = pty[Symbol.asyncIterator]();
  }

  /** Reads on until `text` appears; what was before it is not looked at again. */
  async shows(text: string): Promise<void> {
    for (;;) {
      const at = this.#unseen.indexOf(text);
      if (at >= 0) {
        this.#unseen = this.#unseen.slice(at + text.length);
        return;
      }
      const next = await this.#output.next();
      if (next.done === true)
        throw new Error(`the terminal ended without "${text}", with ${JSON.stringify(this.#unseen)}`);
      this.#unseen += this.#decoder.decode(next.value, { stream: true });
    }
  }
}
