import fc from 'fast-check';
import { Compile } from 'typebox/compile';
import { describe, expect, it, test } from 'vitest';
import { PlatformError } from './errors.ts';
import { limits } from './limits.ts';
import {
  allowsAnything,
  checkPhase,
  completeNetworkPolicy,
  completePolicy,
  destinationOf,
  portRangesOf,
} from './network-policy.ts';
import { policyProfiles } from './policy-profiles.ts';
import {
  networkInForce,
  networkProtocols,
  policyPhases,
  PolicySchema,
  profileNames,
  PolicyRequestSchema,
  PolicyUpdateSchema,
  type NetworkRule,
  type PolicyRequest,
} from './public/policy.ts';

const schema = Compile(PolicyRequestSchema);
const allow = (to: string, more: Partial<NetworkRule> = {}): NetworkRule => ({ action: 'allow', to, ...more });
const deny = (to: string, more: Partial<NetworkRule> = {}): NetworkRule => ({ action: 'deny', to, ...more });
const withRules = (...rules: readonly NetworkRule[]): PolicyRequest => ({ network: { rules } });

function refusal(request: PolicyRequest): { field: unknown; reason: unknown } {
  try {
    completePolicy(request);
  } catch (error) {
    if (!PlatformError.is(error)) throw error;
    expect(error.code).toBe('invalid_argument');
    return { field: error.details['field'], reason: error.details['reason'] };
  }
  throw new Error('it was not refused');
}

describe('a policy', () => {
  it('names tripwires by absolute and normal paths, each once', () => {
    const tripwires = ['/root/answers.txt', '/srv/..hidden/.key'];
    expect(schema.Check({ tripwires })).toBe(true);
    expect(completePolicy({ tripwires: [...tripwires, ...tripwires] }).tripwires).toEqual(tripwires);
    expect(completePolicy({ tripwires: [] })).not.toHaveProperty('tripwires');
    for (const path of [
      '',
      '/',
      'root',
      '/a/',
      '//a',
      '/a//b',
      '/./a',
      '/a/.',
      '/a/..',
      '/../a',
      '/a\u0000',
      '/a\nb',
    ]) {
      expect([path, schema.Check({ tripwires: [path] })]).toEqual([path, false]);
    }
    expect(refusal({ tripwires: ['/ok', `/${'é'.repeat(256)}`] }).field).toBe('policy.tripwires.1');
    const many = Array.from({ length: limits.tripwires + 1 }, (_, index) => `/t${index}`);
    expect(schema.Check({ tripwires: many })).toBe(false);
  });

  it('is closed when nothing is said', () => {
    const terms = completePolicy({});
    expect(terms).toEqual({
      profile: 'default',
      network: { default: 'deny', rules: [], services: {}, ipLiterals: true },
      phase: null,
    });
    expect(allowsAnything(terms.network)).toBe(false);
  });

  it('is closed in every profile, and none refuses its own defaults', () => {
    for (const profile of Object.keys(policyProfiles) as (keyof typeof policyProfiles)[]) {
      expect(allowsAnything(completePolicy({ profile }).network)).toBe(false);
      expect(completePolicy({ profile }).network).toEqual(policyProfiles[profile].network);
    }
  });

  it('allows something by a permission, a service or its default, and by no denial', () => {
    const open = (network: PolicyRequest['network'] & object): boolean =>
      allowsAnything(completeNetworkPolicy(network, { field: 'network' }));
    expect(open({ rules: [deny('10.0.0.0/8')], services: { npm: false } })).toBe(false);
    expect(open({ rules: [deny('10.0.0.0/8'), allow('api.example.com')] })).toBe(true);
    expect(open({ services: { pypi: true } })).toBe(true);
    expect(open({ default: 'allow' })).toBe(true);
  });

  it('has each destination in one form, and TCP and all ports where a permission does not say', () => {
    const { network } = completePolicy(
      withRules(allow('Bücher.Example.'), allow('10.0.0.0/8', { ports: [53, '80-90'], protocol: 'udp' })),
    );
    expect(network.rules).toEqual([
      { action: 'allow', to: 'xn--bcher-kva.example', protocol: 'tcp' },
      { action: 'allow', to: '10.0.0.0/8', ports: [53, '80-90'], protocol: 'udp' },
    ]);
    expect(network.rules.map(portRangesOf)).toEqual([
      [[1, 65_535]],
      [
        [53, 53],
        [80, 90],
      ],
    ]);
    expect(network.rules.map((rule) => destinationOf(rule).kind)).toEqual(['name', 'addresses']);
    expect(portRangesOf({ action: 'allow', to: '1.1.1.1', protocol: 'icmp' })).toEqual([]);
    expect(completePolicy({ network }).network).toEqual(network);
  });

  it('looks at what connections by name carry unless a rule says that it does not', () => {
    const rules = [
      allow('a.example', { ports: [22], anyProtocol: true }),
      allow('b.example', { ports: [22], anyProtocol: false }),
    ];
    const { network } = completePolicy(withRules(...rules));
    expect(network.rules).toEqual([
      { action: 'allow', to: 'a.example', ports: [22], protocol: 'tcp', anyProtocol: true },
      { action: 'allow', to: 'b.example', ports: [22], protocol: 'tcp' },
    ]);
    expect(completePolicy({ network }).network).toEqual(network);
  });

  it('denies every protocol where a denial names none', () => {
    const { network } = completePolicy(withRules(deny('10.0.0.0/8'), deny('10.0.0.1', { protocol: 'tcp' })));
    expect(network.rules.map(({ protocol }) => protocol)).toEqual([undefined, 'tcp']);
  });

  it('takes a permission and a denial of the same, in either order', () => {
    const both = [allow('10.1.0.0/16', { ports: [443] }), deny('10.0.0.0/8')];
    expect(completePolicy(withRules(...both)).network.rules).toHaveLength(2);
    expect(completePolicy(withRules(...both.toReversed())).network.rules).toHaveLength(2);
  });

  it('may deny what is never reachable and not allow it', () => {
    expect(completePolicy(withRules(deny('169.254.169.254'), deny('0.0.0.0/0'))).network.rules).toHaveLength(2);
    expect(refusal(withRules(allow('169.254.169.254')))).toEqual({
      field: 'policy.network.rules.0.to',
      reason: 'is never reachable from a sandbox',
    });
    expect(refusal(withRules(allow('1.1.1.1'), allow('localhost'))).field).toBe('policy.network.rules.1.to');
  });

  it('holds that of its phase, and only enters one that it has', () => {
    const terms = completePolicy({ network: {}, phases: { setup: { services: { pypi: true } } }, phase: 'setup' });
    expect(networkInForce(terms).services).toEqual({ pypi: true });
    expect(networkInForce({ ...terms, phase: null })).toEqual(terms.network);
    expect(refusal({ phases: { setup: {} }, phase: 'solve' }).field).toBe('policy.phase');
    expect(refusal({ phase: 'setup' }).field).toBe('policy.phase');
    expect(() => checkPhase(terms.phases, 'verify')).toThrow('phase');
    expect(refusal({ phases: { verify: { rules: [allow('bad')] } } }).field).toBe('policy.phases.verify.rules.0.to');
  });
});

