/** The connection that carries many commands, against a server that does what a real one never would. */
import type { ExecStatus } from '@dsec/contract';
import {
  encodeClose,
  encodeFrame,
  encodeHello,
  encodeMessage,
  FrameDecoder,
  type FrameSink,
  FrameType,
  parseOpen,
} from '@dsec/wire';
import { PlatformError } from '@dsec/contract';
import type { Duplex } from 'node:stream';
import { expect, test } from 'vitest';
import { DSecClient, type ClientOptions, type Sandbox } from '../src/index.ts';
import { systemTiming, type Timing } from '../src/platform/timing.ts';
import { exited, exitStatus, record, sandboxInfo, ScriptedServer, started, type Exchange } from './scripted-server.ts';

const SWITCHED = 'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: dsec-wire\r\n\r\n';
const quick = { budgetMs: 2000, firstDelayMs: 1, maxDelayMs: 5 };
const execPath = '/v1/sandboxes/s0001/execs';

type OnOpen = (peer: Peer, id: number, params: Readonly<Record<string, unknown>>) => void;

/** The server's end. */
class Peer implements FrameSink {
  readonly socket: Duplex;
  /** Types of the frames that came, without HELLO. */
  readonly frames: number[] = [];
  readonly granted = new Map<number, number>();
  isSilent = false;
  readonly #onOpen: OnOpen;

  constructor(socket: Duplex, onOpen: OnOpen) {
    this.socket = socket;
    this.#onOpen = onOpen;
    const decoder = new FrameDecoder(this);
    socket.on('data', (bytes: Buffer) => decoder.push(bytes));
    socket.on('end', () => socket.destroy());
    this.send(FrameType.hello, 0, encodeHello('apiserver'));
  }

  send(type: number, id: number, payload: Uint8Array = Buffer.alloc(0), channel = 0): void {
    this.socket.write(encodeFrame(type, channel, id, payload));
  }

  say(id: number, text: string | Uint8Array, channel = 1): void {
    this.send(FrameType.data, id, Buffer.from(text), channel);
  }

  begin(id: number): void {
    this.send(FrameType.message, id, encodeMessage({ started: { execId: `exec${id}`, pid: 7 } }));
  }

  end(id: number, changes: Partial<ExecStatus> = {}): void {
    this.send(FrameType.close, id, encodeClose({ ...exitStatus, execId: `exec${id}`, ...changes }));
  }

  frame(type: number, _channel: number, id: number, chunk: Buffer, start: number, end: number): void {
    if (type === FrameType.hello) return;
    this.frames.push(type);
    if (type === FrameType.window) this.granted.set(id, (this.granted.get(id) ?? 0) + chunk.readUInt32LE(start));
    else if (type === FrameType.ping && !this.isSilent) this.send(FrameType.pong, 0, chunk.subarray(start, end));
    else if (type === FrameType.open) this.#onOpen(this, id, parseOpen(chunk, start, end).params);
  }
}

/** A server whose HTTP answers each command with `http`, and its connection of commands as `onOpen` says. */
async function scene(
  onOpen: OnOpen,
  options: ClientOptions & { readonly onHttp?: (exchange: Exchange) => void } = {},
): Promise<{ server: ScriptedServer; peers: Peer[]; sandbox: Sandbox; posts: () => number } & AsyncDisposable> {
  const { onHttp, ...clientOptions } = options;
  const peers: Peer[] = [];
  const server = await ScriptedServer.start(
    (exchange) => {
      if (exchange.path === '/v1/sandboxes/s0001') {
        exchange.answer(sandboxInfo);
      } else if (onHttp !== undefined && exchange.method === 'GET') {
        onHttp(exchange);
      } else {
        exchange.send(started, record('stdout', 'by http'), exited());
        exchange.response.end();
      }
    },
    (socket) => {
      socket.write(SWITCHED);
      peers.push(new Peer(socket, onOpen));
    },
  );
  const client = new DSecClient({ endpoint: server.endpoint, apiKey: 'key', retry: quick, ...clientOptions });
  return {
    server,
    peers,
    sandbox: await client.getSandbox('s0001'),
    posts: () => server.exchanges.filter(({ method, path }) => method === 'POST' && path === execPath).length,
    [Symbol.asyncDispose]: async () => {
      for (const { socket } of peers) socket.destroy();
      await client.close();
      await server[Symbol.asyncDispose]();
    },
  };
}

