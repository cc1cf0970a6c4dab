import { EXEC_STREAM_TYPE, execStreamKind, PlatformError, type ExecResultJson, type ExecStatus } from '@dsec/contract';
import { ManualClock } from '@dsec/kit';
import type { WireServerStream } from '@dsec/native-link';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ADMIN_KEY, exitedStatus, Fixture, type Params } from '../apiserver.fixture.ts';

let fixture: Fixture;
let path: string;
beforeEach(async () => {
  fixture = await Fixture.start();
  path = `/sandboxes/${fixture.sandboxId}/execs`;
});
afterEach(() => fixture[Symbol.asyncDispose]());

type Record = readonly [kind: number, payload: unknown];

function recordsOf(body: Buffer): Record[] {
  const records: Record[] = [];
  for (let at = 0; at < body.length; ) {
    const kind = body.readUInt8(at);
    const end = at + 5 + body.readUInt32LE(at + 1);
    if (end > body.length) throw new Error('a record is cut');
    const payload = body.toString('utf8', at + 5, end);
    records.push([kind, kind === execStreamKind.json ? (JSON.parse(payload) as unknown) : payload]);
    at = end;
  }
  return records;
}

/** A command that says this and ends. */
async function say(
  params: Params,
  stream: WireServerStream,
  output: readonly (readonly [1 | 2, string | Buffer])[],
): Promise<ExecStatus> {
  const execId = String(params.execId);
  await stream.message({ started: { execId, pid: 7 } });
  for (const [channel, text] of output) await stream.write(Buffer.from(text), channel);
  return exitedStatus(execId);
}

const records = { headers: { accept: EXEC_STREAM_TYPE } };

