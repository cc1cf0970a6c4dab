import type { Readable } from 'node:stream';

const TAIL_BYTES = 8192;
const MAX_LINE_BYTES = 4096;
/** Lines of mmdebstrap that tell a person nothing: paths of its own, and hooks, which name themselves. */
const NOT_SHOWN = /tempdir|^running (?:--|special)|^success in|^done$/;

/** Reads what a build says: its own steps (lines that begin with `I: `) go on as progress, the end of all is kept for the error. */
export class BuildOutput {
  /** Resolves when the program has said its last. */
  readonly ended: Promise<void>;
  #tail: Buffer = Buffer.alloc(0);

  constructor(stream: Readable, onStep: (step: string) => void) {
    let line = '';
    this.ended = new Promise((resolve) => {
      stream.once('close', resolve);
      stream.once('error', () => resolve());
    });
    stream.on('data', (chunk: Buffer) => {
      this.#tail = Buffer.concat([this.#tail, chunk]).subarray(-TAIL_BYTES);
      const lines = (line + chunk.toString('latin1')).split(/[\r\n]+/);
      line = (lines.pop() ?? '').slice(-MAX_LINE_BYTES);
      for (const each of lines) {
        const step = /^I: (.*?)(?:\.\.\.)?$/.exec(each)?.[1];
        if (step !== undefined && !NOT_SHOWN.test(step)) onStep(Buffer.from(step, 'latin1').toString('utf8'));
      }
    });
  }

  get tail(): string {
    return this.#tail.toString('utf8');
  }
}
