/** Routes of the policy of a sandbox: shown to its project, changed by its owner. */
import {
  PhaseRequestSchema,
  PolicySchema,
  PolicyUpdateSchema,
  type Policy,
  type PolicyPrincipal,
} from '@dsec/contract';
import { hasRight, type Principal } from '@dsec/iam';
import type { IncomingMessage } from 'node:http';
import { noteSubject } from '../audit/request-audit.ts';
import { checkPolicy } from '../edge/answers.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import type { Services } from '../services.ts';
import { sandboxIdOf } from './sandbox-param.ts';
import { askEdge, edgePrincipal } from './sandbox-routes.ts';

const principalOf = (principal: Principal): PolicyPrincipal => ({
  ...edgePrincipal(principal),
  isBuilder: hasRight(principal, 'build'),
});

/** Which policy is in force from now on, for the audit log. */
function noted(request: IncomingMessage, policy: Policy): Policy {
  const { version, phase } = policy;
  noteSubject(request, { detail: { version, ...(phase === null ? {} : { phase }) } });
  return policy;
}

export function policyRoutes(scopes: RouteScopes, services: Services): void {
  const { keys } = services;
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/policy',
    summary: 'Shows the policy that is in force.',
    right: 'read',
    answers: { 200: PolicySchema },
    handle: async ({ params, principal, reply }) => {
      const asked = { sandboxId: sandboxIdOf(services, params.id), principal: principalOf(principal) };
      return checkPolicy(await askEdge(services, reply.raw, 'policy.get', asked), 'policy.get');
    },
  });
  addRoute(scopes, keys, {
    method: 'PUT',
    url: '/sandboxes/:id/policy',
    summary:
      'Replaces the policy of a running sandbox; answers when it is in force, on open connections too. For the key that made the sandbox, and for builders.',
    right: 'write',
    body: PolicyUpdateSchema,
    answers: { 200: PolicySchema },
    handle: async ({ params, body, principal, request, reply }) => {
      const asked = { sandboxId: sandboxIdOf(services, params.id), principal: principalOf(principal), update: body };
      return noted(request.raw, checkPolicy(await askEdge(services, reply.raw, 'policy.set', asked), 'policy.set'));
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/phase',
    summary:
      'Enters a phase of the policy, or leaves it with null; answers when its network policy is in force. For the key that made the sandbox, and for builders.',
    right: 'write',
    body: PhaseRequestSchema,
    answers: { 200: PolicySchema },
    handle: async ({ params, body, principal, request, reply }) => {
      const asked = { sandboxId: sandboxIdOf(services, params.id), principal: principalOf(principal), request: body };
      return noted(request.raw, checkPolicy(await askEdge(services, reply.raw, 'policy.phase', asked), 'policy.phase'));
    },
  });
}
