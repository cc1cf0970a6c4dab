import { expect, test } from 'vitest';
import { PlatformError } from '@dsec/contract';
import { DSecClient, type ClientOptions, type OutputEvent, type Sandbox } from '../src/index.ts';
import { exited, record, sandboxInfo, ScriptedServer, started, type Exchange } from './scripted-server.ts';

const quick = { budgetMs: 2000, firstDelayMs: 1, maxDelayMs: 5 };

async function sandboxOf(server: ScriptedServer, options: ClientOptions = {}): Promise<Sandbox> {
  const client = new DSecClient({ endpoint: server.endpoint, apiKey: 'key', retry: quick, ...options });
  return client.getSandbox('s0001');
}

/** Answers the request for the sandbox, and leaves the rest, counted from 0, to the script. */
const scripted =
  (script: (exchange: Exchange, index: number) => void) =>
  (exchange: Exchange, index: number): void => {
    if (exchange.path === '/v1/sandboxes/s0001') exchange.answer(sandboxInfo);
    else script(exchange, index - 1);
  };

test('a stream that breaks in the middle of output is taken up where it broke, with nothing lost or doubled', async () => {
  const text = Buffer.from('the quick brown fox jumps over the lazy dog');
  await using server = await ScriptedServer.start(
    scripted((exchange) => {
      const from = Number(exchange.query.get('stdoutFrom') ?? 0);
      const whole = Buffer.concat([started, record('stdout', text.subarray(from)), exited()]);
      // Each connection brings a few bytes more than the last, cut wherever that falls: in a header, a message or output.
      const cutAt = started.length + 5 + 7;
      if (from + 7 >= text.length) {
        exchange.send(whole);
        exchange.response.end();
      } else {
        exchange.send(whole.subarray(0, cutAt));
        exchange.cut();
      }
    }),
  );
  const result = await (await sandboxOf(server)).runShell('anything');
  expect(result.stdout).toBe(text.toString());
  expect(result.stdoutDropped).toBe(0);
  const [first, ...rest] = server.exchanges.slice(1);
  expect(first?.method).toBe('POST');
  expect(rest.map(({ method, path }) => `${method} ${path}`)).toEqual(
    rest.map(() => 'GET /v1/sandboxes/s0001/execs/exec1/output'),
  );
  expect(rest.length).toBeGreaterThan(3);
});

test('a command whose start was not confirmed is asked for again under the same idempotency key', async () => {
  await using server = await ScriptedServer.start(
    scripted((exchange, index) => {
      if (index < 2) {
        exchange.response.socket?.destroy();
        return;
      }
      exchange.send(started, exited({ exitCode: 3 }));
      exchange.response.end();
    }),
  );
  const result = await (await sandboxOf(server)).exec(['true']);
  expect(result.exitCode).toBe(3);
  const keys = server.exchanges.slice(1).map(({ headers }) => headers['idempotency-key']);
  expect(keys).toHaveLength(3);
  expect(new Set(keys).size).toBe(1);
});

test('two commands never share an idempotency key', async () => {
  await using server = await ScriptedServer.start(
    scripted((exchange) => {
      exchange.send(started, exited());
      exchange.response.end();
    }),
  );
  const sandbox = await sandboxOf(server);
  await Promise.all([sandbox.exec(['true']), sandbox.exec(['true'])]);
  const keys = server.exchanges.slice(1).map(({ headers }) => headers['idempotency-key']);
  expect(new Set(keys).size).toBe(2);
});

test('a stream that ends in good order without an exit record is no success', async () => {
  await using server = await ScriptedServer.start(
    scripted((exchange) => {
      exchange.send(started);
      exchange.response.end();
    }),
  );
  const sandbox = await sandboxOf(server, { retry: { ...quick, budgetMs: 20 } });
  await expect(sandbox.exec(['true'])).rejects.toMatchObject({ code: 'connection_lost', infrastructure: true });
});

