/**
 * Makes layers of archives of changes. A process of its own: what comes out of a sandbox is parsed, hashed and stored beside the edge and not in it,
 * and the layers that it makes become those of the node when the publisher has checked them.
 */
import { packerParams, PlatformError } from '@dsec/contract';
import { runPack, type BuildContext, type BuildProgress } from '@dsec/environment';
import { compileSchema } from '@dsec/kit';
import type { JsonObject, WireServerStream } from '@dsec/native-link';
import type { PackAnswer, PackParams } from './pack-answer.ts';

const parser = compileSchema(packerParams.pack);
/** Progress is told no more often. */
const PROGRESS_MS = 200;

export class Packer {
  readonly #context: Omit<BuildContext, 'signal' | 'onProgress'>;

  constructor(context: Omit<BuildContext, 'signal' | 'onProgress'>) {
    this.#context = context;
  }

  /** Answers one stream: `pack`, DATA of the archive, END; MESSAGE of progress, ok {@link PackAnswer}. */
  async handle(method: string, params: JsonObject, stream: WireServerStream): Promise<PackAnswer> {
    if (method !== 'pack')
      throw new PlatformError('unknown_method', 'a packer has no such method', { details: { method } });
    // The schema has checked it; its derived type has lost the names of literals.
    const { request, config, architecture } = parser.parse(params) as PackParams;
    const context = { ...this.#context, signal: stream.signal, onProgress: this.#teller(stream) };
    return await runPack(context, request, { changes: archiveOf(stream), config, architecture });
  }

  #teller(stream: WireServerStream): (progress: BuildProgress) => void {
    const { clock } = this.#context;
    let last = { step: '', atMs: Number.NEGATIVE_INFINITY };
    return ({ step, doneBytes }) => {
      const nowMs = clock.monotonicMs();
      if (step === last.step && nowMs - last.atMs < PROGRESS_MS) return;
      last = { step, atMs: nowMs };
      // One that nobody takes is no reason to stop: the end of the stream shows otherwise.
      stream.message({ step, ...(doneBytes === undefined ? {} : { doneBytes }) }).catch(() => undefined);
    };
  }
}

/** What the edge sends, to its end. */
async function* archiveOf(stream: WireServerStream): AsyncGenerator<Buffer> {
  for await (const item of stream) {
    if (item.type === 'end') return;
    if (item.type === 'data') yield item.bytes;
    else throw new PlatformError('protocol_error', 'the archive of a pack is no message');
  }
  throw new PlatformError('cancelled', 'the archive of the pack broke off');
}
