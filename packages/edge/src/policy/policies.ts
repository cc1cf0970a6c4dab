/**
 * The policies of sandboxes: who may see and change them, and what a change is. One is in force at any time, the one of the record; a change is
 * refused, or holds: first on the network, then in the journal. What fails on the way leaves the policy before in force.
 *
 * A policy can be changed while its sandbox runs. During its creation the change is refused with `sandbox_not_ready`, since the create answers for the
 * policy that it was asked with; once it is being stopped with `sandbox_ended` or `sandbox_failed`; one that is overtaken by the end is not journalled.
 */
import { isDeepStrictEqual } from 'node:util';
import {
  allowsAnything,
  checkPhase,
  completePolicy,
  networkInForce,
  PlatformError,
  policyOfCreate,
  ruleCountOf,
  type CreateSandbox,
  type PhaseRequest,
  type Policy,
  type PolicyPrincipal,
  type PolicyTerms,
  type PolicyUpdate,
} from '@dsec/contract';
import type { Clock, Logger } from '@dsec/kit';
import type { Journal } from '../journal.ts';
import type { Sandbox } from '../sandbox.ts';
import type { RuleBudget, RuleHold } from './rule-budget.ts';
import type { Uplinks } from './uplinks.ts';

export interface PoliciesOptions {
  readonly uplinks: Uplinks;
  readonly budget: RuleBudget;
  readonly journal: Journal;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** What a change asks for; `version` is the one that it is based on. */
interface Change {
  readonly action: 'set' | 'phase';
  readonly version: number | undefined;
  readonly terms: (current: Policy) => PolicyTerms;
}

export class Policies {
  readonly #options: PoliciesOptions;
  /** By request: a bulk create completes its thousands of rules once, and its sandboxes share them. */
  readonly #first = new WeakMap<CreateSandbox, PolicyTerms | PlatformError>();

  constructor(options: PoliciesOptions) {
    this.#options = options;
  }

  /**
   * The first policy of a sandbox.
   * @throws PlatformError `invalid_argument`, `service_unknown`, `network_unavailable`
   */
  first(request: CreateSandbox): Policy {
    const terms = this.#termsOf(request);
    if (PlatformError.is(terms)) throw terms;
    this.#checkOffer(terms);
    return { ...terms, version: 1, changedAtMs: this.#options.clock.now() };
  }

  /** Its share of what a node holds of rules. @throws PlatformError `no_capacity` */
  hold(policy: Policy): RuleHold {
    return this.#options.budget.hold(ruleCountOf(policy));
  }

  /** The same for a policy that is in force already. */
  adopt(policy: Policy): RuleHold {
    return this.#options.budget.adopt(ruleCountOf(policy));
  }

  /** @throws PlatformError `sandbox_not_found` for a key of another project; `sandbox_ended`, `sandbox_failed` */
  get(sandbox: Sandbox, principal: PolicyPrincipal): Policy {
    checkProject(sandbox, principal);
    if (!sandbox.isLive) throw sandbox.refusal();
    return sandbox.record.policy;
  }

  /**
   * Replaces the policy; resolves when it is in force and durable.
   * @throws PlatformError `sandbox_not_found`, `permission_denied`, `policy_stale`, `invalid_argument`, `service_unknown`, `network_unavailable`,
   *   `sandbox_not_ready`, `sandbox_ended`, `sandbox_failed`, `no_capacity`, `too_many_requests`, `unavailable`, `disk_full`
   */
  set(sandbox: Sandbox, principal: PolicyPrincipal, update: PolicyUpdate): Promise<Policy> {
    const { version, ...request } = update;
    return this.#change(sandbox, principal, {
      action: 'set',
      version,
      terms: ({ profile, phase, tripwires = [] }) => {
        if (request.profile !== undefined && request.profile !== profile) throw isFixed('profile', profile);
        const terms = completePolicy({ phase, ...request, profile, tripwires: request.tripwires ?? tripwires });
        if (!isDeepStrictEqual(terms.tripwires ?? [], tripwires)) throw isFixed('tripwires', tripwires.join(' '));
        return terms;
      },
    });
  }

