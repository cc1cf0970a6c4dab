/**
 * What each route of the API is called in the audit log. Every route that changes something is in it, and every one that gives out what a sandbox holds,
 * prints or runs; lists and states of the platform are not. A route that nobody has named here is audited under its own path.
 */

/** Routes that are not audited, unless somebody is refused. */
const NOT_AUDITED = null;

const operationNames: Readonly<Record<string, string | null>> = {
  'GET /v1/health': NOT_AUDITED,
  'GET /v1/compositions': NOT_AUDITED,
  'GET /v1/environments': NOT_AUDITED,
  'GET /v1/environments/:name': NOT_AUDITED,
  'GET /v1/environments/:name/usage': NOT_AUDITED,
  'GET /v1/keys': NOT_AUDITED,
  'GET /v1/sandboxes': NOT_AUDITED,
  'GET /v1/sandboxes/:id': NOT_AUDITED,
  'GET /v1/sandboxes/:id/execs': NOT_AUDITED,
  'GET /v1/sandboxes/:id/execs/:eid': NOT_AUDITED,
  'GET /v1/sandboxes/:id/policy': NOT_AUDITED,
  'GET /v1/sandboxes/:id/sessions': NOT_AUDITED,
  'GET /v1/sandboxes/:id/usage': NOT_AUDITED,
  // Its commands are, one by one.
  'GET /v1/wire': NOT_AUDITED,

  'GET /v1/audit': 'audit.read',
  'POST /v1/audit': 'cli.note',
  'GET /v1/events': 'behaviour.events',
  'GET /v1/sandboxes/:id/behaviour': 'behaviour.report',
  'PUT /v1/environments/:name': 'environment.put',
  'DELETE /v1/environments/:name': 'environment.remove',
  'POST /v1/keys': 'key.create',
  'DELETE /v1/keys/:keyId': 'key.revoke',
  'POST /v1/layers/release': 'layer.release',
  'POST /v1/sandboxes': 'sandbox.create',
  'POST /v1/sandboxes/bulk': 'sandbox.createMany',
  'POST /v1/sandboxes/stop': 'sandbox.stopMany',
  'PATCH /v1/sandboxes/:id': 'sandbox.patch',
  'DELETE /v1/sandboxes/:id': 'sandbox.stop',
  'GET /v1/sandboxes/:id/changes': 'sandbox.changes',
  'POST /v1/sandboxes/:id/pack': 'sandbox.pack',
  'PUT /v1/sandboxes/:id/policy': 'policy.set',
  'POST /v1/sandboxes/:id/phase': 'policy.phase',
  'GET /v1/sandboxes/:id/processes': 'processes',
  'POST /v1/sandboxes/:id/execs': 'exec.start',
  'GET /v1/sandboxes/:id/execs/:eid/output': 'exec.output',
  'GET /v1/sandboxes/:id/execs/:eid/pty': 'exec.attach',
  'PUT /v1/sandboxes/:id/execs/:eid/stdin': 'exec.stdin',
  'POST /v1/sandboxes/:id/execs/:eid/signal': 'exec.signal',
  'POST /v1/sandboxes/:id/execs/:eid/resize': 'exec.resize',
  'POST /v1/sandboxes/:id/sessions': 'session.open',
  'DELETE /v1/sandboxes/:id/sessions/:sid': 'session.close',
  'GET /v1/sandboxes/:id/files': 'file.read',
  'PUT /v1/sandboxes/:id/files': 'file.write',
  'DELETE /v1/sandboxes/:id/files': 'file.remove',
  'GET /v1/sandboxes/:id/files/list': 'file.list',
  'GET /v1/sandboxes/:id/files/stat': 'file.stat',
  'GET /v1/sandboxes/:id/files/watch': 'file.watch',
  'GET /v1/sandboxes/:id/files/tree': 'tree.read',
  'PUT /v1/sandboxes/:id/files/tree': 'tree.write',
  'POST /v1/sandboxes/:id/files/change': 'file.change',
  'POST /v1/sandboxes/:id/files/mkdir': 'file.mkdir',
  'POST /v1/sandboxes/:id/files/move': 'file.move',
  'POST /v1/sandboxes/:id/files/sign': 'file.sign',
  'POST /v1/sandboxes/:id/files/symlink': 'file.symlink',
  'POST /v1/sandboxes/:id/ports/:port/token': 'port.token',
};

const PORT_OPERATION = 'port.connect';
/** Of what reached the edge past the apiserver. */
export const STRANGER_OPERATION = 'edge.stranger';

/** Rare operations that others stand on: their answer waits until their record is on the disk. */
const DURABLE: ReadonlySet<string> = new Set([
  'cli.note',
  'environment.put',
  'environment.remove',
  'key.create',
  'key.revoke',
  'layer.release',
  'policy.phase',
  'policy.set',
]);

/** One route, as the audit log has it. */
export interface Operation {
  /** Undefined: only refusals are written down. */
  readonly name: string | undefined;
  readonly method: string;
  readonly route: string;
  readonly isDurable: boolean;
  /** Its members of a record, as JSON, behind one another: put together once, since they come with every request. */
  readonly encoded: string;
}

/** @param route pattern of the path */
export function operationOf(method: string, route: string): Operation {
  const named = operationNames[`${method} ${route}`];
  const name = named === undefined ? `${method} ${route}` : (named ?? undefined);
  return {
    name,
    method,
    route,
    isDurable: name !== undefined && DURABLE.has(name),
    encoded: encode(name, method, route),
  };
}

/** Of requests to a port of a sandbox. */
export const portOperation = (method: string, route: string): Operation => {
  const name = PORT_OPERATION;
  return { name, method, route, isDurable: false, encoded: encode(name, method, route) };
};

/** A route that is not audited has no name but its own, when somebody is refused there. */
const encode = (name: string | undefined, method: string, route: string): string =>
  JSON.stringify({ operation: name ?? `${method} ${route}`, method, route }).slice(1, -1);

/** Whether somebody has decided what the route is in the audit log. */
export const isDecided = (method: string, route: string): boolean =>
  Object.hasOwn(operationNames, `${method} ${route}`);
