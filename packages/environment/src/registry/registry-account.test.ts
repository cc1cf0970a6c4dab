import { describe, expect, it } from 'vitest';
import { AuthFile } from './auth-file.ts';
import { account, failure, loginText, ScriptedRegistry } from './registry.fixture.ts';
import { layers, files, firstDigest, attempt } from './faulty.fixture.ts';

describe('a registry that wants an account', () => {
  const auth = (host: string): AuthFile => AuthFile.parse(loginText(host));

  it('by a token gets one token for all, and a new one when that has ended', async () => {
    let tokens = 0;
    await using registry = await ScriptedRegistry.start(files, (request, response, url) => {
      if (url.pathname === '/token') {
        const service = url.searchParams.get('service');
        const scope = url.searchParams.get('scope');
        expect([service, scope]).toEqual(['a, "b"', 'repository:app:pull']);
        response.end(JSON.stringify({ access_token: `t${++tokens}`, expires_in: 300 }));
        return true;
      }
      // The first token ends after the configuration has been read.
      const isOver = url.pathname.includes('/blobs/') && registry.seen('/blobs/').length > 1;
      const valid = isOver ? 't2' : 't1';
      if (request.headers.authorization === `Bearer ${valid}`) return undefined;
      const realm = `http://${registry.host}/token`;
      response.setHeader('www-authenticate', `Basic realm="x", Bearer realm="${realm}",service="a, \\"b\\""`);
      response.writeHead(401).end();
      return true;
    });
    await using at = await attempt(registry);
    expect((await at.pull()).layers).toHaveLength(1);
    expect(tokens).toBe(2);
  });

  it('by an identity token exchanges it', async () => {
    let form = '';
    await using registry = await ScriptedRegistry.start(files, (request, response, url) => {
      if (url.pathname === '/token') {
        request.on('data', (chunk: Buffer) => {
          form += chunk.toString();
        });
        request.on('end', () => response.end(JSON.stringify({ access_token: 't' })));
        return true;
      }
      if (request.headers.authorization === 'Bearer t') return undefined;
      response.setHeader('www-authenticate', `Bearer realm="http://${registry.host}/token",service="s"`);
      response.writeHead(401).end();
      return true;
    });
    await using at = await attempt(registry);
    const text = JSON.stringify({ auths: { [registry.host]: { identitytoken: 'the-identity' } } });
    await at.pull({ auth: AuthFile.parse(text) });
    expect(Object.fromEntries(new URLSearchParams(form))).toMatchObject({
      grant_type: 'refresh_token',
      refresh_token: 'the-identity',
      scope: 'repository:app:pull',
      service: 's',
    });
  });

  it.each([
    ['another host by plain HTTP', 'http://0.0.0.0:PORT/token'],
    ['no address', 'nonsense'],
    ['a file', 'file:///etc/passwd'],
    ['an address with a password', 'https://user:word@127.0.0.1/token'],
    ['nothing', undefined],
  ])('and sends it to %s: no account goes there', async (_, realm) => {
    await using registry = await ScriptedRegistry.start(files, (_request, response) => {
      const where = realm === undefined ? '' : ` realm="${realm.replace('PORT', String(registry.port))}"`;
      response.setHeader('www-authenticate', `Bearer${where}`);
      response.writeHead(401).end();
      return true;
    });
    await using at = await attempt(registry);
    const error = await failure(at.pull({ auth: auth(registry.host) }));
    expect([error.code, error.details['reason']]).toEqual(['registry_unavailable', 'realm']);
    expect(registry.requests.map(({ authorization }) => authorization)).toEqual([undefined]);
  });

  it.each([
    ['nothing', ''],
    ['no JSON', `{"token": "${account.password}`],
    ['no token', '{"token": 5}'],
    ['a token that no header can hold', '{"token": "a\\r\\nb: c"}'],
    ['more than any token', JSON.stringify({ token: 't'.repeat(300_000) })],
  ])('and whose token server answers with %s', async (_, body) => {
    await using registry = await ScriptedRegistry.start(files, (_request, response, url) => {
      response.setHeader('www-authenticate', `Bearer realm="http://${registry.host}/token"`);
      if (url.pathname === '/token') response.end(body);
      else response.writeHead(401).end();
      return true;
    });
    await using at = await attempt(registry);
    const error = await failure(at.pull({ auth: auth(registry.host) }));
    expect([error.code, error.details['reason']]).toEqual(['registry_unavailable', 'response']);
    expect(String(error.stack)).not.toContain(account.password);
    expect(error.cause).toBeUndefined();
  });

  it('and refuses it goes by what it is: 401, 403, and a proof of which there is none here', async () => {
    for (const [status, challenge, reason] of [
      [401, undefined, 'refused'],
      [401, 'Basic realm="x"', 'refused'],
      [401, 'Negotiate', 'refused'],
      [403, undefined, 'denied'],
    ] as const) {
      await using registry = await ScriptedRegistry.start(files, (_, response) => {
        response.writeHead(status, challenge === undefined ? {} : { 'www-authenticate': challenge }).end();
        return true;
      });
      await using at = await attempt(registry);
      const error = await failure(at.pull({ auth: auth(registry.host) }));
      expect([error.code, error.details]).toEqual(['registry_unauthenticated', { registry: registry.host, reason }]);
    }
  });

  it('sees it alone: where it redirects to does not, whatever that asks for', async () => {
    await using store = await ScriptedRegistry.start(files, (_, response, url) => {
      if (!url.pathname.endsWith(firstDigest)) return undefined;
      response.setHeader('www-authenticate', 'Basic realm="store"');
      response.writeHead(401).end();
      return true;
    });
    await using registry = await ScriptedRegistry.start(files, (request, response, url) => {
      if (request.headers.authorization === undefined) {
        response.writeHead(401, { 'www-authenticate': 'Basic realm="x"' }).end();
        return true;
      }
      if (!url.pathname.includes('/blobs/')) return undefined;
      response.writeHead(307, { location: `http://${store.host}${url.pathname}?signature=secret` }).end();
      return true;
    });
    await using at = await attempt(registry);
    const error = await failure(at.pull({ auth: auth(registry.host) }));
    expect([error.code, error.details['reason']]).toEqual(['registry_unavailable', 'status 401']);
    expect(JSON.stringify([error.toWire(), String(error.stack)])).not.toContain('signature');
    store.fault = () => undefined;
    expect((await at.pull({ auth: auth(registry.host) })).layers).toHaveLength(1);
    expect(store.requests.length).toBeGreaterThan(layers.length);
    expect(store.requests.every(({ authorization }) => authorization === undefined)).toBe(true);
  });
});
