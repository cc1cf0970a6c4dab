import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ManualClock, SeededRandom, SystemClock, SystemNetwork, type Peer } from '@dsec/kit';
import { encode } from 'dns-packet';
import { describe, expect, test } from 'vitest';
import { MAX_MISFITS, SERVERS_CHECK_MS } from './bounds.ts';
import { CachedResolution } from './cached-resolution.ts';
import { answering, NameServer, zone, type Script } from './name-server.fixture.ts';
import { parseResolvConf, ResolvConf } from './name-servers.ts';
import { Upstream, type Resolution, type Resolved } from './upstream.ts';

const never = new AbortController().signal;
const network = new SystemNetwork();
const upstream = (...servers: readonly Peer[]): Upstream =>
  new Upstream({
    servers: { list: () => Promise.resolve(servers) },
    network,
    clock: new SystemClock(),
    random: new SeededRandom(1),
  });
const nobody: Peer = { address: '127.0.0.1', port: 1 };

const names: Script = zone({
  'a.test': ['192.0.2.1', '192.0.2.2', '2001:db8::1'],
  'b.test': ['alias:c.test'],
  'c.test': ['192.0.2.3'],
});

describe('a name', () => {
  test('is resolved over UDP, from another port and with another case each time', async () => {
    await using server = await NameServer.start(names);
    const asker = upstream(server.peer);
    const wanted = { kind: 'addresses', addresses: ['192.0.2.1', '192.0.2.2'], ttlS: 60 };
    for (let round = 0; round < 8; round++) expect(await asker.resolve('a.test', 'A', never)).toEqual(wanted);
    const distinct = (key: 'name' | 'port' | 'id') => new Set(server.asked.map((asked) => asked[key])).size;
    expect(distinct('port')).toBeGreaterThan(4);
    expect(distinct('id')).toBeGreaterThan(4);
    expect(distinct('name')).toBeGreaterThan(1);
    expect(new Set(server.asked.map(({ transport }) => transport))).toEqual(new Set(['udp']));
  });

  test('may have addresses of one type only, or not exist', async () => {
    await using server = await NameServer.start(names);
    const asker = upstream(server.peer);
    expect(await asker.resolve('a.test', 'AAAA', never)).toMatchObject({ addresses: ['2001:db8::1'] });
    expect(await asker.resolve('c.test', 'AAAA', never)).toMatchObject({ kind: 'addresses', addresses: [] });
    expect(await asker.resolve('d.test', 'A', never)).toEqual({ kind: 'noName' });
  });

  test('is followed through aliases that the server follows, and those that it leaves open', async () => {
    await using server = await NameServer.start(names);
    expect(await upstream(server.peer).resolve('b.test', 'A', never)).toMatchObject({ addresses: ['192.0.2.3'] });
    server.script = (query, transport) => {
      const [question] = query.questions ?? [];
      if (question?.name.toLowerCase() !== 'open.test') return names(query, transport);
      return answering(query, [{ type: 'CNAME', name: question.name, data: 'c.test', ttl: 5 }]);
    };
    expect(await upstream(server.peer).resolve('open.test', 'A', never)).toMatchObject({
      addresses: ['192.0.2.3'],
      ttlS: 5,
    });
    server.script = (query) => {
      const name = query.questions?.[0]?.name ?? '';
      return answering(query, [{ type: 'CNAME', name, data: `x${name.toLowerCase()}`, ttl: 5 }]);
    };
    await expect(upstream(server.peer).resolve('loop.test', 'A', never)).rejects.toMatchObject({ code: 'unavailable' });
    expect(server.asked.filter(({ name }) => name.toLowerCase().endsWith('loop.test'))).toHaveLength(9);
  });

  test('is asked for over TCP when the answer does not fit, or its letters come back in another case', async () => {
    await using server = await NameServer.start((query, transport) =>
      transport === 'udp' ? answering(query, [], 0x0200) : names(query, transport),
    );
    expect(await upstream(server.peer).resolve('a.test', 'A', never)).toMatchObject({ addresses: { length: 2 } });
    expect(server.asked.map(({ transport }) => transport)).toEqual(['udp', 'tcp']);
    server.script = (query, transport) => {
      const questions = query.questions?.map((question) => ({ ...question, name: question.name.toLowerCase() }));
      return names({ ...query, questions }, transport);
    };
    expect(await upstream(server.peer).resolve('a.test', 'A', never)).toMatchObject({ addresses: { length: 2 } });
  });

  test('is not believed to who guesses, and then asked for over TCP', async () => {
    await using server = await NameServer.start((query, transport) => {
      if (transport === 'tcp') return names(query, transport);
      const forged = (id: number) =>
        answering({ ...query, id }, [
          { type: 'A', name: query.questions?.[0]?.name ?? '', data: '192.0.2.66', ttl: 5 },
        ]);
      return Array.from({ length: MAX_MISFITS }, (_, index) => forged(((query.id ?? 0) + 1 + index) & 0xffff));
    });
    expect(await upstream(server.peer).resolve('a.test', 'A', never)).toMatchObject({
      addresses: ['192.0.2.1', '192.0.2.2'],
    });
    expect(server.asked.map(({ transport }) => transport)).toEqual(['udp', 'tcp']);
  });

  test('is asked of the next server when one is not there, fails or talks nonsense', async () => {
    await using failing = await NameServer.start((query) => answering(query, [], 2));
    await using server = await NameServer.start(names);
    expect(await upstream(nobody, failing.peer, server.peer).resolve('a.test', 'A', never)).toMatchObject({
      addresses: { length: 2 },
    });
    expect(failing.asked).toHaveLength(1);
    failing.script = (query) =>
      Buffer.concat([encode(answering(query, [])).subarray(0, 6), Buffer.from('ffff00000000ff', 'hex')]);
    expect(await upstream(failing.peer, server.peer).resolve('a.test', 'A', never)).toMatchObject({
      addresses: { length: 2 },
    });
  });

  test('cannot be resolved without a server that answers', async () => {
    await expect(upstream(nobody).resolve('a.test', 'A', never)).rejects.toMatchObject({ code: 'unavailable' });
    await expect(upstream().resolve('a.test', 'A', never)).rejects.toMatchObject({ code: 'unavailable' });
  });

  test('is asked for no more when its signal aborts', async () => {
    await using server = await NameServer.start(() => undefined);
    const controller = new AbortController();
    const resolving = upstream(server.peer).resolve('a.test', 'A', controller.signal);
    await expect.poll(() => server.asked.length).toBe(1);
    controller.abort();
    await expect(resolving).rejects.toMatchObject({ code: 'cancelled' });
  });

  test('is asked for again when the first datagram is lost', async () => {
    let lost = 0;
    await using server = await NameServer.start((query, transport) =>
      lost++ === 0 ? undefined : names(query, transport),
    );
    expect(await upstream(server.peer).resolve('a.test', 'A', never)).toMatchObject({ addresses: { length: 2 } });
    expect(server.asked).toHaveLength(2);
  });
});