test.each<[string, PolicyRequest, string]>([
  [
    'a denied name where all addresses are allowed',
    { network: { default: 'allow', rules: [deny('example.com')] } },
    'network.rules.0.to',
  ],
  ['icmp by name', withRules(allow('example.com', { protocol: 'icmp' })), 'network.rules.0.protocol'],
  ['icmp with ports', withRules(allow('1.1.1.1', { protocol: 'icmp', ports: [1] })), 'network.rules.0.ports'],
  [
    'QUIC by name',
    withRules(allow('example.com', { protocol: 'udp', ports: [443, '443-443'] })),
    'network.rules.0.ports',
  ],
  [
    'any protocol of addresses',
    withRules(allow('1.1.1.1', { anyProtocol: true, ports: [22] })),
    'network.rules.0.anyProtocol',
  ],
  [
    'any protocol below a wildcard',
    withRules(allow('*.example.com', { anyProtocol: true, ports: [22] })),
    'network.rules.0.anyProtocol',
  ],
  [
    'any protocol of UDP',
    withRules(allow('example.com', { anyProtocol: true, protocol: 'udp', ports: [53] })),
    'network.rules.0.anyProtocol',
  ],
  ['any protocol without ports', withRules(allow('example.com', { anyProtocol: true })), 'network.rules.0.ports'],
  [
    'any protocol at 443',
    withRules(allow('example.com', { anyProtocol: true, ports: [22, 443] })),
    'network.rules.0.ports',
  ],
  [
    'any protocol where 80 is among them',
    withRules(allow('example.com', { anyProtocol: true, ports: ['22-90'] })),
    'network.rules.0.ports',
  ],
  ['any protocol of a denial', withRules(deny('1.1.1.1', { anyProtocol: true })), 'network.rules.0.anyProtocol'],
  ['a range that runs down', withRules(allow('1.1.1.1', { ports: ['9-8'] })), 'network.rules.0.ports'],
  ['a range beyond the last port', withRules(allow('1.1.1.1', { ports: ['1-65536'] })), 'network.rules.0.ports'],
  ['an open network in strict', { profile: 'strict', network: { default: 'allow' } }, 'network.default'],
  ['IP literals in strict', { profile: 'strict', network: { ipLiterals: true } }, 'network.ipLiterals'],
  ['allowed addresses in strict', { profile: 'strict', ...withRules(allow('1.1.1.1')) }, 'network.rules.0.to'],
  ['no IP literals where all are allowed', { network: { default: 'allow', ipLiterals: false } }, 'network.ipLiterals'],
])('%s is refused', (_, request, field) => {
  expect(schema.Check(request)).toBe(true);
  expect(refusal(request).field).toBe(`policy.${field}`);
});