const answer =
  (text: string): OnOpen =>
  (peer, id) => {
    peer.begin(id);
    peer.say(id, text);
    peer.end(id);
  };

/** Runs commands until one has gone over the connection. */
async function ready(sandbox: Sandbox, peers: readonly Peer[]): Promise<void> {
  await expect
    .poll(async () => {
      await sandbox.exec(['warm']);
      return peers.some(({ frames }) => frames.includes(FrameType.open));
    })
    .toBe(true);
}

test('commands go over it once it is there, and nobody waits for that', async () => {
  const asked: unknown[] = [];
  await using at = await scene((peer, id, params) => {
    asked.push(params);
    answer('by wire')(peer, id, params);
  });
  expect((await at.sandbox.exec(['first'])).stdout).toBe('by http');
  await ready(at.sandbox, at.peers);
  const posts = at.posts();
  const results = await Promise.all(
    Array.from({ length: 50 }, async () => at.sandbox.exec(['true'], { cwd: '/tmp', idempotencyKey: 'mine' })),
  );
  expect(new Set(results.map(({ stdout }) => stdout))).toEqual(new Set(['by wire']));
  expect(at.posts()).toBe(posts);
  expect(at.peers).toHaveLength(1);
  expect(asked.at(-1)).toEqual({
    sandboxId: 's0001',
    idempotencyKey: 'mine',
    exec: { argv: ['true'], cwd: '/tmp' },
  });
});

test('what is sent along with the start goes by a request', async () => {
  await using at = await scene(answer('by wire'));
  await ready(at.sandbox, at.peers);
  expect((await at.sandbox.exec(['cat'], { input: 'x' })).stdout).toBe('by http');
});

test('output of both streams, gaps and the end come as they are', async () => {
  await using at = await scene((peer, id) => {
    peer.begin(id);
    peer.say(id, 'out');
    peer.say(id, Buffer.of(0xff, 0), 2);
    peer.send(FrameType.message, id, encodeMessage({ gap: { channel: 1, from: 3, to: 10 } }));
    peer.say(id, '!');
    peer.end(id, { exitCode: 5 });
  });
  await ready(at.sandbox, at.peers);
  const result = await at.sandbox.exec(['x']);
  expect(result).toMatchObject({ exitCode: 5, stdoutDropped: 7 });
  expect(Buffer.from(result.stderrBytes)).toEqual(Buffer.of(0xff, 0));
  expect(result.stdout).toBe('out!');
});

test('an error is that of its command alone', async () => {
  await using at = await scene((peer, id, params) => {
    const { argv } = params.exec as { argv: string[] };
    if (argv[0] === 'none') {
      const error = new PlatformError('command_not_found', 'there is none').toWire();
      peer.send(FrameType.close, id, Buffer.from(JSON.stringify({ error: { ...error, details: {} } })));
    } else {
      answer('by wire')(peer, id, params);
    }
  });
  await ready(at.sandbox, at.peers);
  await expect(at.sandbox.exec(['none'])).rejects.toMatchObject({ code: 'command_not_found' });
  expect((await at.sandbox.exec(['true'])).stdout).toBe('by wire');
  expect(at.peers).toHaveLength(1);
});

const hostile: Readonly<Record<string, OnOpen>> = {
  'a message that is no JSON': (peer, id) => peer.send(FrameType.message, id, Buffer.from('{')),
  'a message of no known form': (peer, id) => peer.send(FrameType.message, id, Buffer.from('{"new":1}')),
  'an end that is no state': (peer, id) => peer.send(FrameType.close, id, Buffer.from('{"ok":{"exitCode":"x"}}')),
  'output of a third channel': (peer, id) => peer.say(id, 'x', 3),
  'a gap that goes backwards': (peer, id) =>
    peer.send(FrameType.message, id, encodeMessage({ gap: { channel: 1, from: 0, to: -5 } })),
};

