import { completeNetworkPolicy, covers, parsePrefix, type NetworkPolicy, type NetworkRule } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { compilePolicy, MAX_RULES, type CompiledPolicy } from './compile.ts';
import { NameTable } from './name-table.ts';
import type { PortRange } from './port-ranges.ts';

const services = new Set(['pypi', 'npm']);
const complete = (policy: Partial<NetworkPolicy>): NetworkPolicy => completeNetworkPolicy(policy, { field: 'network' });
const compile = (policy: Partial<NetworkPolicy>): CompiledPolicy => compilePolicy(complete(policy), { services });
const allow = (to: string, more: Partial<NetworkRule> = {}): NetworkRule => ({ action: 'allow', to, ...more });
const deny = (to: string, more: Partial<NetworkRule> = {}): NetworkRule => ({ action: 'deny', to, ...more });

const prefixOf = (text: string) => {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text} ${parsed.reason}`);
  return parsed.prefix;
};

/** What the kernel does with the entries: the longest prefix, in it the first range that matches. */
function verdict(rules: CompiledPolicy['rules'], address: string, port: number, protocol = 'tcp'): boolean | undefined {
  const target = prefixOf(address);
  const [entry] = rules
    .filter(({ cidr }) => covers(prefixOf(cidr), target))
    .toSorted((a, b) => prefixOf(b.cidr).length - prefixOf(a.cidr).length);
  return entry?.ranges.find(([of, low, high]) => of === protocol && low <= port && port <= high)?.[3];
}

describe('addresses', () => {
  test.each<readonly [string, readonly NetworkRule[], string, number, string, boolean | undefined]>([
    ['any port without ports', [allow('192.0.2.0/24')], '192.0.2.9', 1234, 'tcp', true],
    ['TCP without a protocol', [allow('192.0.2.0/24')], '192.0.2.9', 1234, 'udp', undefined],
    ['nothing beside the prefix', [allow('192.0.2.0/24')], '192.0.3.9', 80, 'tcp', undefined],
    ['the ports that are named', [allow('192.0.2.1', { ports: [22, '100-200'] })], '192.0.2.1', 150, 'tcp', true],
    ['no other port', [allow('192.0.2.1', { ports: [22, '100-200'] })], '192.0.2.1', 201, 'tcp', undefined],
    ['a narrow denial in a wide permission', [allow('192.0.0.0/16'), deny('192.0.2.1')], '192.0.2.1', 80, 'tcp', false],
    ['a narrow permission in a wide denial', [deny('192.0.0.0/16'), allow('192.0.2.1')], '192.0.2.1', 80, 'tcp', false],
    [
      'a denial of one port',
      [allow('192.0.2.0/24'), deny('192.0.2.0/24', { ports: [22] })],
      '192.0.2.1',
      22,
      'tcp',
      false,
    ],
    [
      'the ports beside a denial',
      [allow('192.0.2.0/24'), deny('192.0.2.0/24', { ports: [22] })],
      '192.0.2.1',
      23,
      'tcp',
      true,
    ],
    [
      'what is inherited, in a narrower prefix',
      [allow('192.0.2.0/24', { ports: [80] }), allow('192.0.2.1', { ports: [22] })],
      '192.0.2.1',
      80,
      'tcp',
      true,
    ],
    ['udp', [allow('2001:db8::/32', { protocol: 'udp', ports: [53] })], '2001:db8::1', 53, 'udp', true],
    ['a denial of every protocol: udp', [deny('192.0.2.0/24')], '192.0.2.9', 53, 'udp', false],
    ['a denial of every protocol: icmp', [deny('192.0.2.0/24')], '192.0.2.9', 0, 'icmp', false],
    ['a denial of ports in tcp and udp', [deny('192.0.2.9', { ports: [53] })], '192.0.2.9', 53, 'udp', false],
    ['a denial of one protocol', [deny('192.0.2.9', { protocol: 'tcp' })], '192.0.2.9', 53, 'udp', undefined],
    ['icmp', [allow('2001:db8::/32', { protocol: 'icmp' })], '2001:db8::1', 0, 'icmp', true],
    ['all of one family', [allow('0.0.0.0/0')], '2001:db8::1', 80, 'tcp', undefined],
  ])('%s', (_name, rules, address, port, protocol, expected) => {
    expect(verdict(compile({ rules }).rules, address, port, protocol)).toBe(expected);
  });

  test('a prefix that says what the one around it says has no entry', () => {
    const { rules } = compile({
      rules: [allow('192.0.2.0/24'), allow('192.0.2.7'), allow('192.0.2.8', { ports: [22] })],
    });
    expect(rules).toEqual([{ cidr: '192.0.2.0/24', ranges: [['tcp', 0, 65_535, true]] }]);
  });
});

describe('names', () => {
  const table = new NameTable(
    compile({ rules: [allow('*.a.test'), allow('B.Test.'), allow('bücher.test', { ports: [8443] })] }).names,
  );
  test.each<readonly [string, boolean]>([
    ['x.a.test', true],
    ['x.y.a.test', true],
    ['a.test', false],
    ['xa.test', false],
    ['b.test', true],
    ['x.b.test', false],
    ['xn--bcher-kva.test', true],
    ['test', false],
    ['', false],
  ])('%s: %s', (name, isAllowed) => {
    expect(table.match(name) !== undefined).toBe(isAllowed);
  });

  test('a rule without ports is for 80 and 443, one with ports for these, and the rules of one name add up', () => {
    expect(table.match('b.test')?.ports).toEqual([
      ['tcp', 80, 80, true],
      ['tcp', 443, 443, true],
    ]);
    expect(table.match('xn--bcher-kva.test')?.ports).toEqual([['tcp', 8443, 8443, true]]);
    const both = new NameTable(compile({ rules: [allow('x.c.test', { ports: [22] }), allow('*.c.test')] }).names);
    expect(both.match('x.c.test')).toEqual({
      ports: [
        ['tcp', 22, 22, true],
        ['tcp', 80, 80, true],
        ['tcp', 443, 443, true],
      ],
      wildcards: [],
    });
    expect(both.match('y.c.test')?.wildcards).toEqual(['*.c.test']);
  });

  test('what is not looked at stands first, and opens its ports with those of the name', () => {
    const ssh = allow('a.test', { ports: [22], anyProtocol: true });
    const { names } = compile({ rules: [allow('a.test'), allow('*.test', { ports: ['1-100'] }), ssh] });
    expect(names).toEqual([
      { pattern: 'a.test', ports: [['tcp', 22, 22, true]], anyProtocol: true },
      {
        pattern: 'a.test',
        ports: [
          ['tcp', 80, 80, true],
          ['tcp', 443, 443, true],
        ],
      },
      { pattern: '*.test', ports: [['tcp', 1, 100, true]] },
    ]);
    expect(new NameTable(names).match('a.test')?.ports).toEqual([
      ['tcp', 1, 100, true],
      ['tcp', 443, 443, true],
    ]);
  });

  test('UDP by name never reaches the port of QUIC', () => {
    const ports = (range: number | string) =>
      compile({ rules: [allow('a.test', { protocol: 'udp', ports: [range, 53] })] });
    expect(ports('400-500').names[0]?.ports).toEqual([
      ['udp', 53, 53, true],
      ['udp', 400, 442, true],
      ['udp', 444, 500, true],
    ] satisfies PortRange[]);
  });

  test('names above an allowed one exist without addresses', () => {
    expect(['a.test', 'test', 'b.test', 'xa.test'].map((name) => table.isAncestor(name))).toEqual([
      true,
      true,
      false,
      false,
    ]);
  });
});

describe('flags and services', () => {
  test('nothing is open that is not said to be', () => {
    expect(compile({})).toEqual({
      flags: { resolver: false, services: false, names: false, public: false },
      rules: [],
      names: [],
      services: [],
      opened: [],
    });
    expect(compile({ services: { pypi: false, cran: false } }).flags.resolver).toBe(false);
    expect(compile({ rules: [deny('192.0.2.1')] }).flags.resolver).toBe(false);
  });

  test('what is open is flagged', () => {
    expect(compile({ default: 'allow' }).flags).toEqual({
      resolver: true,
      services: false,
      names: false,
      public: true,
    });
    expect(compile({ services: { pypi: true, npm: true } })).toMatchObject({
      flags: { resolver: true, services: true, names: false, public: false },
      services: ['npm', 'pypi'],
    });
    expect(compile({ rules: [allow('a.test')], ipLiterals: false }).flags).toMatchObject({
      resolver: true,
      names: true,
    });
  });
});

describe('what is refused', () => {
  const base: NetworkPolicy = { default: 'deny', rules: [], services: {}, ipLiterals: true };
  const evens = (count: number): number[] => Array.from({ length: count }, (_, index) => 2 * index + 2);
  test.each<readonly [string, Partial<NetworkPolicy>, object]>([
    [
      'a name in a denial',
      { rules: [deny('a.test')] },
      { code: 'invalid_argument', details: { field: 'policy.network.rules.0.to' } },
    ],
    [
      'addresses where only names are allowed',
      { rules: [allow('192.0.2.1')], ipLiterals: false },
      { code: 'invalid_argument', details: { field: 'policy.network.rules.0.to' } },
    ],
    [
      'a service that is not defined',
      { services: { cran: true } },
      { code: 'service_unknown', details: { service: 'cran', services: ['npm', 'pypi'] } },
    ],
    [
      'more ranges than an address holds',
      { rules: [allow('192.0.2.0/24', { ports: evens(9) }), allow('192.0.2.1', { ports: evens(17).slice(9) })] },
      { code: 'invalid_argument', message: expect.stringContaining('192.0.2.1') as string },
    ],
    [
      'more ranges than a name holds',
      { rules: [allow('a.test', { ports: evens(5) })] },
      { code: 'invalid_argument', message: expect.stringContaining('a.test') as string },
    ],
    [
      'more rules than a policy holds',
      { rules: new Array<NetworkRule>(MAX_RULES + 1).fill(allow('192.0.2.1')) },
      { code: 'invalid_argument' },
    ],
  ])('%s', (_name, policy, error) => {
    let refusal: unknown;
    try {
      compilePolicy({ ...base, ...policy }, { services });
    } catch (thrown) {
      refusal = thrown;
    }
    expect(refusal).toMatchObject(error);
  });

  test('a denial by address holds where only names are allowed', () => {
    expect(compile({ rules: [deny('192.0.2.1'), allow('a.test')], ipLiterals: false }).rules).toHaveLength(1);
  });
});

test('a policy of as many rules as there may be is compiled', () => {
  const rules = Array.from({ length: MAX_RULES }, (_, index): NetworkRule => {
    if (index % 3 === 2) return allow(`*.n${index}.test`);
    const octets = `${20 + (index >> 8)}.${index & 255}`;
    return index % 3 === 0 ? allow(`${octets}.0.0/16`, { ports: [443] }) : deny(`${octets}.0.1`);
  });
  const compiled = compile({ rules });
  expect(compiled.rules.length + compiled.names.length).toBe(MAX_RULES);
});

/** Few addresses and ports, so that rules meet. */
const octet = fc.constantFrom(0, 1, 128, 255);
const address = fc.tuple(octet, octet).map(([c, d]) => `20.0.${c}.${d}`);
const cidr = fc.tuple(address, fc.constantFrom(8, 16, 23, 24, 25, 31, 32)).map(([text, length]) => {
  const { bits } = prefixOf(text);
  const rest = BigInt(32 - length);
  const masked = (bits >> rest) << rest;
  return `${[24n, 16n, 8n, 0n].map((shift) => (masked >> shift) & 255n).join('.')}/${length}`;
});
const port = fc.integer({ min: 1, max: 6 });
const rule = fc.record<NetworkRule>(
  {
    action: fc.constantFrom('allow', 'deny'),
    to: cidr,
    ports: fc.array(
      fc.oneof(
        port,
        fc.tuple(port, port).map(([a, b]) => `${Math.min(a, b)}-${Math.max(a, b)}`),
      ),
      { minLength: 1, maxLength: 3 },
    ),
    protocol: fc.constantFrom('tcp', 'udp'),
  },
  { requiredKeys: ['action', 'to'] },
);

/** The meaning as it is documented, rule by rule. */
function naive(rules: readonly NetworkRule[], target: string, wanted: number, protocol: string): boolean | undefined {
  const matching = rules.filter(({ action, to, ports, protocol: of = action === 'allow' ? 'tcp' : protocol }) => {
    if (of !== protocol || !covers(prefixOf(to), prefixOf(target))) return false;
    return (ports ?? ['1-65535']).some((range) => {
      const [low = 0, high = low] = String(range).split('-').map(Number);
      return low <= wanted && wanted <= high;
    });
  });
  if (matching.some(({ action }) => action === 'deny')) return false;
  return matching.length > 0 ? true : undefined;
}

test('every packet has the verdict that the rules have one by one', () => {
  fc.assert(
    fc.property(
      fc.array(rule, { maxLength: 12 }),
      fc.array(fc.tuple(address, port, fc.constantFrom('tcp', 'udp')), { minLength: 1, maxLength: 20 }),
      (rules, packets) => {
        const compiled = compile({ rules });
        for (const [target, wanted, protocol] of packets) {
          expect(verdict(compiled.rules, target, wanted, protocol)).toBe(naive(rules, target, wanted, protocol));
        }
      },
    ),
    { numRuns: 500 },
  );
});