test.each<[string, unknown]>([
  ['a rule without an action', { network: { rules: [{ to: '1.1.1.1' }] } }],
  ['a rule without a destination', { network: { rules: [{ action: 'allow' }] } }],
  ['another action', { network: { rules: [{ action: 'log', to: '1.1.1.1' }] } }],
  ['another protocol', { network: { rules: [{ action: 'allow', to: '1.1.1.1', protocol: 'sctp' }] } }],
  ['an unknown member', { network: { rules: [{ action: 'allow', to: '1.1.1.1', port: 1 }] } }],
  ['an unknown phase', { phases: { deploy: {} } }],
  ['an unknown profile', { profile: 'root' }],
  ['a name of a service with a slash', { network: { services: { 'a/b': true } } }],
  ['a service that is no boolean', { network: { services: { pypi: 'yes' } } }],
  ...[[], [0], [65_536], [1.5], ['80'], ['0-1'], ['-1'], ['1-'], ['a-b'], ['1-2-3'], [null], new Array(17).fill(1)].map(
    (ports): [string, unknown] => [
      `ports ${JSON.stringify(ports)}`,
      { network: { rules: [{ action: 'allow', to: '1.1.1.1', ports }] } },
    ],
  ),
])('the schema does not take %s', (_, request) => {
  expect(schema.Check(request)).toBe(false);
});

it('takes 8,192 rules and not one more', () => {
  const rules = Array.from({ length: limits.networkRules + 1 }, (_, index) =>
    allow(`10.${index >> 8}.${index & 255}.0/24`),
  );
  const full = { network: { rules: rules.slice(1) } };
  expect(limits.networkRules).toBe(8192);
  expect(schema.Check({ network: { rules } })).toBe(false);
  expect(schema.Check(full)).toBe(true);
  expect(completePolicy(full).network.rules).toHaveLength(8192);
  const { network } = full;
  expect(completePolicy({ network, phases: { setup: network } }).phases?.setup?.rules).toHaveLength(8192);
  expect(refusal({ network, phases: { setup: network, solve: { rules: [allow('1.1.1.1')] } } }).field).toBe(
    'policy.phases',
  );
});

it('takes an update as the API shows the policy, but for what the platform says', () => {
  const shown = { ...completePolicy({ phases: { setup: {} } }), version: 3 };
  expect(Compile(PolicyUpdateSchema).Check(shown)).toBe(true);
  expect(Compile(PolicyUpdateSchema).Check({ ...shown, version: 0 })).toBe(false);
});

describe('fuzz: policies', () => {
  const to = fc.oneof(
    { weight: 12, arbitrary: fc.constantFrom('a.example', '*.b.example', '10.0.0.0/8', '192.0.2.1', '2001:db8::/32') },
    { weight: 1, arbitrary: fc.constantFrom('169.254.1.1', 'ü.example', '*', 'x') },
    { weight: 1, arbitrary: fc.string({ unit: 'grapheme', maxLength: 20 }) },
  );
  const port = fc.oneof(
    {
      weight: 12,
      arbitrary: fc.oneof(fc.integer({ min: 1, max: 65_535 }), fc.constantFrom('1-2', '443-443', '9-65535')),
    },
    { weight: 1, arbitrary: fc.constantFrom(0, -1, 65_536, 1.5, '2-1', '1-65536', '-') },
  );
  const rule = fc.record(
    {
      action: fc.constantFrom('allow', 'allow', 'deny'),
      to,
      ports: fc.array(port, { minLength: 1, maxLength: 3 }),
      protocol: fc.constantFrom('tcp', 'tcp', ...networkProtocols),
    },
    { requiredKeys: ['action', 'to'] },
  );
  const network = fc.record(
    {
      default: fc.constantFrom('allow', 'deny'),
      rules: fc.array(rule, { maxLength: 2 }),
      services: fc.dictionary(fc.constantFrom('npm', 'pypi', 'npm2', 'go', '__proto__'), fc.boolean()),
      ipLiterals: fc.boolean(),
    },
    { requiredKeys: [] },
  );
  const policies = fc.record(
    {
      profile: fc.constantFrom(...profileNames),
      network,
      phases: fc.record({ setup: network, solve: network }, { requiredKeys: [] }),
      phase: fc.constantFrom(...policyPhases, null),
    },
    { requiredKeys: [] },
  );

  it('are refused with a field, or complete: then they say the same when they are completed again', () => {
    const shown = Compile(PolicySchema);
    let taken = 0;
    fc.assert(
      fc.property(policies, (policy) => {
        if (!schema.Check(policy)) return;
        const request = policy as PolicyRequest;
        let terms;
        try {
          terms = completePolicy(request);
        } catch (error) {
          expect(PlatformError.is(error) && error.code === 'invalid_argument' && error.details['field']).toMatch(
            /^policy\./,
          );
          return;
        }
        taken++;
        expect(completePolicy(terms)).toEqual(terms);
        expect(shown.Check({ ...terms, version: 1, changedAtMs: 1 })).toBe(true);
        for (const { rules } of [terms.network, ...Object.values(terms.phases ?? {})]) {
          for (const each of rules) {
            expect(destinationOf(each)).toBeDefined();
            for (const [low, high] of portRangesOf(each)) expect(1 <= low && low <= high && high <= 65_535).toBe(true);
          }
        }
      }),
      { numRuns: 6000 },
    );
    expect(taken).toBeGreaterThan(100);
  });
});