  /** Enters a phase of the policy, or leaves it; being there already is no change. @throws PlatformError as {@link Policies.set} */
  enter(sandbox: Sandbox, principal: PolicyPrincipal, { phase, version }: PhaseRequest): Promise<Policy> {
    return this.#change(sandbox, principal, {
      action: 'phase',
      version,
      terms: (current) => {
        checkPhase(current.phases, phase);
        return { ...current, phase };
      },
    });
  }

  #termsOf(request: CreateSandbox): PolicyTerms | PlatformError {
    const before = this.#first.get(request);
    if (before !== undefined) return before;
    const terms = attempt(() => policyOfCreate(request));
    this.#first.set(request, terms);
    return terms;
  }

  async #change(sandbox: Sandbox, principal: PolicyPrincipal, change: Change): Promise<Policy> {
    const { logger } = this.#options;
    const audit = {
      sandboxId: sandbox.sandboxId,
      keyId: principal.keyId,
      project: principal.project,
      action: change.action,
      fromVersion: sandbox.record.policy.version,
    };
    try {
      checkProject(sandbox, principal);
      checkOwner(sandbox, principal);
      using _lock = await this.#options.uplinks.lock(sandbox);
      const fromVersion = sandbox.record.policy.version;
      const policy = await this.#changeLocked(sandbox, change);
      const { version: toVersion, phase } = policy;
      logger.info('policy.change', {
        ...audit,
        outcome: 'ok',
        fromVersion,
        toVersion,
        phase,
        rules: ruleCountOf(policy),
      });
      return policy;
    } catch (error) {
      const outcome = PlatformError.is(error) ? error.code : 'internal';
      logger.warn('policy.change', { ...audit, outcome, ...(outcome === 'internal' ? { error } : {}) });
      throw error;
    }
  }

  async #changeLocked(sandbox: Sandbox, { version, terms, action }: Change): Promise<Policy> {
    const { uplinks, journal, clock } = this.#options;
    if (sandbox.state.phase !== 'running') throw sandbox.refusal();
    const before = sandbox.record.policy;
    if (version !== undefined && version !== before.version) throw stale(sandbox, before.version);
    const policy: Policy = { ...terms(before), version: before.version + 1, changedAtMs: clock.now() };
    if (action === 'phase' && policy.phase === before.phase) return before;
    this.#checkOffer(policy);
    sandbox.rules?.change(ruleCountOf(policy));
    try {
      await uplinks.apply(sandbox, networkInForce(policy));
      if (!sandbox.isLive) throw sandbox.refusal();
      sandbox.record = { ...sandbox.record, policy };
      await journal.write(sandbox.record);
    } catch (error) {
      await this.#restore(sandbox, before);
      throw error;
    }
    return policy;
  }

  async #restore(sandbox: Sandbox, before: Policy): Promise<void> {
    // The record of a sandbox that has ended says what its end says.
    if (!sandbox.isLive) return;
    const wasTaken = sandbox.record.policy !== before;
    sandbox.record = { ...sandbox.record, policy: before };
    sandbox.rules?.change(ruleCountOf(before));
    if (!wasTaken) return;
    const { uplinks, journal, logger } = this.#options;
    uplinks.doubt(sandbox);
    // Another record of the sandbox may have carried the new policy to the disk meanwhile.
    await journal.write(sandbox.record).catch((error: unknown) => {
      logger.warn('policy.restore', { sandboxId: sandbox.sandboxId, outcome: 'failed', error });
    });
  }

  /** Whatever a policy may open in any phase must be there: it is refused now, and not when it is needed. */
  #checkOffer({ network, phases = {} }: PolicyTerms): void {
    const { offer } = this.#options.uplinks;
    const all = [network, ...Object.values(phases)];
    if (!all.some(allowsAnything)) return;
    if (!offer.isOffered) {
      throw new PlatformError(
        'network_unavailable',
        'the policy allows something, and this node gives sandboxes no network',
        {
          details: { reason: offer.reason },
        },
      );
    }
    const { services } = offer;
    if (services === undefined) return;
    const opened = all.flatMap((policy) => Object.entries(policy.services).filter(([, isOpen]) => isOpen));
    const unknown = opened.find(([service]) => !services.includes(service));
    if (unknown === undefined) return;
    throw new PlatformError('service_unknown', `this node offers no service ${unknown[0]}`, {
      details: { service: unknown[0], services },
    });
  }
}

/** What is refused is an answer, too. */
function attempt<T>(work: () => T): T | PlatformError {
  try {
    return work();
  } catch (error) {
    if (PlatformError.is(error)) return error;
    throw error;
  }
}

/** Keys of other projects do not learn that there is such a sandbox. */
function checkProject(sandbox: Sandbox, { project }: PolicyPrincipal): void {
  if (sandbox.record.project === project) return;
  const { sandboxId } = sandbox;
  throw new PlatformError('sandbox_not_found', `there is no sandbox ${sandboxId}`, { details: { sandboxId } });
}

/** An agent at run time has a key of the same project: it must not open its own sandbox. */
function checkOwner(sandbox: Sandbox, { keyId, isBuilder }: PolicyPrincipal): void {
  if (isBuilder || sandbox.record.keyId === keyId) return;
  throw new PlatformError(
    'permission_denied',
    'only the key that made a sandbox, or that of a builder of its project, may change its policy',
    { details: { keyId, sandboxId: sandbox.sandboxId } },
  );
}

const isFixed = (member: 'profile' | 'tripwires', value: string): PlatformError =>
  new PlatformError('invalid_argument', `the policy: ${member} cannot be changed`, {
    details: {
      field: `policy.${member}`,
      reason: `is ${value === '' ? 'empty' : value} since the creation of the sandbox`,
    },
  });

const stale = ({ sandboxId }: Sandbox, version: number): PlatformError =>
  new PlatformError('policy_stale', `the policy of sandbox ${sandboxId} was changed meanwhile`, {
    details: { sandboxId, version },
  });