test.for(Object.keys(hostile))('%s fails its command, and no other', async (name) => {
  await using at = await scene((peer, id, params) => {
    const { argv } = params.exec as { argv: string[] };
    if (argv[0] === 'bad') hostile[name]?.(peer, id, params);
    else answer('by wire')(peer, id, params);
  });
  await ready(at.sandbox, at.peers);
  const [bad, good] = await Promise.allSettled([at.sandbox.exec(['bad']), at.sandbox.exec(['true'])]);
  expect(bad).toMatchObject({ status: 'rejected', reason: { code: 'protocol_error' } });
  expect(good).toMatchObject({ status: 'fulfilled', value: { stdout: 'by wire' } });
  expect(at.peers).toHaveLength(1);
});

const fatal: Readonly<Record<string, (peer: Peer, id: number) => void>> = {
  'a frame of no type': (peer) => peer.socket.write(Buffer.alloc(12, 0xff)),
  'a second HELLO': (peer) => peer.send(FrameType.hello, 0, encodeHello('apiserver')),
  'a stream that nobody opened': (peer) => peer.say(4_000_000, 'x'),
  'the end of the connection': (peer) => peer.socket.destroy(),
};

test.for(Object.keys(fatal))('%s ends it, and its commands are taken up where they were', async (name) => {
  let isOver = false;
  await using at = await scene(
    (peer, id, params) => {
      const { argv } = params.exec as { argv: string[] };
      if (argv[0] !== 'long' || isOver) {
        answer('by wire')(peer, id, params);
        return;
      }
      isOver = true;
      peer.begin(id);
      peer.say(id, 'half');
      fatal[name]?.(peer, id);
    },
    {
      onHttp: (exchange) => {
        const from = Number(exchange.query.get('stdoutFrom'));
        exchange.send(started, record('stdout', Buffer.alloc(400_000, '-').subarray(from)), exited());
        exchange.response.end();
      },
    },
  );
  await ready(at.sandbox, at.peers);
  const result = await at.sandbox.exec(['long']);
  // By its id if that was told before the fault, else by the same request.
  expect(result.exitCode).toBe(0);
  expect(isOver).toBe(true);
  await expect.poll(() => at.peers[0]?.socket.destroyed).toBe(true);
  // A new one is made, not at once.
  await expect.poll(async () => (await at.sandbox.exec(['true'])).stdout, { timeout: 5000 }).toBe('by wire');
  expect(at.peers).toHaveLength(2);
});

test('more than there is room for ends it', async () => {
  await using at = await scene(
    (peer, id, params) => {
      const { argv } = params.exec as { argv: string[] };
      if (argv[0] !== 'yes') {
        answer('by wire')(peer, id, params);
        return;
      }
      peer.begin(id);
      for (let i = 0; i < 64; i += 1) peer.say(id, Buffer.alloc(65_536));
    },
    {
      onHttp: (exchange) => {
        exchange.send(started, exited());
        exchange.response.end();
      },
    },
  );
  await ready(at.sandbox, at.peers);
  const exec = at.sandbox.exec(['yes']);
  const iterator = exec[Symbol.asyncIterator]();
  await iterator.next();
  await expect.poll(() => at.peers[0]?.socket.destroyed).toBe(true);
  let received = 0;
  for await (const event of { [Symbol.asyncIterator]: () => iterator })
    if (event.kind === 'stdout') received += event.data.length;
  expect(received).toBeLessThan(2_000_000);
  expect(await exec).toMatchObject({ exitCode: 0 });
});

