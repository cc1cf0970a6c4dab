import { PlatformError, type ExecStatus } from '@dsec/contract';
import { ManualClock } from '@dsec/kit';
import type { WireServerStream } from '@dsec/native-link';
import type { IncomingMessage } from 'node:http';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import WebSocket from 'ws';
import { ADMIN_KEY, Fixture, type Params } from '../apiserver.fixture.ts';

let fixture: Fixture;
let clock: ManualClock;
let sockets: WebSocket[];
beforeEach(async () => {
  clock = new ManualClock();
  fixture = await Fixture.start({ clock });
  sockets = [];
});
afterEach(async () => {
  for (const socket of sockets) socket.terminate();
  await fixture[Symbol.asyncDispose]();
});

const status: ExecStatus = {
  execId: 'e1',
  state: 'exited',
  pid: 7,
  pty: true,
  startedAtMs: 1,
  exitCode: 3,
  timedOut: false,
  oomKilled: false,
  stdoutBytes: 0,
  stderrBytes: 0,
  stdoutDropped: 0,
  stderrDropped: 0,
};

interface Followed {
  readonly socket: WebSocket;
  readonly output: () => string;
  readonly texts: unknown[];
  readonly closed: Promise<number>;
}

function follow(query = '', key: string | null = ADMIN_KEY): Followed {
  const url = `ws://127.0.0.1:${fixture.port}/v1/sandboxes/${fixture.sandboxId}/execs/e1/pty${query}`;
  const socket = new WebSocket(url, key === null ? {} : { headers: { authorization: `Bearer ${key}` } });
  sockets.push(socket);
  const chunks: Buffer[] = [];
  const texts: unknown[] = [];
  socket.on('message', (data: Buffer, isBinary) => {
    if (isBinary) chunks.push(data);
    else texts.push(JSON.parse(data.toString()) as unknown);
  });
  socket.on('error', () => undefined);
  const closed = new Promise<number>((resolve) => socket.on('close', resolve));
  return { socket, output: () => Buffer.concat(chunks).toString(), texts, closed };
}

const refusal = ({ socket }: Followed): Promise<readonly [number | undefined, string]> =>
  new Promise((resolve) => {
    socket.once('unexpected-response', (_request, response: IncomingMessage) => {
      let text = '';
      response.on('data', (chunk: Buffer) => (text += chunk.toString()));
      response.on('end', () =>
        resolve([response.statusCode, (JSON.parse(text) as { error: { code: string } }).error.code]),
      );
    });
  });

/** A command that answers its input in capitals until it reads `q` or the end. */
function serveShell(isPty: boolean): void {
  const read = async (stream: WireServerStream, attached: WireServerStream): Promise<void> => {
    for await (const item of stream) {
      if (item.type === 'end') return;
      if (item.type !== 'data') continue;
      await attached.write(Buffer.from(item.bytes.toString().toUpperCase()), 1);
      if (item.bytes.includes('q')) return;
    }
  };
  const plainInput = Promise.withResolvers<WireServerStream>();
  fixture.edge.on('exec.attach', async (_params: Params, stream) => {
    await stream.message({ started: { execId: 'e1', pid: 7, ...(isPty ? { clientId: 'c.1' } : {}) } });
    await stream.write(Buffer.from('$ '), 1);
    await read(isPty ? stream : await plainInput.promise, stream);
    return status;
  });
  fixture.edge.on('exec.stdin', (_params, stream) => plainInput.resolve(stream));
}

test.each([true, false])('carries input and output of a terminal (%s) and its exit', async (isPty) => {
  serveShell(isPty);
  const followed = follow('?stdoutFrom=5');
  await expect.poll(followed.output).toBe('$ ');
  followed.socket.send(Buffer.from('hello '));
  followed.socket.send(Buffer.from('world '));
  await expect.poll(followed.output).toBe('$ HELLO WORLD ');
  followed.socket.send(Buffer.from('q'));
  expect(await followed.closed).toBe(1000);
  expect(followed.texts).toEqual([{ started: { execId: 'e1', pid: 7 } }, { exit: status }]);
  expect(fixture.edge.last('exec.attach')).toEqual({ sandboxId: fixture.sandboxId, execId: 'e1', stdoutFrom: 5 });
});

test.each([true, false])('ends the input of a terminal (%s) when it is told to', async (isPty) => {
  serveShell(isPty);
  const followed = follow();
  followed.socket.once('open', () => followed.socket.send('{"eof":true}'));
  expect(await followed.closed).toBe(1000);
  expect(followed.texts.at(-1)).toEqual({ exit: status });
});

test('resizes the terminal for its own client', async () => {
  serveShell(true);
  fixture.edge.on('exec.resize', () => Promise.resolve({}));
  const followed = follow();
  followed.socket.once('open', () => followed.socket.send('{"resize":{"rows":10,"cols":20}}'));
  await expect
    .poll(() => fixture.edge.last('exec.resize'))
    .toEqual({ sandboxId: fixture.sandboxId, execId: 'e1', rows: 10, cols: 20, clientId: 'c.1' });
});