test('an error in the stream is the error of the command, and one that passes is followed by another try', async () => {
  await using server = await ScriptedServer.start(
    scripted((exchange, index) => {
      const code = index === 0 ? 'connection_lost' : 'sandbox_failed';
      exchange.send(started, record('json', { error: { code, message: 'scripted', details: { cause: 'oom' } } }));
      exchange.response.end();
    }),
  );
  const failure = (await sandboxOf(server)).exec(['true']);
  await expect(failure).rejects.toMatchObject({ code: 'sandbox_failed', details: { cause: 'oom' } });
  expect(server.exchanges).toHaveLength(3);
});

test('a failed start is told with its code, and is not tried again', async () => {
  await using server = await ScriptedServer.start(scripted((exchange) => exchange.fail(422, 'command_not_found')));
  const sandbox = await sandboxOf(server);
  await expect(sandbox.exec(['nope'])).rejects.toMatchObject({
    code: 'command_not_found',
    details: { requestId: 'r1' },
  });
  expect(server.exchanges).toHaveLength(2);
});

test('a gap is told to who iterates and counted for who awaits', async () => {
  await using server = await ScriptedServer.start(
    scripted((exchange) => {
      exchange.send(
        started,
        record('stdout', 'head'),
        record('json', { gap: { channel: 1, from: 4, to: 104 } }),
        record('stdout', 'tail'),
        exited(),
      );
      exchange.response.end();
    }),
  );
  const exec = (await sandboxOf(server)).exec(['yes']);
  const events: OutputEvent[] = [];
  for await (const event of exec) events.push(event);
  const gap = { kind: 'gap', stream: 'stdout', fromByte: 4, toByte: 104 };
  expect(events.filter(({ kind }) => kind === 'gap')).toEqual([gap]);
  const result = await exec;
  expect(result.stdout).toBe('headtail');
  expect(result.stdoutDropped).toBe(100);
  expect(exec.offsets).toEqual({ stdout: 108, stderr: 0 });
});

test('aborting kills the command and everything it started, then rejects', async () => {
  await using server = await ScriptedServer.start(
    scripted((exchange) => {
      if (exchange.path.endsWith('/signal')) exchange.answer({ delivered: true });
      else exchange.send(started);
    }),
  );
  const controller = new AbortController();
  const exec = (await sandboxOf(server)).exec(['sleep', '99'], { signal: controller.signal });
  await exec.started();
  controller.abort(new Error('enough'));
  await expect(exec).rejects.toMatchObject({ code: 'cancelled' });
  const kill = server.exchanges.find(({ path }) => path.endsWith('/execs/exec1/signal'));
  expect(kill?.json).toEqual({ signal: 9, tree: true });
});

test('an exec that is aborted before it began is never sent', async () => {
  await using server = await ScriptedServer.start(scripted((exchange) => exchange.answer({})));
  const sandbox = await sandboxOf(server);
  await expect(sandbox.exec(['true'], { signal: AbortSignal.abort() })).rejects.toMatchObject({ code: 'cancelled' });
  expect(server.exchanges).toHaveLength(1);
});

test('a reader that takes nothing holds the sender back', async () => {
  const total = 64 * 1024 * 1024;
  let sent = 0;
  let isHeld = false;
  await using server = await ScriptedServer.start(
    scripted((exchange) => {
      exchange.send(started);
      const piece = record('stdout', Buffer.alloc(65_536, 'x'));
      const more = (): void => {
        while (sent < total) {
          sent += 65_536;
          if (!exchange.response.write(piece)) {
            isHeld = true;
            exchange.response.once('drain', more);
            return;
          }
        }
        exchange.send(exited());
        exchange.response.end();
      };
      more();
    }),
  );
  const exec = (await sandboxOf(server)).exec(['yes'], { maxOutputBytes: 4096 });
  const iterator = exec[Symbol.asyncIterator]();
  await iterator.next();
  await expect.poll(() => isHeld).toBe(true);
  // It stays held: what is in flight is bounded by the queue and the buffers of the sockets.
  const heldAt = sent;
  await new Promise((resolve) => setImmediate(resolve));
  expect(sent).toBeLessThan(total / 2);
  expect(sent).toBeLessThan(heldAt + 8 * 1024 * 1024);
  let received = 0;
  for await (const event of { [Symbol.asyncIterator]: () => iterator })
    received += event.kind === 'gap' ? 0 : event.data.length;
  expect(received).toBeGreaterThan(total - 1024 * 1024);
  const result = await exec;
  expect(result.stdoutBytes).toHaveLength(4096);
  expect(result.stdoutDropped).toBe(total - 4096);
});

