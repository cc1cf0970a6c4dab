/** The way of a request through the edge, over a scripted launcher. */
import { PlatformError } from '@dsec/contract';
import { describe, expect, it } from 'vitest';
import { connectTo, create, ids, waitFor } from './edge-fixture.ts';
import { held, useScriptedNode } from './scripted-node.ts';

const on = useScriptedNode();

describe('the names that sandboxes ran from', () => {
  it('are counted by every create that was admitted, also by one that failed, and across a restart', async () => {
    await create(on.client);
    await create(on.client, { request: { workspace: 'w', toolkits: ['t'] } });
    on.launcher.script.create = () => Promise.reject(new PlatformError('environment_broken', 'no layer'));
    await expect(create(on.client)).rejects.toMatchObject({ code: 'environment_broken' });
    await on.restart();
    expect(await on.client.call('composition.list', {})).toMatchObject({
      compositions: [
        { environment: 'debian', workspace: null, toolkits: [], sandboxes: 2 },
        { environment: 'debian', workspace: 'w', toolkits: ['t'], sandboxes: 1 },
      ],
      cursor: null,
    });
  });

  it.each([{ cursor: 'x' }, { limit: 0 }, { limit: 1001 }, { more: 1 }])('refuse %j', async (params) => {
    await expect(on.client.call('composition.list', params)).rejects.toMatchObject({ code: 'invalid_argument' });
  });
});

describe('a request', () => {
  it('for a sandbox that is not there says which kind of not there', async () => {
    const elsewhere = ids.create(5, Buffer.alloc(8, 2));
    const nowhere = ids.create(0, Buffer.alloc(8, 3));
    for (const [sandboxId, code] of [
      [elsewhere, 'edge_unknown'],
      [nowhere, 'sandbox_not_found'],
      [`${nowhere.slice(0, -1)}${nowhere.endsWith('0') ? '1' : '0'}`, 'invalid_id'],
      ['../etc', 'invalid_id'],
    ] as const) {
      await expect(on.client.call('exec.list', { sandboxId })).rejects.toMatchObject({ code });
    }
    await expect(on.client.call('exec.list', {})).rejects.toMatchObject({ code: 'invalid_id' });
    await expect(on.client.call('sandbox.get', { sandboxId: nowhere, more: 1 })).rejects.toMatchObject({
      code: 'invalid_argument',
    });
    await expect(on.client.call('sandbox.fly', {})).rejects.toMatchObject({ code: 'unknown_method' });
  });

  it('for a sandbox that is being made is told so', async () => {
    const gate = held();
    on.launcher.script.create = () => gate.promise;
    const creating = create(on.client);
    await waitFor(() => on.launcher.created.length === 1, 'the create');
    await expect(on.client.call('exec.list', { sandboxId: String(on.launcher.created[0]?.id) })).rejects.toMatchObject({
      code: 'sandbox_not_ready',
    });
    gate.resolve();
    await creating;
  });

  it('carries what the sandbox adds, and never over what the caller says', async () => {
    const { sandboxId } = await create(on.client, {
      request: { env: { X: '1', PATH: '/x' }, user: 'me', workdir: '/w' },
    });
    const seen = async (method: string, params: object) => {
      await on.client.call(method, { sandboxId, ...params }).catch(() => undefined);
      return on.launcher.aether(sandboxId).opened.at(-1)?.params;
    };
    expect(await seen('session.open', { sessionId: 's', env: { X: '2' } })).toEqual({
      sessionId: 's',
      user: 'me',
      cwd: '/w',
      env: { PATH: '/x', FROM_IMAGE: '1', X: '2' },
    });
    expect(await seen('file.stat', { path: 'a' })).toEqual({ path: 'a', user: 'me' });
    expect(await seen('file.stat', { path: 'a', user: 'root' })).toEqual({ path: 'a', user: 'root' });
    expect(await seen('exec.list', {})).toEqual({});
    const exec = (params: object) => {
      const stream = on.client.open('exec.start', { sandboxId, stdin: 'none', ...params });
      return stream.next().then(() => {
        stream.reset();
        return on.launcher.aether(sandboxId).opened.findLast(({ method }) => method === 'exec.start')?.params;
      });
    };
    expect(await exec({ execId: 'a', argv: ['x'] })).toEqual({
      execId: 'a',
      argv: ['x'],
      stdin: 'none',
      user: 'me',
      cwd: '/w',
      env: { PATH: '/x', FROM_IMAGE: '1', X: '1' },
    });
    expect(await exec({ execId: 'b', argv: ['x'], sessionId: 's' })).toEqual({
      execId: 'b',
      argv: ['x'],
      stdin: 'none',
      sessionId: 's',
      env: {},
    });
  });

  it('beyond what one sandbox takes is refused, and room comes back as streams end', async () => {
    const { sandboxId } = await create(on.client);
    const attach = () => on.client.open('exec.attach', { sandboxId, execId: 'e1' });
    const exec = on.client.open('exec.start', { sandboxId, execId: 'e1', argv: ['sleep'], stdin: 'none' });
    await exec.next();
    const streams = Array.from({ length: 247 }, attach);
    await Promise.all(streams.map((stream) => stream.next()));
    await expect(attach().result).rejects.toMatchObject({ code: 'too_many_streams', details: { limit: 248 } });
    streams[0]?.reset();
    await waitFor(
      async () =>
        (await attach()
          .next()
          .catch(() => undefined)) !== undefined,
      'room',
    );
  });

  it('finds its sandbox from several connections at once', async () => {
    const { sandboxId } = await create(on.client);
    const others = await Promise.all(Array.from({ length: 10 }, () => connectTo(`${on.directory.path}/edge.sock`)));
    const answers = await Promise.all(others.map((other) => other.call('file.stat', { sandboxId, path: '/x' })));
    expect(answers).toHaveLength(10);
    await Promise.all(others.map((other) => other.close()));
  });
});
