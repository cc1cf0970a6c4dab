import { readFile } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import { describe, expect, test } from 'vitest';
import { SystemClock } from './clock.ts';
import { Process, run } from './spawn.ts';

const clock = new SystemClock();
const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

describe('run', () => {
  test('passes arguments byte for byte, with no shell and no environment but the given one', async () => {
    const { stdout } = await run(['/usr/bin/env', '-0'], { clock, env: { A: '$(id) \n"' } });
    expect(stdout.toString()).toBe('A=$(id) \n"\0');
    expect((await run(['/bin/echo', '$(id)', '*', ''], { clock })).stdout.toString()).toBe('$(id) * \n');
  });

  test.each([['text'], [Buffer.from('text')], [Readable.from([Buffer.from('te'), Buffer.from('xt')])]])(
    'feeds stdin',
    async (stdin) => {
      expect((await run(['/bin/cat'], { clock, stdin })).stdout.toString()).toBe('text');
    },
  );

  test('puts the end of stderr into the error of a failed program', async () => {
    const script = 'for i in $(seq 5000); do echo line $i >&2; done; exit 3';
    const error: unknown = await run(['/bin/sh', '-c', script], {
      clock,
      env: { PATH: '/bin:/usr/bin' },
      errorCode: 'build_failed',
    }).catch((thrown: unknown) => thrown);
    if (!PlatformError.is(error)) throw new Error('it did not fail');
    expect(error).toMatchObject({ code: 'build_failed', details: { program: '/bin/sh', exitCode: 3, signal: null } });
    const tail = String(error.details.stderr);
    expect(tail.length).toBeLessThanOrEqual(4096);
    expect(tail).toMatch(/line 5000\n$/);
  });

  test('takes other exit codes where the caller says so', async () => {
    expect(await run(['/bin/sh', '-c', 'exit 7'], { clock, okExitCodes: [0, 7] })).toMatchObject({ exitCode: 7 });
  });

  test('says what could not be started', async () => {
    await expect(run(['/no/such/program'], { clock })).rejects.toMatchObject({
      code: 'command_not_found',
      details: { program: '/no/such/program' },
    });
    await expect(run(['/etc/passwd'], { clock })).rejects.toMatchObject({ code: 'command_not_executable' });
  });

  test('does not wait for input that a program ends without reading', async () => {
    expect(await run(['/bin/true'], { clock, stdin: Buffer.alloc(10_000_000) })).toMatchObject({ exitCode: 0 });
  });

  test('refuses more output than its bound and ends the program', async () => {
    await expect(run(['/usr/bin/yes'], { clock, maxStdoutBytes: 100_000 })).rejects.toMatchObject({ code: 'internal' });
  });

  test('hands stdout over as it comes, and a failing consumer ends the program', async () => {
    let size = 0;
    await run(['/usr/bin/head', '-c', '3000000', '/dev/zero'], {
      clock,
      onStdout: async (stdout) => {
        for await (const chunk of stdout as AsyncIterable<Buffer>) size += chunk.length;
      },
    });
    expect(size).toBe(3_000_000);
    await expect(run(['/usr/bin/yes'], { clock, onStdout: () => Promise.reject(new Error('full')) })).rejects.toThrow(
      'full',
    );
  });

  test('ends a program with SIGTERM, then with SIGKILL', async () => {
    const stubborn = run(['/bin/sh', '-c', 'trap "" TERM; while :; do sleep 0.05; done'], {
      clock,
      env: { PATH: '/bin:/usr/bin' },
      timeoutMs: 50,
      killAfterMs: 50,
    });
    await expect(stubborn).rejects.toMatchObject({ code: 'timeout' });
  });

  test('does not wait for a background child that holds the pipes once its time is over', async () => {
    await expect(
      run(['/bin/sh', '-c', 'sleep 2 & exit 0'], { clock, env: { PATH: '/bin:/usr/bin' }, timeoutMs: 50 }),
    ).rejects.toMatchObject({ code: 'timeout' });
  });

  test('ends with the signal of the caller', async () => {
    const controller = new AbortController();
    const running = run(['/bin/sleep', '100'], { clock, signal: controller.signal });
    controller.abort();
    await expect(running).rejects.toMatchObject({ code: 'cancelled' });
    await expect(run(['/bin/true'], { clock, signal: controller.signal })).rejects.toMatchObject({ code: 'cancelled' });
  });
});

describe('Process', () => {
  test('holds stdin open until it is stopped', async () => {
    const daemon = await Process.start(['/bin/cat'], { clock, stdout: 'pipe' });
    daemon.stdin.write('ping');
    for await (const chunk of daemon.stdout as AsyncIterable<Buffer>) {
      expect(chunk.toString()).toBe('ping');
      break;
    }
    expect(daemon.isRunning).toBe(true);
    await daemon.stop();
    expect(daemon.isRunning).toBe(false);
    expect(isAlive(daemon.pid)).toBe(false);
    expect(daemon.signal('SIGTERM')).toBe(false);
  });

  test('keeps the end of stderr and tells how it ended', async () => {
    await using daemon = await Process.start(['/bin/sh', '-c', 'echo why >&2; kill -9 $$'], { clock });
    expect(await daemon.exited).toEqual({ exitCode: undefined, signal: 'SIGKILL' });
    await daemon.drained();
    expect(daemon.stderrTail).toBe('why\n');
  });

  test('runs as another user', async () => {
    await using daemon = await Process.start(['/bin/sleep', '100'], { clock, uid: 64_899, gid: 64_898 });
    const status = await readFile(`/proc/${daemon.pid}/status`, 'utf8');
    expect(status).toMatch(/^Uid:\t64899\t64899\t64899\t64899$/m);
    expect(status).toMatch(/^Gid:\t64898\t64898\t64898\t64898$/m);
  });
});
