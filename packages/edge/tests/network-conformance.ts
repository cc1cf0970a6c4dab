/** What every `NetworkControl` must do: the double of the edge's tests, and the daemons of a node. */
import type { NetworkControl } from '@dsec/backends';
import { completeNetworkPolicy, parsePrefix, type NetworkPolicy, type NetworkPolicyRequest } from '@dsec/contract';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';

/** A node whose sandboxes have no uplink yet. */
export interface NetworkNode extends AsyncDisposable {
  readonly control: NetworkControl;
  /** Names of services that it has, and one that it has not. */
  readonly service: string;
  readonly unknownService: string;
  /** Makes a live sandbox; its id. */
  sandbox(): Promise<string>;
  /** Whether a TCP connection from inside would be let through. */
  reaches(sandboxId: string, address: string, port: number): Promise<boolean>;
}

/** An observer that does not listen to what sandboxes do. */
export const deaf = { onAct: () => undefined, onActsLost: () => undefined } as const;

const policy = (request: NetworkPolicyRequest): NetworkPolicy => completeNetworkPolicy(request, { field: 'network' });
/** TEST-NET-1 and -2 (RFC 5737). */
const HERE = '192.0.2.7';
const THERE = '198.51.100.7';
const toHere = policy({ rules: [{ action: 'allow', to: HERE, ports: [80] }] });
const toThere = policy({ rules: [{ action: 'allow', to: '198.51.100.0/24' }] });

export function networkConformance(name: string, start: () => Promise<NetworkNode>): void {
  describe(`NetworkControl: ${name}`, () => {
    let node: NetworkNode;
    let control: NetworkControl;
    beforeEach(async () => {
      node = await start();
      ({ control } = node);
      const ready = Promise.withResolvers<undefined>();
      control.start({ onReady: () => ready.resolve(undefined), ...deaf });
      await ready.promise;
    });
    afterEach(() => node[Symbol.asyncDispose]());

    it('offers its services once it is ready', () => {
      expect(control.offer).toMatchObject({ isOffered: true });
      const { offer } = control;
      expect(offer.isOffered && offer.services?.includes(node.service)).toBe(true);
      expect(offer.isOffered && offer.services?.includes(node.unknownService)).toBe(false);
    });

    it('gives each sandbox addresses of its own and the resolver of the node', async () => {
      const [first, second] = [await node.sandbox(), await node.sandbox()];
      const one = await control.open(first, toHere);
      const two = await control.open(second, toHere);
      expect(one.address4).not.toBe(two.address4);
      expect(one.resolver).toBe(two.resolver);
      for (const address of [one.address4, two.address4, one.resolver, one.address6 ?? one.address4]) {
        expect(parsePrefix(address)).toMatchObject({ ok: true });
      }
      expect([...(await control.list())].toSorted()).toEqual([first, second].toSorted());
    });

    it('keeps an uplink that is opened again, and puts the newer policy in force', async () => {
      const id = await node.sandbox();
      const before = await control.open(id, toHere);
      expect(await node.reaches(id, HERE, 80)).toBe(true);
      expect(await control.open(id, toThere)).toEqual(before);
      expect(await node.reaches(id, HERE, 80)).toBe(false);
      expect(await node.reaches(id, THERE, 9)).toBe(true);
    });

    it('changes a policy, and nothing of the one before is left', async () => {
      const id = await node.sandbox();
      await control.open(id, toHere);
      expect([await node.reaches(id, HERE, 80), await node.reaches(id, HERE, 81)]).toEqual([true, false]);
      await control.change(id, toThere);
      expect([await node.reaches(id, HERE, 80), await node.reaches(id, THERE, 80)]).toEqual([false, true]);
      await control.change(id, policy({}));
      expect(await node.reaches(id, THERE, 80)).toBe(false);
      expect(await control.list()).toEqual([id]);
    });

    it('lets a denial win over every permission', async () => {
      const id = await node.sandbox();
      const both = [
        { action: 'allow', to: HERE },
        { action: 'deny', to: '192.0.2.0/24', ports: ['20-79'] },
      ] as const;
      await control.open(id, policy({ rules: both }));
      expect([await node.reaches(id, HERE, 22), await node.reaches(id, HERE, 80)]).toEqual([false, true]);
      await control.change(id, policy({ rules: both.toReversed() }));
      expect([await node.reaches(id, HERE, 22), await node.reaches(id, HERE, 80)]).toEqual([false, true]);
    });

    it('refuses a service that it has not, and leaves the policy before in force', async () => {
      const id = await node.sandbox();
      const unknown = policy({ services: { [node.unknownService]: true } });
      await expect(control.open(id, unknown)).rejects.toMatchObject({ code: 'service_unknown' });
      await control.open(id, toHere);
      await expect(control.change(id, unknown)).rejects.toMatchObject({ code: 'service_unknown' });
      await expect(control.open(id, unknown)).rejects.toMatchObject({ code: 'service_unknown' });
      expect(await node.reaches(id, HERE, 80)).toBe(true);
      await control.change(id, policy({ services: { [node.service]: true, [node.unknownService]: false } }));
    });

    it('knows no sandbox that is not there, and changes none without an uplink', async () => {
      await expect(control.open('nosuchsandbox', toHere)).rejects.toMatchObject({ code: 'sandbox_not_found' });
      await expect(control.change(await node.sandbox(), toHere)).rejects.toMatchObject({ code: 'sandbox_not_found' });
      expect(await control.list()).toEqual([]);
    });

    it('closes what is open, and anything else without an error', async () => {
      const id = await node.sandbox();
      await control.close(id);
      await control.close('nosuchsandbox');
      await control.open(id, toHere);
      await control.close(id);
      await control.close(id);
      expect(await control.list()).toEqual([]);
      expect(await node.reaches(id, HERE, 80)).toBe(false);
      await expect(control.change(id, toHere)).rejects.toMatchObject({ code: 'sandbox_not_found' });
      await control.open(id, toHere);
      expect(await node.reaches(id, HERE, 80)).toBe(true);
    });

    it('gives up when its caller does', async () => {
      const [id, opened] = [await node.sandbox(), await node.sandbox()];
      await control.open(opened, toHere);
      const signal = AbortSignal.abort();
      await expect(control.open(id, toHere, { signal })).rejects.toMatchObject({ code: 'cancelled' });
      await expect(control.change(opened, toThere, { signal })).rejects.toMatchObject({ code: 'cancelled' });
      await expect(control.close(opened, { signal })).rejects.toMatchObject({ code: 'cancelled' });
      expect(await control.list()).toEqual([opened]);
      expect(await node.reaches(opened, HERE, 80)).toBe(true);
    });
  });
}
