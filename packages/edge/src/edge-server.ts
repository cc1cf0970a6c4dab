/** The methods of an edge, as its apiservers ask them: parses, finds the sandbox, and hands on. */
import {
  edgeParams,
  limits,
  PlatformError,
  type BehaviourKind,
  type CompositionPage,
  type EdgeMethod,
  type EdgeStatus,
  type PhaseRequest,
  type Policy,
  type PolicyUpdate,
  type PackProgress,
  type SandboxIds,
  type SandboxInfo,
  type SandboxPage,
  type Usage,
} from '@dsec/contract';
import type { Backend } from '@dsec/backends';
import { compileSchema } from '@dsec/kit';
import type { JsonObject, WireServerStream } from '@dsec/native-link';
import { sendChanges } from './changes.ts';
import { created, createMany, stopMany } from './bulk.ts';
import type { Behaviour } from './behaviour/behaviour.ts';
import { sendEvents } from './behaviour/send-events.ts';
import type { Creator, CreateRequest } from './creator.ts';
import { releaseLayers } from './layer-release.ts';
import { layersInUse } from './layer-usage.ts';
import type { Lifecycle } from './lifecycle.ts';
import type { PackCall, PackDone, Packs } from './packs.ts';
import type { Policies } from './policy/policies.ts';
import { isRelayed, relayInto } from './relay.ts';
import type { Sandbox } from './sandbox.ts';
import type { Peer, Strangers } from './strangers.ts';

const VERSION = '0.1.0';

type CreateCall = Omit<CreateRequest, 'claim'> & { readonly idempotency?: { key: string; fingerprint: string } };

export interface EdgeServerParts {
  readonly edge: number;
  readonly ids: SandboxIds;
  readonly backend: Backend;
  readonly lifecycle: Lifecycle;
  readonly creator: Creator;
  readonly packs: Packs;
  /** The layers of the node. */
  readonly layersDirectory: string;
  readonly policies: Policies;
  readonly behaviour: Behaviour;
  /** Undefined: nobody is told apart, and every connection counts as proved. */
  readonly strangers: Strangers | undefined;
}

/** Compiled once, when the module is loaded: the first create must not wait for it. */
const parsers = {
  'edge.prove': compileSchema(edgeParams['edge.prove']),
  'edge.strangers': compileSchema(edgeParams['edge.strangers']),
  'edge.info': compileSchema(edgeParams['edge.info']),
  'sandbox.create': compileSchema(edgeParams['sandbox.create']),
  'sandbox.createMany': compileSchema(edgeParams['sandbox.createMany']),
  'sandbox.get': compileSchema(edgeParams['sandbox.get']),
  'sandbox.list': compileSchema(edgeParams['sandbox.list']),
  'sandbox.stop': compileSchema(edgeParams['sandbox.stop']),
  'sandbox.stopMany': compileSchema(edgeParams['sandbox.stopMany']),
  'sandbox.patch': compileSchema(edgeParams['sandbox.patch']),
  'sandbox.usage': compileSchema(edgeParams['sandbox.usage']),
  'behaviour.report': compileSchema(edgeParams['behaviour.report']),
  'behaviour.events': compileSchema(edgeParams['behaviour.events']),
  'policy.get': compileSchema(edgeParams['policy.get']),
  'policy.set': compileSchema(edgeParams['policy.set']),
  'policy.phase': compileSchema(edgeParams['policy.phase']),
  'layer.usage': compileSchema(edgeParams['layer.usage']),
  'layer.release': compileSchema(edgeParams['layer.release']),
  'composition.list': compileSchema(edgeParams['composition.list']),
  'sandbox.changes': compileSchema(edgeParams['sandbox.changes']),
  'sandbox.pack': compileSchema(edgeParams['sandbox.pack']),
} as const satisfies Record<EdgeMethod, unknown>;

const isEdgeMethod = (method: string): method is EdgeMethod => Object.hasOwn(parsers, method);

export class EdgeServer {
  readonly #parts: EdgeServerParts;

  constructor(parts: EdgeServerParts) {
    this.#parts = parts;
  }

  /** Answers one stream. */
  handle(method: string, params: JsonObject, stream: WireServerStream, peer: Peer): Promise<unknown> | void {
    if (!peer.isProved && method !== 'edge.prove') this.#parts.strangers?.note(method, params);
    if (isRelayed(method)) {
      const sandbox = this.#find(params.sandboxId);
      if (method === 'exec.start') this.#parts.behaviour.commands.note(sandbox.sandboxId, params);
      relayInto(sandbox, method, params, stream);
      return;
    }
    if (!isEdgeMethod(method))
      throw new PlatformError('unknown_method', 'an edge has no such method', { details: { method } });
    return this.#answer(method, params, stream, peer);
  }