test('leaving the iteration early leaves the command running and the result to be awaited', async () => {
  await using server = await ScriptedServer.start(
    scripted((exchange) => {
      exchange.send(started, record('stdout', 'one\ntwo\n'), record('stdout', Buffer.alloc(65_536)), exited());
      exchange.response.end();
    }),
  );
  const exec = (await sandboxOf(server)).exec(['seq']);
  for await (const { line } of exec.lines()) {
    expect(line).toBe('one');
    break;
  }
  expect((await exec).stdout.startsWith('one\ntwo\n')).toBe(true);
});

test('a connection that is silent for longer than its keepalives allow is made again', async () => {
  let elapsedMs = 0;
  const timers = new Set<{ readonly dueMs: number; readonly fire: () => void }>();
  const timing = {
    monotonicMs: () => elapsedMs,
    random: () => 0,
    uniqueKey: () => 'k',
    timer: (delayMs: number, fire: () => void) => {
      const timer = { dueMs: elapsedMs + delayMs, fire };
      timers.add(timer);
      return () => void timers.delete(timer);
    },
  };
  const advance = (ms: number): void => {
    elapsedMs += ms;
    for (const timer of timers) {
      if (timer.dueMs > elapsedMs) continue;
      timers.delete(timer);
      timer.fire();
    }
  };
  let isAsked = false;
  await using server = await ScriptedServer.start(
    scripted((exchange, index) => {
      exchange.send(started);
      isAsked = true;
      if (index === 0) return;
      exchange.send(exited({ exitCode: 5 }));
      exchange.response.end();
    }),
  );
  const exec = (await sandboxOf(server, { timing })).exec(['sleep', '60']);
  await exec.started();
  expect(isAsked).toBe(true);
  advance(44_000);
  expect(server.exchanges).toHaveLength(2);
  advance(2000);
  const result = Promise.resolve(exec);
  await expect
    .poll(() => {
      advance(10);
      return server.exchanges.length;
    })
    .toBe(3);
  expect((await result).exitCode).toBe(5);
});

test('detaching leaves the command alone and says where to go on', async () => {
  await using server = await ScriptedServer.start(
    scripted((exchange) => exchange.send(started, record('stdout', 'abc'), record('stderr', 'de'))),
  );
  const exec = (await sandboxOf(server)).exec(['server']);
  const iterator = exec[Symbol.asyncIterator]();
  await iterator.next();
  await iterator.next();
  expect(await exec.detach()).toEqual({ execId: 'exec1', pid: 7, offsets: { stdout: 3, stderr: 2 } });
  await expect(exec).rejects.toMatchObject({ code: 'cancelled' });
  expect(server.exchanges.every(({ path }) => !path.endsWith('/signal'))).toBe(true);
});

test('garbage in the stream is a protocol error, not output and not success', async () => {
  const garbage = [
    Buffer.from([9, 0, 0, 0, 0]),
    Buffer.from([0, 255, 255, 255, 255]),
    record('json', '{"exit":{}}'),
    record('json', 'no json'),
  ];
  for (const bytes of garbage) {
    await using server = await ScriptedServer.start(
      scripted((exchange) => {
        exchange.send(started, bytes);
        exchange.response.end();
      }),
    );
    const failure: unknown = await (await sandboxOf(server)).exec(['true']).then(undefined, (error: unknown) => error);
    expect(PlatformError.is(failure) && failure.code).toBe('protocol_error');
  }
});
