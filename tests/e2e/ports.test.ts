/** Services inside, through their ports. */
import { expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { GrowthWatch, MAX_GROWTH_BYTES } from './growth-watch.ts';
import { startPortService } from './port-service.ts';
import { refusal } from './refusal.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

const server = useServer();

const PORT = 8000;
const bearer = (): Readonly<Record<string, string>> => ({ authorization: `Bearer ${server().apiKey}` });

/** A WebSocket to a path of the service, open. */
async function openSocket(
  sandbox: Sandbox,
  options: { readonly query?: string; readonly headers?: Readonly<Record<string, string>> } = {},
): Promise<WebSocket> {
  const url = `${sandbox.ports.url(PORT).replace('http', 'ws')}ws${options.query ?? ''}`;
  const socket = new WebSocket(url, { headers: options.headers ?? bearer() });
  socket.binaryType = 'arraybuffer';
  await new Promise((resolve, reject) => {
    socket.addEventListener('open', resolve, { once: true });
    socket.addEventListener('error', () => reject(new Error('the WebSocket was refused')), { once: true });
  });
  return socket;
}

async function echo(socket: WebSocket, message: string | Uint8Array<ArrayBuffer>): Promise<unknown> {
  const answer = new Promise<unknown>((resolve, reject) => {
    socket.addEventListener('message', ({ data }) => resolve(data), { once: true });
    socket.addEventListener('close', () => reject(new Error('the WebSocket closed')), { once: true });
  });
  socket.send(message);
  return answer;
}

const closed = (socket: WebSocket): Promise<unknown> =>
  new Promise((resolve) => socket.addEventListener('close', resolve, { once: true }));

test('N13 a service on 127.0.0.1 answers, and where nothing listens the refusal says so', async () => {
  await using sandbox = await server().sandbox();
  await startPortService(sandbox, PORT);
  const answer = await sandbox.ports.fetch(PORT, '/a%20b?c=d', { method: 'POST', body: 'ping' });
  // The key that opened the port is not for the service.
  expect(await answer.text()).toBe(`POST /a%20b?c=d ${new URL(server().endpoint).host} - ping`);
  expect(await refusal(sandbox.ports.fetch(8001))).toBe('port_closed');
  expect(await refusal(sandbox.ports.fetch(PORT, '/garbage'))).toBe('port_not_http');
  expect((await sandbox.ports.fetch(PORT)).status).toBe(200);
});

test('N15 the token of a port opens that port of that sandbox, until it expires, and nothing else', async () => {
  await using sandbox = await server().sandbox();
  await using other = await server().sandbox();
  await Promise.all([sandbox, other].map((box) => startPortService(box, PORT)));
  await startPortService(sandbox, 8080);
  const { token } = await sandbox.ports.token(PORT);
  const headers = { 'x-dsec-port-token': token };
  expect((await fetch(sandbox.ports.url(PORT), { headers })).status).toBe(200);
  const elsewhere = [sandbox.ports.url(8080), other.ports.url(PORT), `${server().endpoint}/v1/sandboxes`];
  for (const url of elsewhere) expect([401, 403]).toContain((await fetch(url, { headers })).status);
  expect(await refusal(fetch(sandbox.ports.url(PORT)))).toBe('unauthenticated');
  const short = await sandbox.ports.token(PORT, { expiresInSeconds: 1 });
  await waitFor('its end', async () => {
    const answer = await fetch(sandbox.ports.url(PORT), { headers: { 'x-dsec-port-token': short.token } });
    return answer.status !== 200 && (await refusal(answer)) === 'unauthenticated';
  });
});

test('a WebSocket to a port carries messages of every size both ways, by key, by token in a header and in the query', async () => {
  await using sandbox = await server().sandbox();
  await startPortService(sandbox, PORT);
  const { token } = await sandbox.ports.token(PORT);
  for (const options of [
    {},
    { headers: { 'x-dsec-port-token': token } },
    { headers: {}, query: `?dsec_token=${token}` },
  ]) {
    const socket = await openSocket(sandbox, options);
    expect(await echo(socket, 'hello ☕')).toBe('hello ☕');
    for (const size of [0, 1, 125, 126, 65_535, 65_536, 1_000_003]) {
      const bytes = Uint8Array.from({ length: size }, (_, index) => (index * 31) & 0xff);
      const answer = await echo(socket, bytes);
      expect(answer).toBeInstanceOf(ArrayBuffer);
      if (answer instanceof ArrayBuffer) expect(Buffer.compare(Buffer.from(answer), bytes)).toBe(0);
    }
    const end = closed(socket);
    socket.close(1000);
    expect(await end).toMatchObject({ code: 1000, wasClean: true });
  }
  await expect(openSocket(sandbox, { headers: {} })).rejects.toThrow('refused');
});

test('what a service sends comes when it is sent, and as much as it likes through daemons that do not grow', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await startPortService(sandbox, PORT);
  const events = (await sandbox.ports.fetch(PORT, '/events')).body?.getReader();
  expect(Buffer.from((await events?.read())?.value ?? []).toString()).toBe('data: one\n\n');
  await sandbox.files.write('/tmp/go', '');
  expect(Buffer.from((await events?.read())?.value ?? []).toString()).toBe('data: two\n\n');
  expect((await events?.read())?.done).toBe(true);
  await using growth = await GrowthWatch.start(server(), sandbox);
  let total = 0;
  const { body } = await sandbox.ports.fetch(PORT, '/big');
  if (body === null) throw new Error('the answer has no body');
  for await (const chunk of body as AsyncIterable<Uint8Array>) total += chunk.length;
  expect(total).toBe(100_000_000);
  expect(growth.mostBytes()).toBeLessThan(MAX_GROWTH_BYTES);
});

test('L06 an open WebSocket to a port keeps a sandbox from its idle timeout, and its end does not', async () => {
  const sandbox = await server().sandbox({ ttlRunningStop: 2 });
  await startPortService(sandbox, PORT);
  const socket = await openSocket(sandbox);
  const endMs = clock.monotonicMs() + 4000;
  await waitFor('twice its timeout to pass', async () => {
    expect((await sandbox.info()).idleEndsAtMs).toBeNull();
    return clock.monotonicMs() > endMs;
  });
  expect(await echo(socket, 'still there')).toBe('still there');
  socket.close();
  const ended = await waitFor('its end', async () => {
    const info = await sandbox.info();
    return info.state === 'stopped' && info;
  });
  expect(ended.cause?.kind).toBe('idle');
});

test('the end of a sandbox is the end of all connections to its ports', async () => {
  const sandbox = await server().sandbox();
  await startPortService(sandbox, PORT);
  const socket = await openSocket(sandbox);
  const events = (await sandbox.ports.fetch(PORT, '/events')).body?.getReader();
  await events?.read();
  const ends = Promise.allSettled([closed(socket), events?.read()]);
  await sandbox.stop();
  await ends;
  expect(await refusal(sandbox.ports.fetch(PORT))).toBe('sandbox_ended');
});