describe('POST execs', () => {
  test('answers with the result when the command has ended', async () => {
    fixture.edge.on('exec.start', (params, stream) =>
      say(params, stream, [
        [1, 'out é'],
        [2, 'err'],
        [1, ' more'],
      ]),
    );
    const answer = await fixture.ask('POST', path, {
      json: { argv: ['echo', 'a b', ''], cwd: '/tmp', user: 'bin', tag: 't', timeoutMs: 5, outputLimitBytes: 4096 },
    });
    expect(answer.status).toBe(200);
    const { status, ...rest } = answer.json<ExecResultJson>();
    expect(rest).toEqual({ stdout: 'out é more', stderr: 'err' });
    expect(status).toMatchObject({ exitCode: 0, state: 'exited' });
    expect(fixture.edge.last('exec.start')).toEqual({
      sandboxId: fixture.sandboxId,
      execId: status.execId,
      argv: ['echo', 'a b', ''],
      env: {},
      cwd: '/tmp',
      user: 'bin',
      tag: 't',
      timeoutMs: 5,
      outputLimitBytes: 4096,
      stdin: 'none',
    });
  });

  test('gives the bytes beside the text when that is not exact', async () => {
    const bytes = Buffer.from([0xff, 0x00, 0x41]);
    fixture.edge.on('exec.start', (params, stream) => say(params, stream, [[1, bytes]]));
    const result = (await fixture.ask('POST', path, { json: { argv: ['x'] } })).json<ExecResultJson>();
    expect(result.stdout).toBe('\ufffd\0A');
    expect(Buffer.from(result.stdoutBase64 ?? '', 'base64')).toEqual(bytes);
  });

  test('keeps the first quarter and the newest rest of long output, and counts what it left out', async () => {
    const piece = (index: number): string => `${String(index).padStart(9, '0')}\n`.repeat(1000);
    fixture.edge.on('exec.start', async (params, stream) => {
      await stream.message({ started: { execId: String(params.execId), pid: 1 } });
      await stream.message({ gap: { channel: 1, from: 0, to: 50 } });
      for (let index = 0; index < 30; index++) await stream.write(Buffer.from(piece(index)), 1);
      return exitedStatus(String(params.execId));
    });
    const result = (
      await fixture.ask('POST', path, { json: { argv: ['x'], outputLimitBytes: 40_000 } })
    ).json<ExecResultJson>();
    expect(result.stdout).toBe(piece(0) + piece(27) + piece(28) + piece(29));
    expect(result.status.stdoutDropped).toBe(260_050);
  });

  test('streams records, all in order, the exit last', async () => {
    fixture.edge.on('exec.start', (params, stream) =>
      say(params, stream, [
        [1, 'a'],
        [2, 'b'],
        [1, 'c'],
      ]),
    );
    const answer = await fixture.ask('POST', path, { json: { shell: 'x', login: true }, ...records });
    expect(answer.headers['content-type']).toBe(EXEC_STREAM_TYPE);
    const { execId, shell } = fixture.edge.last('exec.start') ?? {};
    expect(shell).toEqual({ script: 'x', login: true });
    expect(recordsOf(answer.body)).toEqual([
      [execStreamKind.json, { started: { execId, pid: 7 } }],
      [execStreamKind.stdout, 'a'],
      [execStreamKind.stderr, 'b'],
      [execStreamKind.stdout, 'c'],
      [execStreamKind.json, { exit: exitedStatus(String(execId)) }],
    ]);
  });

  test('tells the start and each output of a long command as they come', async () => {
    const next = Promise.withResolvers<undefined>();
    fixture.edge.on('exec.start', async (params, stream) => {
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      await stream.write(Buffer.from('first'), 1);
      await next.promise;
      await stream.message({ gap: { channel: 2, from: 0, to: 9 } });
      return exitedStatus(String(params.execId));
    });
    const seen: Buffer[] = [];
    const ended = new Promise<void>((resolve, reject) => {
      const outgoing = httpRequest(
        {
          port: fixture.port,
          host: '127.0.0.1',
          method: 'POST',
          path: `/v1${path}`,
          headers: { ...records.headers, authorization: `Bearer ${ADMIN_KEY}`, 'content-type': 'application/json' },
        },
        (response) => {
          response.on('data', (chunk: Buffer) => seen.push(chunk));
          response.on('end', resolve);
        },
      );
      outgoing.on('error', reject);
      outgoing.end('{"argv":["x"]}');
    });
    await expect.poll(() => recordsOf(Buffer.concat(seen)).length).toBe(2);
    next.resolve(undefined);
    await ended;
    expect(recordsOf(Buffer.concat(seen)).slice(2)).toMatchObject([
      [execStreamKind.json, { gap: { channel: 2, from: 0, to: 9 } }],
      [execStreamKind.json, { exit: { state: 'exited' } }],
    ]);
  });

  test('carries large output whole and holds the command back for a slow reader', async () => {
    const size = 20_000_000;
    let written = 0;
    fixture.edge.on('exec.start', async (params, stream) => {
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      while (written < size) {
        await stream.write(Buffer.alloc(50_000, 0x61), 1);
        written += 50_000;
      }
      return exitedStatus(String(params.execId));
    });
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const headers = { ...records.headers, authorization: `Bearer ${ADMIN_KEY}`, 'content-type': 'application/json' };
      const options = { port: fixture.port, host: '127.0.0.1', method: 'POST', path: `/v1${path}`, headers };
      httpRequest(options, resolve).once('error', reject).end('{"argv":["x"]}');
    });
    response.pause();
    await expect.poll(() => written).toBeGreaterThan(1_000_000);
    let before = -1;
    // It stands still once the buffers on the way are full.
    const standsStill = (): boolean => {
      const isStill = before === written;
      before = written;
      return isStill;
    };
    await expect.poll(standsStill, { interval: 200, timeout: 5000 }).toBe(true);
    expect(written).toBeLessThan(size);
    const chunks: Buffer[] = [];
    for await (const chunk of response as AsyncIterable<Buffer>) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    const output = recordsOf(body)
      .filter(([kind]) => kind === execStreamKind.stdout)
      .map(([, text]) => String(text).length);
    expect(output.reduce((sum, length) => sum + length, 0)).toBe(size);
  });

  test('answers with the status at once when it is to be detached, and lets go of the stream', async () => {
    let isReleased = false;
    fixture.edge.on('exec.start', async (params, stream) => {
      stream.signal.addEventListener('abort', () => (isReleased = true));
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
    });
    fixture.edge.on('exec.get', (params) => Promise.resolve(exitedStatus(String(params.execId), { state: 'running' })));
    const answer = await fixture.ask('POST', path, { json: { argv: ['x'], detach: true } });
    expect(answer.status).toBe(202);
    expect(answer.json()).toMatchObject({ state: 'running' });
    expect(fixture.edge.last('exec.start')).not.toHaveProperty('detach');
    await expect.poll(() => isReleased).toBe(true);
  });

  test('sends stdin along and closes it', async () => {
    let input = '';
    fixture.edge.on('exec.start', async (params, stream) => {
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      for await (const item of stream) {
        if (item.type === 'data') input += item.bytes.toString('latin1');
        if (item.type === 'end') break;
      }
      return exitedStatus(String(params.execId));
    });
    const bytes = Buffer.alloc(1_000_000, 'é\0\xff', 'latin1');
    const answer = await fixture.ask('POST', path, { json: { argv: ['cat'], stdinBase64: bytes.toString('base64') } });
    expect(answer.status).toBe(200);
    expect(fixture.edge.last('exec.start')).toMatchObject({ stdin: 'open' });
    expect(input === bytes.toString('latin1')).toBe(true);
  });

  test('names the same exec for the same idempotency key, of this key of the API and sandbox only', async () => {
    fixture.edge.on('exec.start', (params, stream) => say(params, stream, []));
    const { key } = await fixture.services.keys.create({ project: 'default', name: 'other', readOnly: false });
    const ask = async (json: object, idempotencyKey: string, secret = ADMIN_KEY): Promise<Params> => {
      await fixture.ask('POST', path, { json, key: secret, headers: { 'idempotency-key': idempotencyKey } });
      return fixture.edge.last('exec.start') ?? {};
    };
    const first = await ask({ argv: ['a'], env: { B: '1', A: '2' } }, 'k1');
    const again = await ask({ env: { A: '2', B: '1' }, argv: ['a'] }, 'k1');
    expect(again).toEqual(first);
    expect(first.execId).toMatch(/^[0-9a-f]{24}$/);
    const other = await ask({ argv: ['b'] }, 'k1');
    expect(other.execId).toBe(first.execId);
    expect(other.fingerprint).not.toBe(first.fingerprint);
    expect((await ask({ argv: ['a'] }, 'k2')).execId).not.toBe(first.execId);
    expect((await ask({ argv: ['a'] }, 'k1', key)).execId).not.toBe(first.execId);
  });

  test.each([
    ['neither argv nor shell', {}, 'argv'],
    ['both', { argv: ['a'], shell: 'b' }, 'argv'],
    ['login without shell', { argv: ['a'], login: true }, 'login'],
    ['two kinds of stdin', { argv: ['a'], stdin: 'open', stdinBase64: '' }, 'stdinBase64'],
    ['stdin that is not base64', { argv: ['a'], stdinBase64: 'a*b=' }, 'stdinBase64'],
    ['NUL in an argument', { argv: ['a\0b'] }, 'argv.0'],
    ['an empty argv', { argv: [] }, 'argv'],
    ['a bad size of a terminal', { argv: ['a'], pty: { rows: 0, cols: 80 } }, 'pty.rows'],
  ])('refuses %s', async (_name, json, field) => {
    const answer = await fixture.ask('POST', path, { json });
    expect(answer.error).toMatchObject({ code: 'invalid_argument', details: { field } });
    expect(fixture.edge.calls).toEqual([]);
  });

  test.each([{}, records])('has a status for what keeps a command from starting', async (how) => {
    fixture.edge.on('exec.start', () =>
      Promise.reject(new PlatformError('command_not_found', 'no such program', { details: { program: 'x' } })),
    );
    const answer = await fixture.ask('POST', path, { json: { argv: ['x'] }, ...how });
    expect([answer.status, answer.error.code, answer.error.details]).toEqual([
      422,
      'command_not_found',
      { program: 'x' },
    ]);
  });

  test('tells an error after the start as the last record', async () => {
    fixture.edge.on('exec.start', async (params, stream) => {
      await say(params, stream, [[1, 'a']]);
      throw new PlatformError('sandbox_ended', 'it was stopped', { details: { cause: 'ttl' } });
    });
    const all = recordsOf((await fixture.ask('POST', path, { json: { argv: ['x'] }, ...records })).body);
    expect(all.at(-1)).toEqual([
      execStreamKind.json,
      { error: { code: 'sandbox_ended', message: 'it was stopped', details: { cause: 'ttl' } } },
    ]);
    expect((await fixture.ask('POST', path, { json: { argv: ['x'] } })).error.code).toBe('sandbox_ended');
  });

  test('tells a lost edge as the last record', async () => {
    fixture.edge.on('exec.start', async (params, stream) => {
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
    });
    const asking = fixture.ask('POST', path, { json: { argv: ['x'] }, ...records });
    await expect.poll(() => fixture.edge.calls.length).toBe(1);
    await new Promise((resolve) => setImmediate(resolve));
    await fixture.edge.stop();
    const answer = await asking;
    // When the start has not arrived yet, the answer has a status instead.
    if (answer.status === 200)
      expect(recordsOf(answer.body).at(-1)).toMatchObject([0, { error: { code: 'connection_lost' } }]);
    else expect([answer.status, answer.error.code]).toEqual([503, 'connection_lost']);
  });

  test('sends a keepalive when a command is silent, and logs how the answer ended', async () => {
    const clock = new ManualClock();
    await using silent = await Fixture.start({ clock });
    const end = Promise.withResolvers<undefined>();
    silent.edge.on('exec.start', async (params, stream) => {
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      await end.promise;
      throw new PlatformError('sandbox_ended', 'stopped');
    });
    const asking = silent.ask('POST', `/sandboxes/${silent.sandboxId}/execs`, { json: { argv: ['x'] }, ...records });
    await expect.poll(() => clock.pendingTimers).toBe(1);
    for (let second = 0; second < 40; second++) await clock.advance(1000);
    end.resolve(undefined);
    const kinds = recordsOf((await asking).body).map(([kind]) => kind);
    expect(kinds).toEqual([
      execStreamKind.json,
      execStreamKind.keepalive,
      execStreamKind.keepalive,
      execStreamKind.json,
    ]);
    await expect
      .poll(() => silent.logger.records.at(-1)?.fields)
      .toMatchObject({ status: 200, outcome: 'sandbox_ended' });
    expect(clock.pendingTimers).toBe(0);
  });

  test.each<[string, PlatformError | undefined, object]>([
    ['its result', undefined, { status: { exitCode: 0 }, stdout: '' }],
    ['what went wrong', new PlatformError('sandbox_ended', 'stopped'), { error: { code: 'sandbox_ended' } }],
  ])('puts blanks before %s when a command is silent and its answer is in one piece', async (_name, error, body) => {
    const clock = new ManualClock();
    await using silent = await Fixture.start({ clock });
    const end = Promise.withResolvers<undefined>();
    silent.edge.on('exec.start', async (params, stream) => {
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      await end.promise;
      if (error !== undefined) throw error;
      return exitedStatus(String(params.execId));
    });
    const asking = silent.ask('POST', `/sandboxes/${silent.sandboxId}/execs`, { json: { argv: ['x'] } });
    await expect.poll(() => clock.pendingTimers).toBe(1);
    for (let second = 0; second < 40; second++) await clock.advance(1000);
    end.resolve(undefined);
    const answer = await asking;
    expect(answer.status).toBe(200);
    expect(answer.text).toMatch(/^ {2}\{/);
    expect(answer.json()).toMatchObject(body);
    expect(clock.pendingTimers).toBe(0);
  });

  test.each([
    ['a message that is none of the protocol', (stream: WireServerStream) => stream.message({ exit: {} })],
    ['a negative gap', (stream: WireServerStream) => stream.message({ gap: { channel: 1, from: -1, to: 5 } })],
    ['output on an unknown channel', (stream: WireServerStream) => stream.write(Buffer.from('x'), 3)],
  ])('takes %s from inside for a fault of the other side', async (_name, misbehave) => {
    fixture.edge.on('exec.start', async (params, stream) => {
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      await misbehave(stream);
      return exitedStatus(String(params.execId));
    });
    expect((await fixture.ask('POST', path, { json: { argv: ['x'] } })).error.code).toBe('protocol_error');
  });

  test('lets go of the stream when its client goes away', async () => {
    let isReleased = false;
    fixture.edge.on('exec.start', async (params, stream) => {
      stream.signal.addEventListener('abort', () => (isReleased = true));
      await stream.message({ started: { execId: String(params.execId), pid: 7 } });
      await new Promise((resolve) => stream.signal.addEventListener('abort', resolve));
    });
    const controller = new AbortController();
    const asking = fixture
      .ask('POST', path, { json: { argv: ['x'] }, signal: controller.signal, ...records })
      .catch(() => undefined);
    await expect.poll(() => fixture.edge.calls.length).toBe(1);
    controller.abort();
    await asking;
    await expect.poll(() => isReleased).toBe(true);
  });
});