  async #answer(method: EdgeMethod, params: JsonObject, stream: WireServerStream, peer: Peer): Promise<unknown> {
    switch (method) {
      case 'edge.prove':
        this.#parts.strangers?.prove(peer, parsers[method].parse(params).secret);
        return {};
      case 'edge.strangers':
        parsers[method].parse(params);
        return await this.#parts.strangers?.listen(peer, stream);
      case 'edge.info':
        parsers[method].parse(params);
        return this.#status();
      case 'sandbox.create':
        return await this.#create(params, stream);
      case 'sandbox.createMany':
        return await this.#createMany(params, stream);
      case 'sandbox.get':
        return this.#find(parsers[method].parse(params).sandboxId).info();
      case 'sandbox.list':
        return this.#list(params);
      case 'sandbox.stop':
        return await this.#parts.lifecycle.stop(this.#find(parsers[method].parse(params).sandboxId), {
          signal: stream.signal,
        });
      case 'sandbox.stopMany':
        return await this.#stopMany(params, stream);
      case 'sandbox.patch': {
        const { sandboxId, patch } = parsers[method].parse(params);
        return await this.#parts.lifecycle.patch(this.#find(sandboxId), patch);
      }
      case 'sandbox.usage':
        return await this.#usage(this.#find(parsers[method].parse(params).sandboxId), stream.signal);
      case 'policy.get':
      case 'policy.set':
      case 'policy.phase':
        return await this.#policy(method, params);
      case 'behaviour.report': {
        const { sandboxId, project } = parsers[method].parse(params);
        const sandbox = this.#ofProject(sandboxId, project);
        if (PlatformError.is(sandbox)) throw sandbox;
        return await this.#parts.behaviour.report(sandbox);
      }
      case 'behaviour.events':
        return await this.#events(params, stream);
      case 'layer.usage':
        return await layersInUse(this.#parts, parsers[method].parse(params), stream.signal);
      case 'layer.release':
        return await releaseLayers(this.#parts, parsers[method].parse(params), stream.signal);
      case 'composition.list':
        return await this.#compositions(params);
      case 'sandbox.pack':
        return await this.#pack(params, stream);
      case 'sandbox.changes':
        return await sendChanges(this.#parts.backend, this.#find(parsers[method].parse(params).sandboxId), stream);
    }
  }

  #create(params: JsonObject, stream: WireServerStream): Promise<SandboxInfo> {
    // The schema has checked it; its derived type has lost the names of literals.
    const { idempotency, ...create } = parsers['sandbox.create'].parse(params) as CreateCall;
    const claim = idempotency === undefined ? undefined : { ...idempotency, index: 0, count: 1 };
    return created(this.#parts.creator.begin({ ...create, claim }), stream.signal);
  }

  #createMany(params: JsonObject, stream: WireServerStream): Promise<{ created: number; failed: number }> {
    const { count, idempotency, ...template } = parsers['sandbox.createMany'].parse(params) as CreateCall & {
      readonly count: number;
    };
    return createMany({ creator: this.#parts.creator, template, count, idempotency }, stream);
  }

  #list(params: JsonObject): SandboxPage {
    const { project, metadata, states, cursor, limit } = parsers['sandbox.list'].parse(params);
    const filter = { project, metadata, states };
    const page = this.#parts.lifecycle.parts.registry.list(filter, { cursor, limit: limit ?? limits.pageSize.default });
    return { sandboxes: page.sandboxes.map((sandbox) => sandbox.info()), cursor: page.cursor ?? null };
  }

  async #compositions(params: JsonObject): Promise<CompositionPage> {
    const { cursor, limit = limits.pageSize.default } = parsers['composition.list'].parse(params);
    const { journal, clock } = this.#parts.lifecycle.parts;
    const page = await journal.compositions({ after: Number(cursor ?? 0), limit, nowMs: clock.now() });
    return {
      compositions: page.compositions.map((counted) => ({ ...counted, toolkits: [...counted.toolkits] })),
      cursor: page.cursor === undefined ? null : String(page.cursor),
    };
  }

  #stopMany(params: JsonObject, stream: WireServerStream): Promise<{ stopped: number; failed: number }> {
    const { project, sandboxIds, metadata } = parsers['sandbox.stopMany'].parse(params);
    if ((sandboxIds === undefined) === (metadata === undefined)) {
      throw new PlatformError('invalid_argument', 'name either the sandboxes or their metadata', {
        details: { field: 'sandboxIds', reason: 'either this or metadata' },
      });
    }
    const { lifecycle } = this.#parts;
    const targets =
      sandboxIds === undefined
        ? lifecycle.parts.registry.select({ project, metadata }).filter((sandbox) => !sandbox.isOver)
        : sandboxIds.map((sandboxId) => this.#ofProject(sandboxId, project));
    return stopMany(lifecycle, targets, stream);
  }

  async #usage(sandbox: Sandbox, signal: AbortSignal): Promise<Usage> {
    if (!sandbox.isLive || sandbox.channel === undefined) throw sandbox.refusal();
    const usage = await this.#parts.backend.usage(sandbox.sandboxId, { signal });
    sandbox.oomKillsSeen = Math.max(sandbox.oomKillsSeen, usage.oomKills);
    return usage;
  }

  async #pack(params: JsonObject, stream: WireServerStream): Promise<PackDone> {
    // The schema has checked it; its derived type has lost the names of literals.
    const { sandboxId, ...call } = parsers['sandbox.pack'].parse(params) as Omit<PackCall, 'sandbox'> & {
      readonly sandboxId: string;
    };
    const tell = (progress: PackProgress): void => {
      // Who has gone hears nothing.
      stream.message(progress).catch(() => undefined);
    };
    return await this.#parts.packs.pack({ ...call, sandbox: this.#find(sandboxId) }, tell, stream.signal);
  }

  async #policy(method: 'policy.get' | 'policy.set' | 'policy.phase', params: JsonObject): Promise<Policy> {
    const { policies } = this.#parts;
    switch (method) {
      case 'policy.get': {
        const { sandboxId, principal } = parsers[method].parse(params);
        return policies.get(this.#find(sandboxId), principal);
      }
      case 'policy.set': {
        const { sandboxId, principal, update } = parsers[method].parse(params);
        // The schemas have checked both; their derived types have lost the names of literals.
        return await policies.set(this.#find(sandboxId), principal, update as PolicyUpdate);
      }
      case 'policy.phase': {
        const { sandboxId, principal, request } = parsers[method].parse(params);
        return await policies.enter(this.#find(sandboxId), principal, request as PhaseRequest);
      }
    }
  }

  #events(params: JsonObject, stream: WireServerStream): Promise<object> {
    const { after, follow = false, kinds, ...filter } = parsers['behaviour.events'].parse(params);
    // The schema has checked them; its derived type has lost the names of literals.
    const events = this.#parts.behaviour.listen({ ...filter, kinds: kinds as readonly BehaviourKind[] }, after);
    return sendEvents(stream, events, { isFollowing: follow });
  }

  #status(): EdgeStatus {
    const { ledger } = this.#parts.lifecycle.parts;
    const { limits: limit, used } = ledger;
    const share = (resource: keyof typeof used) => ({ limit: limit[resource], used: used[resource] });
    return {
      edge: this.#parts.edge,
      live: used.sandboxes,
      version: VERSION,
      capacity: {
        memoryMib: share('memoryMib'),
        pids: share('pids'),
        diskMib: share('diskMib'),
        sandboxes: share('sandboxes'),
      },
    };
  }

  /** @throws PlatformError `invalid_id`, `edge_unknown`, `sandbox_not_found` */
  #find(sandboxId: unknown): Sandbox {
    const known = typeof sandboxId === 'string' ? this.#parts.lifecycle.parts.registry.get(sandboxId) : undefined;
    if (known !== undefined) return known;
    // Whether it could be one of ours is looked at only now: what is known was checked when it was made.
    const { edge } = this.#parts.ids.parse(typeof sandboxId === 'string' ? sandboxId : '');
    if (edge !== this.#parts.edge)
      throw new PlatformError('edge_unknown', 'this sandbox belongs to another edge', { details: { edge } });
    throw new PlatformError('sandbox_not_found', `there is no sandbox ${String(sandboxId)}`, {
      details: { sandboxId: String(sandboxId) },
    });
  }

  #ofProject(sandboxId: string, project: string): Sandbox | PlatformError {
    try {
      const sandbox = this.#find(sandboxId);
      if (sandbox.record.project === project) return sandbox;
      return new PlatformError('sandbox_not_found', `there is no sandbox ${sandboxId}`, { details: { sandboxId } });
    } catch (error) {
      if (PlatformError.is(error)) return error;
      throw error;
    }
  }
}
