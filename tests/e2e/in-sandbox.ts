import type { Exec, Sandbox } from '@dsec/libdsec';
import { waitFor } from './wait-for.ts';

/** Command lines of what runs in the sandbox. */
export async function commandsIn(sandbox: Sandbox): Promise<readonly string[]> {
  return (await sandbox.processes()).map(({ command }) => command);
}

/** Command lines that have this text. */
export async function running(sandbox: Sandbox, text: string): Promise<readonly string[]> {
  return (await commandsIn(sandbox)).filter((command) => command.includes(text));
}

/** Resolves when nothing that has this text in its command line runs any more. */
export async function gone(sandbox: Sandbox, text: string, timeoutMs = 5000): Promise<void> {
  await waitFor(`no process "${text}"`, async () => (await running(sandbox, text)).length === 0, timeoutMs);
}

/** Kills a command by its id; false when it has ended. */
export async function killExec(sandbox: Sandbox, execId: string): Promise<boolean> {
  const exec = sandbox.attach(execId);
  const isKilled = await exec.kill();
  // A handle that nobody reads holds its connection.
  await exec;
  return isKilled;
}

/** Resolves when the file is there, to its text. */
export function fileAppears(sandbox: Sandbox, path: string, timeoutMs = 10_000): Promise<string> {
  return waitFor(`file ${path}`, () => sandbox.files.readText(path), timeoutMs);
}

/** Resolves when what the command wrote has `text` in it. Takes the place of whoever iterates over the command. */
export async function wrote(exec: Exec, text: string): Promise<string> {
  let seen = '';
  const decoder = new TextDecoder();
  for await (const event of exec) {
    if (event.kind === 'gap') continue;
    seen += decoder.decode(event.data, { stream: true });
    if (seen.includes(text)) return seen;
  }
  throw new Error(`the command ended without "${text}", but with: ${seen}`);
}
