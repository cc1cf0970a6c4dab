import { Scope, SystemClock, SystemRandom, MemoryLogger, SystemNetwork } from '@dsec/kit';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ScriptedEdge } from '../apiserver.fixture.ts';
import { EdgeLink } from './edge-link.ts';

let directory: string;
let edge: ScriptedEdge;
let scope: Scope;
let logger: MemoryLogger;
const clock = new SystemClock();
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'edge-link-'));
  edge = new ScriptedEdge(join(directory, 'edge.sock'));
  edge.on('ping', () => Promise.resolve('pong'));
  logger = new MemoryLogger();
  scope = new Scope({ clock });
});
afterEach(async () => {
  await scope.close();
  await edge.stop();
  await rm(directory, { recursive: true });
});

const open = (patienceMs = 5000): EdgeLink =>
  EdgeLink.open({
    network: new SystemNetwork(),
    clock,
    random: new SystemRandom(),
    logger,
    scope,
    socket: join(directory, 'edge.sock'),
    patienceMs,
  });

test('asks the edge', async () => {
  await edge.start();
  expect(await open().call('ping', {})).toBe('pong');
});

test('waits for an edge that starts late', async () => {
  const link = open();
  const asking = link.call('ping', {});
  await expect.poll(() => logger.records.map(({ event }) => event)).toContain('edge.away');
  expect(link.isConnected).toBe(false);
  await edge.start();
  expect(await asking).toBe('pong');
});

test('does not wait for longer than its patience', async () => {
  await expect(open(50).call('ping', {})).rejects.toMatchObject({ code: 'unavailable' });
});

test('gives up waiting when its caller does', async () => {
  const controller = new AbortController();
  const asking = open().call('ping', {}, { signal: controller.signal });
  controller.abort();
  await expect(asking).rejects.toMatchObject({ code: 'cancelled' });
});

test('says that what was under way is lost, and connects again', async () => {
  await edge.start();
  const link = open();
  edge.on('wait', (_params, stream) => new Promise((resolve) => stream.signal.addEventListener('abort', resolve)));
  const lost = link.call('wait', {});
  await expect.poll(() => edge.calls.length).toBe(1);
  await edge.stop();
  await expect(lost).rejects.toMatchObject({ code: 'connection_lost' });
  await edge.start();
  expect(await link.call('ping', {})).toBe('pong');
});

test('opens more connections for many streams, and refuses none', async () => {
  await edge.start();
  const link = open();
  edge.on('hold', (_params, stream) => new Promise((resolve) => stream.signal.addEventListener('abort', resolve)));
  await expect.poll(() => link.isConnected).toBe(true);
  const streams = await Promise.all(Array.from({ length: 2500 }, async () => await link.open('hold', {})));
  await expect.poll(() => edge.calls.length, { timeout: 5000 }).toBe(2500);
  expect(edge.connections).toBeGreaterThan(2);
  for (const stream of streams) stream.reset();
  expect(await link.call('ping', {})).toBe('pong');
});
