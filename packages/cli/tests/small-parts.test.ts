import { MemoryLogger, SeededRandom, SystemClock } from '@dsec/kit';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, Readable } from 'node:stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { count, pairs, rules, seconds, sizeBytes, sizeMib } from '../src/arguments.ts';
import { EnvironmentCache } from '../src/environment-cache.ts';
import { Daemon } from '../src/server/daemon.ts';
import { endpointOf, parseListen } from '../src/server/daemon-config.ts';
import { copyToLog } from '../src/server/rotating-log.ts';
import { duration, printable, size, table } from '../src/table.ts';

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-cli-'));
});
afterEach(async () => {
  await rm(directory, { recursive: true, force: true });
});

test('sizes, times and pairs mean what people write, and nothing else', () => {
  expect([sizeBytes('512M'), sizeBytes('4GiB'), sizeMib('512'), sizeMib('2G')]).toEqual([2 ** 29, 2 ** 32, 512, 2048]);
  expect([seconds('90'), seconds('1.5m'), seconds('2h'), seconds('1d')]).toEqual([90, 90, 7200, 86_400]);
  expect(pairs('A=b=c', { X: 'y' })).toEqual({ X: 'y', A: 'b=c' });
  expect(rules('npm=off', rules('pypi=on'))).toEqual({ pypi: true, npm: false });
  for (const wrong of [
    () => count('0'),
    () => count('-1'),
    () => count('9'.repeat(400)),
    () => sizeBytes('much'),
    () => sizeBytes('-1M'),
    () => seconds('5 minutes'),
    () => pairs('=x'),
    () => rules('npm=maybe'),
  ]) {
    expect(wrong).toThrow(/must be/);
  }
});

test('addresses to listen at are taken whole or refused', () => {
  expect(parseListen('0.0.0.0:7080')).toEqual({ host: '0.0.0.0', port: 7080 });
  expect(parseListen(':0')).toEqual({ host: '127.0.0.1', port: 0 });
  expect(endpointOf(parseListen('[::]:80'))).toBe('http://[::1]:80');
  expect(endpointOf({ host: '0.0.0.0', port: 80 })).toBe('http://127.0.0.1:80');
  for (const wrong of ['7080', 'host', 'host:99999', '::1:80', 'a:b:1']) {
    expect(() => parseListen(wrong)).toThrow(expect.objectContaining({ code: 'config_invalid' }));
  }
});

test('a table lines its columns up and shows control characters instead of obeying them', () => {
  expect(
    table(
      ['A', 'B'],
      [
        ['xyz', '1'],
        ['é', '2'],
      ],
    ),
  ).toBe('A    B\nxyz  1\né    2');
  expect(printable('a\u001b[31mb\n')).toBe('a\\u{1b}[31mb\\u{a}');
  expect([duration(350), duration(65_000), duration(90_061_000), size(1536), size(3)]).toEqual([
    '0.3s',
    '1m05s',
    '1d1h',
    '1.5 KiB',
    '3 B',
  ]);
});

test('a log is set aside at its size, and one older is kept', async () => {
  const path = join(directory, 'log');
  for (const letter of ['a', 'b', 'c']) {
    await copyToLog(Readable.from([Buffer.from(letter.repeat(60))]), path, { maxBytes: 100 });
  }
  expect(await readFile(path, 'utf8')).toBe('c'.repeat(60));
  expect(await readFile(`${path}.1`, 'utf8')).toBe('b'.repeat(60));
});

test('a log that cannot be written keeps nobody waiting, and goes on when it can', async () => {
  const lost: unknown[] = [];
  const onLost = (error: unknown): void => void lost.push((error as NodeJS.ErrnoException).code);
  const much = Array.from({ length: 50 }, () => Buffer.alloc(64 * 1024, 'x'));
  await copyToLog(Readable.from(much), '/dev/full', { onLost });
  expect(lost).toEqual(['ENOSPC']);

  const later = join(directory, 'later');
  const source = new PassThrough();
  const copied = copyToLog(source, join(later, 'log'), { onLost });
  source.write('lost');
  await expect.poll(() => lost).toEqual(['ENOSPC', 'ENOENT']);
  await mkdir(later);
  source.end('kept');
  await copied;
  expect(await readFile(join(later, 'log'), 'utf8')).toBe('kept');
  expect(lost).toHaveLength(2);
});

test('a cached environment is handed out whole, and only for the same recipe', async () => {
  const hex = 'a'.repeat(64);
  const [layers, next] = [join(directory, 'layers'), join(directory, 'next')];
  await mkdir(join(layers, hex), { recursive: true });
  await writeFile(join(layers, hex, 'rootfs.erofs'), 'image');
  const config = { env: {}, user: 'root', workdir: '/', entrypoint: [], cmd: [], labels: {} };
  const image = { layers: [`sha256:${hex}`], config, architecture: 'amd64', sizeBytes: 5 };
  const cache = new EnvironmentCache(join(directory, 'cache'));
  expect(await cache.take('name: x', { layersDirectory: next })).toBeUndefined();
  await cache.keep('name: x', image, layers);
  expect(await cache.take('name: y', { layersDirectory: next })).toBeUndefined();
  expect(await cache.take('name: x', { layersDirectory: next })).toEqual(image);
  expect(await readFile(join(next, hex, 'rootfs.erofs'), 'utf8')).toBe('image');
});

const daemonOf = (script: string, isReady: (signal: AbortSignal) => Promise<void>, pids: number[]) => ({
  name: 'daemon',
  argv: ['/bin/sh', '-c', script] as const,
  env: {},
  logFile: join(directory, 'log'),
  clock: new SystemClock(),
  random: new SeededRandom(1),
  logger: new MemoryLogger(),
  isReady,
  onRestarted: (pid: number) => {
    pids.push(pid);
    return Promise.resolve();
  },
});

test('a daemon that dies is started again until it is stopped', async () => {
  const pids: number[] = [];
  const daemon = await Daemon.start(daemonOf('exec sleep 60', () => Promise.resolve(), pids));
  const first = daemon.pid;
  process.kill(first, 'SIGKILL');
  await expect.poll(() => pids.length).toBe(1);
  expect(daemon.pid).toBe(pids[0]);
  expect(daemon.pid).not.toBe(first);
  const second = daemon.pid;
  await daemon[Symbol.asyncDispose]();
  expect(() => process.kill(second, 0)).toThrow(/ESRCH/);
  expect(pids).toHaveLength(1);
});

test('a daemon goes on when it cannot be told that it was started again', async () => {
  const options = daemonOf('exec sleep 60', () => Promise.resolve(), []);
  const daemon = await Daemon.start({ ...options, onRestarted: () => Promise.reject(new Error('the disk is full')) });
  process.kill(daemon.pid, 'SIGKILL');
  await expect.poll(() => options.logger.records.map(({ event }) => event)).toContain('daemon.untold');
  const second = daemon.pid;
  expect(process.kill(second, 0)).toBe(true);
  process.kill(second, 'SIGKILL');
  await expect.poll(() => daemon.pid).not.toBe(second);
  await daemon[Symbol.asyncDispose]();
  expect(options.logger.records.map(({ event }) => event)).not.toContain('daemon.restart');
});

test('a daemon that ends before it is ready fails with what it said last', async () => {
  const never = (signal: AbortSignal): Promise<void> =>
    new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error)));
  await expect(Daemon.start(daemonOf('echo no such file >&2; exit 3', never, []))).rejects.toMatchObject({
    code: 'host_unsuitable',
    details: { output: expect.stringContaining('no such file') as string },
  });
});