test('a reader that takes nothing gets no more than it has room for', async () => {
  const total = 8 * 1024 * 1024;
  let sent = 0;
  await using at = await scene((peer, id, params) => {
    const { argv } = params.exec as { argv: string[] };
    if (argv[0] !== 'yes') {
      answer('by wire')(peer, id, params);
      return;
    }
    peer.begin(id);
    const more = (): void => {
      while (sent + 65_536 <= 262_144 - 128 + (peer.granted.get(id) ?? 0) && sent < total) {
        sent += 65_536;
        peer.say(id, Buffer.alloc(65_536));
      }
      if (sent < total) setImmediate(more);
      else peer.end(id);
    };
    more();
  });
  await ready(at.sandbox, at.peers);
  const exec = at.sandbox.exec(['yes'], { maxOutputBytes: 4096 });
  const iterator = exec[Symbol.asyncIterator]();
  const first = await iterator.next();
  await expect.poll(() => sent).toBeGreaterThan(1_000_000);
  expect((await at.sandbox.exec(['true'])).stdout).toBe('by wire');
  expect(sent).toBeLessThan(2_000_000);
  let received = first.value?.kind === 'stdout' ? first.value.data.length : 0;
  for await (const event of { [Symbol.asyncIterator]: () => iterator })
    if (event.kind === 'stdout') received += event.data.length;
  expect(received).toBe(total);
  expect(await exec).toMatchObject({ exitCode: 0 });
});

test('a server that has gone silent is asked, and then given up', async () => {
  const timers: { delayMs: number; fire: () => void }[] = [];
  let nowMs = 0;
  const timing: Timing = {
    ...systemTiming,
    monotonicMs: () => nowMs,
    timer: (delayMs, fire) => {
      if (delayMs < 1000) return systemTiming.timer(delayMs, fire);
      const timer = { delayMs, fire };
      timers.push(timer);
      return () => void timers.splice(timers.indexOf(timer), timers.includes(timer) ? 1 : 0);
    },
  };
  const pass = (ms: number): void => {
    nowMs += ms;
    for (const timer of timers.splice(0)) timer.fire();
  };
  await using at = await scene(
    (peer, id, params) => {
      const { argv } = params.exec as { argv: string[] };
      if (argv[0] === 'long') peer.begin(id);
      else answer('by wire')(peer, id, params);
    },
    {
      timing,
      onHttp: (exchange) => {
        exchange.send(started, record('stdout', 'taken up'), exited());
        exchange.response.end();
      },
    },
  );
  await ready(at.sandbox, at.peers);
  const [peer] = at.peers;
  if (peer === undefined) throw new Error('there is no connection');
  const exec = at.sandbox.exec(['long']);
  await exec.started();
  const pings = (): number => peer.frames.filter((type) => type === FrameType.ping).length;
  pass(15_000);
  await expect.poll(pings).toBe(1);
  // It has answered: nothing is lost however long the command takes.
  for (let round = 2; round < 6; round += 1) {
    await new Promise((resolve) => setImmediate(resolve));
    await expect.poll(() => pings() + Number((pass(15_000), 0))).toBeGreaterThanOrEqual(round);
  }
  expect(peer.socket.destroyed).toBe(false);
  peer.isSilent = true;
  await expect.poll(() => (pass(15_000), peer.socket.destroyed)).toBe(true);
  expect((await exec).stdout).toBe('taken up');
});

test('one that is detached leaves its stream, and the connection', async () => {
  await using at = await scene((peer, id, params) => {
    const { argv } = params.exec as { argv: string[] };
    if (argv[0] === 'long') peer.begin(id);
    else answer('by wire')(peer, id, params);
  });
  await ready(at.sandbox, at.peers);
  const exec = at.sandbox.exec(['long']);
  expect(await exec.detach()).toMatchObject({ execId: expect.stringMatching(/^exec/) as string });
  await expect.poll(() => at.peers[0]?.frames).toContain(FrameType.reset);
  expect((await at.sandbox.exec(['true'])).stdout).toBe('by wire');
  expect(at.peers).toHaveLength(1);
});
