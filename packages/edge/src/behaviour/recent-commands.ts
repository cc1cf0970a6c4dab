/** The newest commands of all sandboxes, as their callers gave them: aether knows an exec by its id and its process alone. */
import { limits } from '@dsec/contract';
import { MAX_COMMAND_CHARS, MAX_COMMANDS } from './bounds.ts';
import { cutArguments } from './told.ts';

interface Command {
  readonly argv: readonly string[];
  /** Grows with every command. */
  readonly order: number;
}

export class RecentCommands {
  readonly #byKey = new Map<string, Command>();
  readonly #limit: number;
  #order = 0;

  constructor(limit = MAX_COMMANDS) {
    this.#limit = limit;
  }

  get size(): number {
    return this.#byKey.size;
  }

  /** What an exec.start asks for; params that aether will refuse are nothing. */
  note(
    sandboxId: string,
    { execId, argv, shell }: { readonly execId?: unknown; readonly argv?: unknown; readonly shell?: unknown },
  ): void {
    if (typeof execId !== 'string') return;
    const key = keyOf(sandboxId, execId);
    // The same command again attaches to the first.
    if (this.#byKey.has(key)) return;
    this.#byKey.set(key, { argv: cutArguments(textsOf(argv, shell), MAX_COMMAND_CHARS), order: this.#order++ });
    if (this.#byKey.size <= this.#limit) return;
    const [oldest] = this.#byKey.keys();
    if (oldest !== undefined) this.#byKey.delete(oldest);
  }

  get(sandboxId: string, execId: string): readonly string[] | undefined {
    return this.#byKey.get(keyOf(sandboxId, execId))?.argv;
  }

  /** Earlier commands have smaller numbers; one that is not known was before them all. */
  orderOf(sandboxId: string, execId: string): number {
    return this.#byKey.get(keyOf(sandboxId, execId))?.order ?? -1;
  }
}

const keyOf = (sandboxId: string, execId: string): string => `${sandboxId}/${execId}`;

function textsOf(argv: unknown, shell: unknown): readonly string[] {
  // Of the thousands that there may be, only the first are kept.
  if (Array.isArray(argv))
    return argv.slice(0, limits.behaviourArgv).filter((argument) => typeof argument === 'string');
  const script = typeof shell === 'object' && shell !== null && 'script' in shell ? shell.script : undefined;
  return typeof script === 'string' ? [script] : [];
}
