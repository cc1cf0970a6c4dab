/**
 * Figures of the wire protocol between Node processes over unix sockets: `node packages/native-link/tests/wire-bench.ts [--quick]`
 * prints one JSON line. `relayed` goes through a third process, as an edge stands between apiserver and aether.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Connection, Process, SystemClock, SystemNetwork } from '@dsec/kit';

import { relay, serve, WireClient, type WireHandler } from '../src/index.ts';

const clock = new SystemClock();
const network = new SystemNetwork();
const CHUNK = Buffer.alloc(65_536, 1);

const answer: WireHandler = async (method, params, stream) => {
  switch (method) {
    case 'call':
      return params;
    case 'exec': {
      // The shape of `true` in a sandbox: started, some output, status.
      await stream.message({ started: { execId: 'e1', pid: 7 } });
      await stream.write(Buffer.from('x\n'), 1);
      return { execId: 'e1', state: 'exited', exitCode: 0 };
    }
    case 'read': {
      let left = Number(params.bytes);
      for (; left > 0; left -= CHUNK.length) await stream.write(CHUNK.subarray(0, Math.min(left, CHUNK.length)));
      return {};
    }
    default: {
      let bytes = 0;
      for await (const item of stream) {
        if (item.type === 'end') break;
        if (item.type === 'data') bytes += item.bytes.length;
      }
      return { bytes };
    }
  }
};

const onFault = (fault: unknown): void => {
  process.stderr.write(`${String(fault)}\n`);
};

const listen = (path: string, handler: WireHandler): Promise<unknown> =>
  network.listenUnix(path, (socket: Connection) => serve(socket, handler, { role: 'bench', clock, onFault }));

const connect = async (path: string): Promise<WireClient> =>
  WireClient.connect(await network.connectUnix(path), { role: 'bench', clock });

const measure = async (count: number, once: () => Promise<unknown>): Promise<{ p50Us: number; p95Us: number }> => {
  const times: number[] = [];
  for (let index = 0; index < count; index += 1) {
    const begun = clock.monotonicMs();
    await once();
    times.push((clock.monotonicMs() - begun) * 1_000);
  }
  times.sort((one, other) => one - other);
  const at = (share: number): number => Math.round((times[Math.floor(times.length * share)] ?? 0) * 10) / 10;
  return { p50Us: at(0.5), p95Us: at(0.95) };
};

const perSecond = async (count: number, run: () => Promise<unknown>): Promise<number> => {
  const begun = clock.monotonicMs();
  await run();
  return Math.round((count / (clock.monotonicMs() - begun)) * 1_000);
};

const bench = async (path: string, isQuick: boolean): Promise<object> => {
  await using client = await connect(path);
  const calls = isQuick ? 2_000 : 20_000;
  const call = (): Promise<unknown> => client.call('call', { a: 1 });
  const exec = async (): Promise<unknown> => {
    const stream = client.open('exec', {});
    for await (const item of stream) void item;
    return stream.result;
  };
  const bytes = isQuick ? 200_000_000 : 1_000_000_000;
  const read = async (): Promise<void> => {
    const stream = client.open('read', { bytes });
    for await (const item of stream) void item;
  };
  const write = async (): Promise<void> => {
    const stream = client.open('write', {});
    for (let left = bytes; left > 0; left -= CHUNK.length) await stream.write(CHUNK);
    stream.end();
    await stream.result;
  };
  await measure(calls / 4, call);
  await measure(calls / 4, exec);
  const result = {
    call: await measure(calls, call),
    exec: await measure(calls, exec),
    callsPerSecond64: await perSecond(calls, () =>
      Promise.all(Array.from({ length: 64 }, () => measure(Math.ceil(calls / 64), call))),
    ),
    readMBs: Math.round((await perSecond(bytes, read)) / 1e6),
    writeMBs: Math.round((await perSecond(bytes, write)) / 1e6),
  };
  return result;
};

const main = async (): Promise<void> => {
  const [role = '', path = '', upstream = ''] = process.argv.slice(2);
  if (role === 'server') {
    await listen(path, answer);
    process.stdout.write('ready\n');
    return;
  }
  if (role === 'relay') {
    const far = await connect(upstream);
    await listen(path, (method, params, stream) => void relay(stream, far.open(method, params)));
    process.stdout.write('ready\n');
    return;
  }
  const directory = await mkdtemp(join(tmpdir(), 'dsec-wire-bench-'));
  const [server, middle] = [join(directory, 'server'), join(directory, 'relay')];
  const start = async (...args: string[]): Promise<Process> => {
    const started = await Process.start([process.execPath, fileURLToPath(import.meta.url), ...args], {
      clock,
      stdout: 'pipe',
    });
    await new Promise((resolve) => started.stdout.once('data', resolve));
    return started;
  };
  try {
    await using serving = await start('server', server);
    await using relaying = await start('relay', middle, server);
    void serving;
    void relaying;
    const isQuick = role === '--quick';
    const direct = await bench(server, isQuick);
    const relayed = await bench(middle, isQuick);
    process.stdout.write(`${JSON.stringify({ bench: 'wire', direct, relayed })}\n`);
  } finally {
    await rm(directory, { recursive: true });
  }
};

await main();
