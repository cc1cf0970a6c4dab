import { ManualClock } from '@dsec/kit';
import { describe, expect, test } from 'vitest';
import { MAX_PINS, PIN_GRACE_S } from './dns/bounds.ts';
import { Pins } from './pins.ts';
import { fitPin, type PortRange } from './policy/port-ranges.ts';

const web: readonly PortRange[] = [['tcp', 443, 443, true]];
const pin = (pins: Pins, name: string, addresses: readonly string[], ttlS = 10, ranges = web) => {
  const planned = pins.plan(name, addresses, ttlS, ranges);
  pins.confirm(planned, ranges);
  return planned;
};

describe('pins', () => {
  test('are told once while they last long enough, and again when they would not', async () => {
    const clock = new ManualClock();
    const pins = new Pins(clock);
    const told = { address: '192.0.2.1', name: 'a.test', ttlMs: (10 + PIN_GRACE_S) * 1000, ranges: web };
    expect(pin(pins, 'a.test', ['192.0.2.1'])).toEqual([told]);
    await clock.advance((PIN_GRACE_S * 1000) / 2);
    expect(pin(pins, 'a.test', ['192.0.2.1'])).toEqual([]);
    await clock.advance(1);
    expect(pin(pins, 'a.test', ['192.0.2.1', '192.0.2.2'])).toEqual([told, { ...told, address: '192.0.2.2' }]);
    expect(pins.count).toBe(2);
  });

  test('that were planned and not confirmed are planned again', () => {
    const pins = new Pins(new ManualClock());
    expect(pins.plan('a.test', ['192.0.2.1'], 10, web)).toHaveLength(1);
    expect(pins.plan('a.test', ['192.0.2.1'], 10, web)).toHaveLength(1);
    expect(pins.nameOf('192.0.2.1')).toBeUndefined();
  });

  test('of one address have the ports of all names that live', async () => {
    const clock = new ManualClock();
    const pins = new Pins(clock);
    pin(pins, 'a.test', ['192.0.2.1']);
    const ssh: readonly PortRange[] = [['tcp', 22, 22, true]];
    expect(pin(pins, 'b.test', ['192.0.2.1'], 300, ssh)[0]?.ranges).toEqual([...ssh, ...web]);
    expect(pins.nameOf('192.0.2.1')).toBe('b.test');
    await clock.advance((10 + PIN_GRACE_S) * 1000);
    expect(pin(pins, 'b.test', ['192.0.2.1'], 300, ssh)[0]?.ranges).toEqual(ssh);
  });

  test('are bounded, and what is over makes room', async () => {
    const clock = new ManualClock();
    const pins = new Pins(clock);
    for (let index = 0; index < MAX_PINS; index++) pin(pins, `n${index}.test`, ['192.0.2.1']);
    expect(pin(pins, 'n0.test', ['192.0.2.1'])).toEqual([]);
    expect(() => pin(pins, 'more.test', ['192.0.2.1'])).toThrow(/4096 addresses/);
    await clock.advance((10 + PIN_GRACE_S) * 1000);
    expect(pin(pins, 'more.test', ['192.0.2.1'])).toHaveLength(1);
    expect(pins.count).toBe(1);
  });

  test('are carried into another policy as far as it allows them, for the time that is left', async () => {
    const clock = new ManualClock();
    const pins = new Pins(clock);
    pin(pins, 'a.test', ['192.0.2.1']);
    pin(pins, 'b.test', ['192.0.2.1', '192.0.2.2']);
    await clock.advance(5000);
    const udp: readonly PortRange[] = [['udp', 53, 53, true]];
    const { next, pins: carried } = pins.carried((name) => (name === 'a.test' ? udp : undefined));
    expect(carried).toEqual([{ address: '192.0.2.1', name: 'a.test', ttlMs: (5 + PIN_GRACE_S) * 1000, ranges: udp }]);
    expect(next.count).toBe(1);
    expect([next.nameOf('192.0.2.1'), next.nameOf('192.0.2.2')]).toEqual(['a.test', undefined]);
    await clock.advance((10 + PIN_GRACE_S) * 1000);
    expect(pins.carried(() => udp).pins).toEqual([]);
  });
});

test('a pin holds four ranges: TCP is widened, since the gate looks again, and UDP is not', () => {
  const tcp = (low: number, high = low): PortRange => ['tcp', low, high, true];
  const udp = (port: number): PortRange => ['udp', port, port, true];
  expect(fitPin([tcp(1), tcp(3), tcp(100), tcp(200), tcp(300)])).toEqual([tcp(1, 3), tcp(100), tcp(200), tcp(300)]);
  expect(fitPin([udp(1), udp(3), udp(5), udp(7), udp(9)])).toEqual([udp(1), udp(3), udp(5), udp(7)]);
  expect(fitPin([tcp(80), tcp(443), udp(1), udp(3), udp(5)])).toEqual([tcp(80, 443), udp(1), udp(3), udp(5)]);
});