describe('one exec', () => {
  test('is shown and listed', async () => {
    fixture.edge.on('exec.get', (params) => Promise.resolve(exitedStatus(String(params.execId))));
    fixture.edge.on('exec.list', () => Promise.resolve({ execs: [exitedStatus('e1')] }));
    expect((await fixture.ask('GET', `${path}/e1`)).json()).toEqual(exitedStatus('e1'));
    expect((await fixture.ask('GET', path)).json()).toEqual({ execs: [exitedStatus('e1')] });
    expect((await fixture.ask('GET', `${path}/E1`)).error.details).toEqual({ field: 'execId' });
  });

  test('gives its output again, from where it is asked for', async () => {
    fixture.edge.on('exec.attach', (params, stream) => say(params, stream, [[1, 'rest']]));
    const answer = await fixture.ask('GET', `${path}/e1/output?stdoutFrom=5&stderrFrom=2&follow=false`);
    expect(answer.json()).toMatchObject({ stdout: 'rest', stderr: '', status: { execId: 'e1' } });
    expect(fixture.edge.last('exec.attach')).toEqual({
      sandboxId: fixture.sandboxId,
      execId: 'e1',
      stdoutFrom: 5,
      stderrFrom: 2,
      follow: false,
    });
    const streamed = await fixture.ask('GET', `${path}/e1/output`, records);
    expect(recordsOf(streamed.body)).toHaveLength(3);
    for (const query of ['stdoutFrom=-1', 'follow=yes', 'stdoutFrom=1.5']) {
      expect((await fixture.ask('GET', `${path}/e1/output?${query}`)).error.code).toBe('invalid_argument');
    }
  });

  test('takes signals and sizes', async () => {
    fixture.edge.on('exec.signal', () => Promise.resolve({ delivered: true }));
    fixture.edge.on('exec.resize', () => Promise.resolve({}));
    const named = { sandboxId: fixture.sandboxId, execId: 'e1' };
    expect((await fixture.ask('POST', `${path}/e1/signal`)).json()).toEqual({ delivered: true });
    expect(fixture.edge.last('exec.signal')).toEqual({ ...named, signal: 9, tree: true });
    await fixture.ask('POST', `${path}/e1/signal`, { json: { signal: 15, tree: false } });
    expect(fixture.edge.last('exec.signal')).toEqual({ ...named, signal: 15, tree: false });
    expect((await fixture.ask('POST', `${path}/e1/signal`, { json: { signal: 65 } })).error.code).toBe(
      'invalid_argument',
    );
    expect((await fixture.ask('POST', `${path}/e1/resize`, { json: { rows: 10, cols: 20 } })).status).toBe(204);
    expect(fixture.edge.last('exec.resize')).toEqual({ ...named, rows: 10, cols: 20 });
    expect((await fixture.ask('POST', `${path}/e1/resize`, { json: { rows: 10 } })).error.details.field).toBe('cols');
  });

  test('takes stdin as bytes, and keeps it open where asked', async () => {
    let input = Buffer.alloc(0);
    fixture.edge.on('exec.stdin', async (_params, stream) => {
      for await (const item of stream) {
        if (item.type === 'data') input = Buffer.concat([input, item.bytes]);
        if (item.type === 'end') break;
      }
      return { bytes: input.length };
    });
    const bytes = Buffer.from([0, 255, 10, 13]);
    expect(
      (
        await fixture.ask('PUT', `${path}/e1/stdin?close=false`, {
          body: bytes,
          headers: { 'content-type': 'application/octet-stream' },
        })
      ).status,
    ).toBe(204);
    expect(fixture.edge.last('exec.stdin')).toEqual({ sandboxId: fixture.sandboxId, execId: 'e1', keepOpen: true });
    expect((await fixture.ask('PUT', `${path}/e1/stdin?close=true`)).status).toBe(204);
    expect(fixture.edge.last('exec.stdin')).toEqual({ sandboxId: fixture.sandboxId, execId: 'e1' });
    expect(input).toEqual(bytes);
    fixture.edge.on('exec.stdin', () => Promise.reject(new PlatformError('stdin_closed', 'closed')));
    const refused = await fixture.ask('PUT', `${path}/e1/stdin`, { body: Buffer.alloc(3_000_000) });
    expect([refused.status, refused.error.code]).toEqual([409, 'stdin_closed']);
  });
});

