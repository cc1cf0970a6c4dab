/** What a benchmark does inside a sandbox with `network/flow.c`. */
import type { Sandbox } from '@dsec/libdsec';
import { readFile } from 'node:fs/promises';

const FLOW = '/flow';
const RUN_MS = 120_000;

export interface Stream {
  readonly bytes: number;
  /** From the first answer until all was counted at the other end. */
  readonly ms: number;
}

/** When a flow that was open, and new ones, came to their end; ms since the epoch. */
export interface Cut {
  readonly lastMs: number;
  readonly refusedMs: number;
}

export async function bringFlow(sandbox: Sandbox, program: string): Promise<void> {
  await sandbox.files.write(FLOW, Uint8Array.from(await readFile(program)), { mode: 0o755 });
}

/** One TCP stream out of it for so long. */
export async function stream(sandbox: Sandbox, host: string, name: string, ms: number): Promise<Stream> {
  return (await flow(sandbox, 'stream', host, name, String(ms))) as Stream;
}

/** Connections, one after the other: from the call until the first answer of the other end, in ms. */
export async function connects(sandbox: Sandbox, host: string, name: string, n: number): Promise<readonly number[]> {
  return (await flow(sandbox, 'connect', host, name, String(n))) as readonly number[];
}

/** Questions for names `PREFIX0.good.test` and so on, in ms. */
export async function questions(sandbox: Sandbox, host: string, prefix: string, n: number): Promise<readonly number[]> {
  return (await flow(sandbox, 'resolve', host, prefix, String(n))) as readonly number[];
}

/** Opens a flow and goes on with new ones until both are cut; resolves when they have begun. */
export async function watch(sandbox: Sandbox, host: string): Promise<{ readonly cut: Promise<Cut> }> {
  const exec = sandbox.exec([FLOW, 'watch', host], { timeoutMs: RUN_MS });
  const decoder = new TextDecoder();
  const begun = Promise.withResolvers<undefined>();
  let said = '';
  const cut = (async () => {
    for await (const event of exec) {
      if (event.kind === 'gap') continue;
      said += decoder.decode(event.data, { stream: true });
      if (said.startsWith('begun\n')) begun.resolve(undefined);
    }
    const [first, last = ''] = said.trim().split('\n');
    if (first !== 'begun') throw new Error(`the flow did not begin: ${said}`);
    return JSON.parse(last) as Cut;
  })();
  cut.catch((error: unknown) => begun.reject(error));
  await begun.promise;
  return { cut };
}

async function flow(sandbox: Sandbox, ...words: readonly string[]): Promise<unknown> {
  const { exitCode, stdout, stderr } = await sandbox.exec([FLOW, ...words], { timeoutMs: RUN_MS });
  if (exitCode !== 0) throw new Error(`flow ${words.join(' ')} ended with ${exitCode}: ${stderr}`);
  return JSON.parse(stdout);
}