describe('answers that are remembered', () => {
  /** Counts, and answers when it is told to. */
  const source = () => {
    const calls: PromiseWithResolvers<Resolved>[] = [];
    const resolution: Resolution = {
      resolve: () => {
        const call = Promise.withResolvers<Resolved>();
        calls.push(call);
        return call.promise;
      },
    };
    return { calls, resolution };
  };
  const found: Resolved = { kind: 'addresses', addresses: ['192.0.2.1'], ttlS: 10 };

  test('are asked for once by all who want them, and again when their time is over', async () => {
    const clock = new ManualClock();
    const { calls, resolution } = source();
    const cached = new CachedResolution(resolution, clock);
    const first = [cached.resolve('a.test', 'A', never), cached.resolve('a.test', 'A', never)];
    expect(calls).toHaveLength(1);
    calls[0]?.resolve(found);
    expect(await Promise.all(first)).toEqual([found, found]);
    await clock.advance(4000);
    expect(await cached.resolve('a.test', 'A', never)).toEqual({ ...found, ttlS: 6 });
    await clock.advance(6000);
    const again = cached.resolve('a.test', 'A', never);
    expect(calls).toHaveLength(2);
    calls[1]?.resolve({ kind: 'noName' });
    expect(await again).toEqual({ kind: 'noName' });
    expect(clock.pendingTimers).toBe(0);
  });

  test('are not those of failures, and one who leaves takes nothing from the others', async () => {
    const { calls, resolution } = source();
    const cached = new CachedResolution(resolution, new ManualClock());
    const controller = new AbortController();
    const leaving = cached.resolve('a.test', 'A', controller.signal);
    const staying = cached.resolve('a.test', 'A', never);
    controller.abort();
    await expect(leaving).rejects.toMatchObject({ code: 'cancelled' });
    calls[0]?.reject(new Error('broken'));
    await expect(staying).rejects.toMatchObject({ code: 'unavailable' });
    void cached.resolve('a.test', 'A', never).catch(() => undefined);
    expect(calls).toHaveLength(2);
    expect(cached.size).toBe(0);
  });
});

describe('the servers of the node', () => {
  test('are the first three addresses of resolv.conf', () => {
    const text =
      '# nameserver 192.0.2.9\nsearch a.test\nnameserver 192.0.2.1\nnameserver\t2001:db8::1\nnameserver a.test\nnameserver 192.0.2.2 # x\nnameserver 192.0.2.3\n';
    expect(parseResolvConf(text).map(({ address }) => address)).toEqual(['192.0.2.1', '2001:db8::1', '192.0.2.2']);
  });

  test('are read again when they may have changed, and kept while the file is away', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'dsec-resolv-'));
    try {
      const path = join(directory, 'resolv.conf');
      const clock = new ManualClock();
      const servers = new ResolvConf(path, clock);
      const list = async () => (await servers.list()).map(({ address }) => address);
      await writeFile(path, 'nameserver 192.0.2.1\n');
      expect(await list()).toEqual(['192.0.2.1']);
      await writeFile(path, 'nameserver 192.0.2.2\n');
      expect(await list()).toEqual(['192.0.2.1']);
      await clock.advance(SERVERS_CHECK_MS);
      expect(await list()).toEqual(['192.0.2.2']);
      await rm(path);
      await clock.advance(SERVERS_CHECK_MS);
      expect(await list()).toEqual(['192.0.2.2']);
    } finally {
      await rm(directory, { recursive: true });
    }
  });
});