describe('sessions', () => {
  test('are opened, listed and closed', async () => {
    const sessions = `/sandboxes/${fixture.sandboxId}/sessions`;
    fixture.edge.on('session.open', () => Promise.resolve({ pid: 9 }));
    fixture.edge.on('session.close', () => Promise.resolve({}));
    const opened = await fixture.ask('POST', sessions, { json: { cwd: '/tmp', env: { A: '1' } } });
    expect(opened.status).toBe(201);
    const { sessionId } = opened.json<{ sessionId: string }>();
    expect(opened.json()).toEqual({ sessionId, pid: 9, busy: false });
    expect(fixture.edge.last('session.open')).toEqual({
      sandboxId: fixture.sandboxId,
      sessionId,
      cwd: '/tmp',
      env: { A: '1' },
    });
    expect((await fixture.ask('POST', sessions)).status).toBe(201);
    fixture.edge.on('session.list', () => Promise.resolve({ sessions: [{ sessionId, pid: 9, busy: true }] }));
    expect((await fixture.ask('GET', sessions)).json()).toEqual({ sessions: [{ sessionId, pid: 9, busy: true }] });
    expect((await fixture.ask('DELETE', `${sessions}/${sessionId}`)).status).toBe(204);
    expect(fixture.edge.last('session.close')).toEqual({ sandboxId: fixture.sandboxId, sessionId });
    fixture.edge.on('session.close', () => Promise.reject(new PlatformError('session_not_found', 'gone')));
    expect((await fixture.ask('DELETE', `${sessions}/${sessionId}`)).error.code).toBe('session_not_found');
  });
});
