import { ExecStatusSchema, SessionSchema, type ExecStatus, type SessionInfo } from '@dsec/contract';
import { Type } from 'typebox';
import { parserOf } from '../http/schema.ts';

export const parseExecStatus = parserOf<typeof ExecStatusSchema, ExecStatus>(ExecStatusSchema, 'state of a command');
export const parseDelivered = parserOf(Type.Object({ delivered: Type.Boolean() }), 'answer to a signal');
export const parseExecList = parserOf<ReturnType<typeof execList>, { readonly execs: readonly ExecStatus[] }>(
  execList(),
  'list of commands',
);
export const parseSession = parserOf(Type.Object({ sessionId: Type.String(), pid: Type.Integer() }), 'session');
export const parseSessionList = parserOf<ReturnType<typeof sessionList>, { readonly sessions: readonly SessionInfo[] }>(
  sessionList(),
  'list of sessions',
);

function execList() {
  return Type.Object({ execs: Type.Array(ExecStatusSchema) });
}

function sessionList() {
  return Type.Object({ sessions: Type.Array(SessionSchema) });
}