test.each(['nonsense', '{"resize":{"rows":0,"cols":20}}', '{"kill":true}', 'null'])(
  'refuses the text frame %s',
  async (text) => {
    serveShell(true);
    const followed = follow();
    followed.socket.once('open', () => followed.socket.send(text));
    expect(await followed.closed).toBe(1008);
    expect(followed.texts.at(-1)).toMatchObject({ error: { code: 'invalid_argument' } });
  },
);

test('tells gaps, and an error as the last frame', async () => {
  fixture.edge.on('exec.attach', async (_params, stream) => {
    await stream.message({ started: { execId: 'e1', pid: 7 } });
    await stream.message({ gap: { channel: 1, from: 0, to: 9 } });
    throw new PlatformError('sandbox_ended', 'stopped');
  });
  const followed = follow();
  await followed.closed;
  expect(followed.texts.slice(1)).toEqual([
    { gap: { channel: 1, from: 0, to: 9 } },
    { error: { code: 'sandbox_ended', message: 'stopped', details: {} } },
  ]);
});

test('goes on when there is no stdin to write to', async () => {
  const end = Promise.withResolvers<undefined>();
  fixture.edge.on('exec.attach', async (_params, stream) => {
    await stream.message({ started: { execId: 'e1', pid: 7 } });
    await end.promise;
    return status;
  });
  fixture.edge.on('exec.stdin', () => Promise.reject(new PlatformError('stdin_closed', 'closed')));
  const followed = follow();
  followed.socket.once('open', () => {
    for (let index = 0; index < 3; index++) followed.socket.send(Buffer.from('x'));
  });
  await expect
    .poll(() => followed.texts)
    .toContainEqual({ error: expect.objectContaining({ code: 'stdin_closed' }) as object });
  end.resolve(undefined);
  await followed.closed;
  expect(followed.texts.at(-1)).toEqual({ exit: status });
});

test('lets go of an input that opens only when the command has ended', async () => {
  const end = Promise.withResolvers<undefined>();
  const away = Promise.withResolvers<undefined>();
  let isReleased = false;
  fixture.edge.on('exec.attach', async (_params, stream) => {
    await stream.message({ started: { execId: 'e1', pid: 7 } });
    await end.promise;
    return status;
  });
  fixture.edge.on('exec.stdin', async (_params, stream) => {
    await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
    isReleased = true;
  });
  const { edge } = fixture.services;
  const open = edge.open.bind(edge);
  const opening = vi
    .spyOn(edge, 'open')
    .mockImplementation((method, ...rest) =>
      method === 'exec.stdin' ? away.promise.then(() => open(method, ...rest)) : open(method, ...rest),
    );
  const followed = follow();
  followed.socket.once('open', () => followed.socket.send(Buffer.from('x')));
  await expect.poll(() => opening.mock.lastCall?.[0]).toBe('exec.stdin');
  end.resolve(undefined);
  await expect.poll(() => followed.texts.at(-1)).toEqual({ exit: status });
  away.resolve(undefined);
  expect(await followed.closed).toBe(1000);
  await expect.poll(() => isReleased).toBe(true);
});

test('lets go of the command when the client goes', async () => {
  let isReleased = false;
  fixture.edge.on('exec.attach', async (_params, stream) => {
    stream.signal.addEventListener('abort', () => (isReleased = true));
    await stream.message({ started: { execId: 'e1', pid: 7 } });
    await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
  });
  const followed = follow();
  await expect.poll(() => followed.texts.length).toBe(1);
  followed.socket.terminate();
  await expect.poll(() => isReleased).toBe(true);
});

test('ends a connection whose client no longer answers', async () => {
  let isReleased = false;
  fixture.edge.on('exec.attach', async (_params, stream) => {
    stream.signal.addEventListener('abort', () => (isReleased = true));
    await stream.message({ started: { execId: 'e1', pid: 7 } });
    await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
  });
  const followed = follow();
  await expect.poll(() => followed.texts.length).toBe(1);
  await clock.advance(15_000);
  await expect.poll(() => clock.pendingTimers).toBeGreaterThan(0);
  followed.socket.pause();
  await clock.advance(15_000);
  await clock.advance(15_000);
  await expect.poll(() => isReleased).toBe(true);
});

test('has a status for what keeps it from beginning', async () => {
  fixture.edge.on('exec.attach', () => Promise.reject(new PlatformError('exec_not_found', 'none')));
  expect(await refusal(follow())).toEqual([404, 'exec_not_found']);
  expect(await refusal(follow('', null))).toEqual([401, 'unauthenticated']);
  expect(await refusal(follow('?stdoutFrom=x'))).toEqual([400, 'invalid_argument']);
});
