/** The stream of `exec.start` and `exec.attach`, checked item by item. */
import { PlatformError, type ExecStatus } from '@dsec/contract';
import type { WireItem, WireStream } from '@dsec/native-link';
import { checkExecStatus, checkGap, checkStarted } from '../edge/answers.ts';

export interface Started {
  readonly execId: string;
  readonly pid: number;
  /** Of a pty: how `exec.resize` names this reader. */
  readonly clientId: string | undefined;
}

export interface Gap {
  readonly channel: 1 | 2;
  readonly from: number;
  readonly to: number;
}

/** Takes what a command says. A promise holds the stream back until it resolves. */
export interface ExecSink {
  output(channel: 1 | 2, bytes: Buffer): Promise<void> | undefined;
  gap(gap: Gap): Promise<void> | undefined;
}

const unexpected = (method: string): PlatformError =>
  new PlatformError('protocol_error', `${method} sent something that is not in the protocol`);

/** Waits until the command runs. @throws PlatformError why it does not */
export async function execStarted(stream: WireStream): Promise<Started> {
  const first = await stream.next();
  if (first.done === true || first.value.type !== 'message') throw unexpected(stream.method);
  const { execId, pid, clientId } = checkStarted(first.value.value, stream.method).started;
  return { execId, pid, clientId };
}

/** Passes everything after the start on, and returns how the command stands at the end of the stream. */
export async function followExec(stream: WireStream, sink: ExecSink): Promise<ExecStatus> {
  for (let next = await stream.next(); next.done !== true; next = await stream.next()) {
    const ready = passOn(next.value, sink, stream.method);
    if (ready !== undefined) await ready;
  }
  return checkExecStatus(await stream.result, stream.method);
}

function passOn(item: WireItem, sink: ExecSink, method: string): Promise<void> | undefined {
  if (item.type === 'data') {
    if (item.channel !== 1 && item.channel !== 2) throw unexpected(method);
    return sink.output(item.channel, item.bytes);
  }
  if (item.type === 'message') return sink.gap(checkGap(item.value, method).gap);
  return undefined;
}
