import { spinner } from '@clack/prompts';
import type { Context } from '../context.ts';
import { say } from '../context.ts';
import { duration } from '../table.ts';

/** Shows what is being done: a spinner on a terminal, a line a step elsewhere. */
export interface Progress {
  /** A new step; the one before is done. */
  step(text: string): void;
  /** More about the present step, when there is a place for it. */
  detail(text: string): void;
  done(text: string): void;
  failed(text: string): void;
}

/** Details are written at most this often. */
const DETAIL_MS = 100;

export function startProgress(context: Context): Progress {
  return context.stderr.isTTY ? spinning(context) : plain(context);
}

function spinning(context: Context): Progress {
  const { clock, stderr } = context;
  const shown = spinner({ output: stderr, indicator: 'timer' });
  let current = '';
  let shownMs = -Infinity;
  return {
    step(text) {
      if (current === '') shown.start(text);
      else shown.message(text);
      current = text;
    },
    detail(text) {
      if (clock.monotonicMs() - shownMs < DETAIL_MS) return;
      shownMs = clock.monotonicMs();
      shown.message(`${current}: ${text}`);
    },
    done(text) {
      if (current === '') say(context, text);
      else shown.stop(text);
      current = '';
    },
    failed(text) {
      if (current === '') say(context, text);
      else shown.error(text);
      current = '';
    },
  };
}

function plain(context: Context): Progress {
  const startedMs = context.clock.monotonicMs();
  const line = (text: string): void => say(context, `[${duration(context.clock.monotonicMs() - startedMs)}] ${text}`);
  return { step: line, detail: () => undefined, done: line, failed: line };
}
