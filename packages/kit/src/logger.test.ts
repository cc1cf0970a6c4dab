import { once } from 'node:events';
import { PlatformError } from '@dsec/contract';
import { expect, test } from 'vitest';
import { ManualClock, SystemClock } from './clock.ts';
import { createLogger, logOperation, MemoryLogger } from './logger.ts';
import { Process, run } from './spawn.ts';

function capture(): { lines: () => Record<string, unknown>[]; destination: { write(line: string): void } } {
  const written: string[] = [];
  return {
    lines: () => written.map((line) => JSON.parse(line) as Record<string, unknown>),
    destination: { write: (line) => void written.push(line) },
  };
}

test('writes one JSON line per event, with no secret in it at any depth', () => {
  const { lines, destination } = capture();
  const logger = createLogger({ component: 'test', destination }).child({ apiKey: 'hidden-1', sandboxId: 's1' });
  logger.info('thing.done', {
    headers: { authorization: 'hidden-2', accept: '*' },
    env: { A: 'hidden-3' },
    keyId: 'k',
    body: Buffer.from('hidden-4'),
  });
  expect(lines()).toEqual([
    expect.objectContaining({
      level: 'info',
      component: 'test',
      event: 'thing.done',
      sandboxId: 's1',
      keyId: 'k',
      headers: { authorization: '[redacted]', accept: '*' },
    }),
  ]);
  expect(JSON.stringify(lines())).not.toContain('hidden');
});

test('writes the chain of causes and the details of an error', () => {
  const { lines, destination } = capture();
  const cause = Object.assign(new Error('no such file'), { code: 'ENOENT' });
  createLogger({ component: 'test', destination }).error('thing.failed', {
    error: new PlatformError('internal', 'it failed', { details: { token: 'hidden' }, cause }),
  });
  expect(lines()[0]).toMatchObject({
    error: {
      code: 'internal',
      message: 'it failed',
      details: { token: '[redacted]' },
      cause: { code: 'ENOENT', message: 'no such file' },
    },
  });
});

test('is silent below its level', () => {
  const { lines, destination } = capture();
  createLogger({ component: 'test', destination, level: 'warn' }).info('quiet');
  expect(lines()).toEqual([]);
});

test('logs an operation once, with outcome and duration', async () => {
  const logger = new MemoryLogger();
  const clock = new ManualClock();
  const options = { logger, clock, event: 'op', fields: { id: 'x' } };
  const running = logOperation(options, () => clock.sleep(12));
  await clock.advance(12);
  await running;
  await expect(logOperation(options, () => Promise.reject(new PlatformError('timeout', 'late')))).rejects.toMatchObject(
    { code: 'timeout' },
  );
  expect(logger.records).toMatchObject([
    { level: 'info', event: 'op', fields: { id: 'x', outcome: 'ok', durationMs: 12 } },
    { level: 'warn', event: 'op', fields: { id: 'x', outcome: 'timeout' } },
  ]);
});

test('with a clock, writes lines together, at the latest at the end of the process or with a warning', async () => {
  const script = `
    const { createLogger, SystemClock } = await import(${JSON.stringify(new URL('./index.ts', import.meta.url).href)});
    const logger = createLogger({ component: 'test', clock: new SystemClock() });
    for (let i = 0; i < 3; i++) logger.info('line.' + i);
    if (process.argv[1] === 'warn') { logger.warn('last'); process.kill(process.pid, 'SIGKILL'); }
    process.exit();`;
  const argv = [process.execPath, '--input-type=module', '-e', script] as const;
  const { stderrTail } = await run(argv, { clock: new SystemClock() });
  expect(stderrTail.match(/line\.\d/g)).toEqual(['line.0', 'line.1', 'line.2']);
  const killed = run([...argv, 'warn'], { clock: new SystemClock() });
  await expect(killed).rejects.toMatchObject({
    details: { stderr: expect.stringMatching(/line\.0[^]*last/) as string },
  });
});

test('a process whose lines nobody reads any more goes on, and ends', async () => {
  const script = `
    const { createLogger, SystemClock } = await import(${JSON.stringify(new URL('./index.ts', import.meta.url).href)});
    const logger = createLogger({ component: 'test', clock: new SystemClock() });
    process.stdin.once('end', () => {
      logger.info('first');
      logger.warn('second');
      process.exit(3);
    });
    process.stdin.resume();
    logger.warn('ready');`;
  const argv = [process.execPath, '--input-type=module', '-e', script] as const;
  const clock = new SystemClock();
  const child = await Process.start(argv, { clock, stdin: 'pipe', stdout: 'ignore', stderr: 'pipe' });
  await once(child.stderr, 'data');
  child.stderr.destroy();
  await once(child.stderr, 'close');
  child.stdin.end();
  expect(await child.exited).toEqual({ exitCode: 3, signal: undefined });
});
