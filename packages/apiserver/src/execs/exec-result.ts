/** An exec as one JSON answer, when the command has ended. */
import type { ServerResponse } from 'node:http';
import { KEEPALIVE_MS, limits, type ExecResultJson, type ExecStatus } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import type { WireStream } from '@dsec/native-link';
import type { FastifyReply } from 'fastify';
import { asPlatformError, errorBody } from '../http/error-reply.ts';
import { settlesWithin } from '../http/ndjson.ts';
import { noteFailure } from '../http/outcome.ts';
import { ResponseStream } from '../http/response-stream.ts';
import { followExec } from './exec-events.ts';
import type { MemoryBudget } from '../http/memory-budget.ts';
import { OutputWindow, textOf } from './output-window.ts';

const HEADERS = { 'content-type': 'application/json; charset=utf-8', 'cache-control': 'no-store' };
/** JSON begins with any number of these. */
const BLANK = ' ';

/**
 * Answers with the result of a command that has started. While that is silent for long, blanks before the JSON keep the connection from being
 * taken for dead; an error can then no longer have a status of its own, and is the body of a 200.
 *
 * @returns what is still to be sent
 */
export async function sendResult(
  reply: FastifyReply,
  clock: Clock,
  stream: WireStream,
  budget: MemoryBudget,
  limitBytes?: number,
): Promise<ExecResultJson | undefined> {
  const result = collectResult(stream, reply.raw, budget, limitBytes);
  if (await settlesWithin(clock, result, KEEPALIVE_MS)) return await result;
  using response = new ResponseStream(reply, clock, 200, HEADERS);
  response.keepAlive(BLANK);
  try {
    await response.write(BLANK);
    const ended = await result;
    response.end(JSON.stringify(ended));
  } catch (thrown) {
    const error = asPlatformError(thrown);
    noteFailure(reply.request.raw, error);
    stream.reset(error);
    response.end(JSON.stringify(errorBody(error, reply.request.id)));
  }
  return undefined;
}

/**
 * Reads the stream of a command that has started to its end, keeping `limitBytes` of each output, or less when `budget` has no more. What it
 * takes from that it gives back when the client has the answer, which is up to twice as large.
 */
async function collectResult(
  stream: WireStream,
  response: ServerResponse,
  budget: MemoryBudget,
  limitBytes: number = limits.outputLimitBytes.default,
): Promise<ExecResultJson> {
  const share = budget.share();
  response.once('close', () => share.giveBack());
  const windows = { 1: new OutputWindow(limitBytes, share), 2: new OutputWindow(limitBytes, share) };
  const status = await followExec(stream, {
    output: (channel, bytes) => {
      windows[channel].add(bytes);
      return undefined;
    },
    gap: ({ channel, from, to }) => {
      windows[channel].skip(Math.max(0, to - from));
      return undefined;
    },
  });
  return resultOf(status, windows[1], windows[2]);
}

function resultOf(status: ExecStatus, out: OutputWindow, err: OutputWindow): ExecResultJson {
  const [stdout, stderr] = [out.finish(), err.finish()];
  const [outText, errText] = [textOf(stdout.bytes), textOf(stderr.bytes)];
  return {
    status: { ...status, stdoutDropped: stdout.dropped, stderrDropped: stderr.dropped },
    stdout: outText.text,
    stderr: errText.text,
    ...(outText.base64 === undefined ? {} : { stdoutBase64: outText.base64 }),
    ...(errText.base64 === undefined ? {} : { stderrBase64: errText.base64 }),
  };
}
