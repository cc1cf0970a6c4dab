/** What COPY and ADD take: from the context, from a stage, or from the Dockerfile itself. */
import { realpath } from 'node:fs/promises';
import { ByteString } from '@dsec/erofs';
import { openLayers } from '../open-layers.ts';
import { OwnerFault } from './accounts.ts';
import { CopyFault } from './copy-fault.ts';
import { choose, type ChosenSource, CopyCount, documentFile } from './copy-step.ts';
import { DiskTree } from './disk-tree.ts';
import { type DockerfilePlace, invalidDockerfile } from './dockerfile-error.ts';
import { Dockerignore } from './dockerignore.ts';
import { heredocStart } from './logical-lines.ts';
import type { DockerfileInstruction } from './parse-dockerfile.ts';
import type { SourceTree } from './source-tree.ts';
import { StageTree } from './stage-tree.ts';
import type { StageState } from './stage-state.ts';
import { PlaceFault } from './upper-tree.ts';

export type CopyInstruction = Extract<DockerfileInstruction, { readonly kind: 'copy' | 'add' }>;

/** Where sources are looked for. */
export interface CopyOrigin extends AsyncDisposable {
  /** undefined: there is no context, so that only documents can be copied */
  readonly tree: SourceTree | undefined;
  readonly ignore: Dockerignore;
}

const nothing = (): Promise<void> => Promise.resolve();

/** @param context the directory, if there is one, and the text of its `.dockerignore` */
export const contextOrigin = async (context: {
  readonly directory?: string | undefined;
  readonly dockerignore?: string | undefined;
}): Promise<CopyOrigin> => {
  const { directory, dockerignore = '' } = context;
  const tree = directory === undefined ? undefined : new DiskTree(await realpath(directory));
  return { tree, ignore: Dockerignore.parse(dockerignore), [Symbol.asyncDispose]: nothing };
};

/** @param layers topmost first */
export const layersOrigin = async (layersDirectory: string, layers: readonly string[]): Promise<CopyOrigin> => {
  const opened = await openLayers(layersDirectory, layers);
  return {
    tree: new StageTree(opened.tree),
    ignore: Dockerignore.none,
    [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose](),
  };
};

/**
 * All that an instruction copies, in its order.
 *
 * @throws PlatformError `dockerfile_invalid` for what is not there, leads out, or would have to be fetched
 */
export const sourcesOf = async (
  instruction: CopyInstruction,
  { tree, ignore }: CopyOrigin,
  state: StageState,
): Promise<ChosenSource[]> => {
  const found: ChosenSource[] = [];
  const count = new CopyCount();
  for (const word of instruction.sources) {
    const [start] = heredocStart(word);
    const document = instruction.heredocs.find(({ name }) => name === start?.name);
    if (document !== undefined) {
      const content = document.isExpanded ? state.expandDocument(instruction, document.content) : document.content;
      found.push({ name: ByteString.fromText(document.name), node: documentFile(content) });
      continue;
    }
    const pattern = state.expand(instruction, word);
    checkSource(instruction, pattern);
    const names = pattern.split('/').filter((name) => name !== '' && name !== '.');
    const before = found.length;
    const chosen = tree === undefined ? [] : await chosenFrom(instruction, { tree, ignore }, names, count);
    for (const each of chosen) found.push(each);
    if (found.length > before) continue;
    const path = pattern.slice(0, 1024);
    const where = instruction.from ?? 'the context (without what .dockerignore names)';
    throw invalidDockerfile(instruction, 'source_missing', `${where} has nothing at ${path}`, { path });
  }
  return found;
};

/** @throws PlatformError `dockerfile_invalid` */
export const parseMode = (place: DockerfilePlace, text: string): number => {
  if (/^[0-7]{3,4}$/.test(text)) return Number.parseInt(text, 8);
  throw invalidDockerfile(place, 'mode', `${text.slice(0, 64)} is no octal mode such as 0644`);
};

const URL_FORM = /^(?:https?|ftp|git|ssh):\/\/|^git@|\.git(?:#|$)/i;

const checkSource = (instruction: CopyInstruction, pattern: string): void => {
  if (instruction.kind === 'add' && URL_FORM.test(pattern)) {
    throw invalidDockerfile(
      instruction,
      'remote_source',
      `${pattern.slice(0, 256)} is not fetched: a build would depend on what a server has that day. Fetch it into the context, or in a RUN with a checksum`,
    );
  }
  if (!pattern.split('/').includes('..')) return;
  const path = pattern.slice(0, 1024);
  const where = instruction.from ?? 'the context';
  throw invalidDockerfile(instruction, 'outside_context', `${path} leads out of ${where}, or may: leave out the ..`, {
    path,
  });
};

/** What was named is called by its name, wherever a link of that name leads; what a pattern found, by the name that it has. */
const nameOf = (pattern: readonly string[], found: ByteString): ByteString => {
  const last = pattern.at(-1);
  return last === undefined || /[*?[\\]/.test(last) ? found : ByteString.fromText(last);
};

const chosenFrom = async (
  place: DockerfilePlace,
  { tree, ignore }: { readonly tree: SourceTree; readonly ignore: Dockerignore },
  names: readonly string[],
  count: CopyCount,
): Promise<ChosenSource[]> => {
  try {
    const chosen: ChosenSource[] = [];
    for (const found of await tree.find(names)) {
      const node = await choose(tree, found, ignore, count);
      const name = found.path.at(-1) ?? ByteString.fromText('');
      if (node !== undefined) chosen.push({ name: nameOf(names, name), node });
    }
    return chosen;
  } catch (error) {
    throw copyFault(place, error);
  }
};

/** What a person is told of why something cannot be copied. */
export const copyFault = (place: DockerfilePlace, error: unknown): unknown => {
  if (error instanceof PlaceFault) {
    const path = `/${error.path.map(ByteString.toText).join('/')}`.slice(0, 1024);
    return invalidDockerfile(place, 'destination', `${path} ${error.message}`, { path });
  }
  if (error instanceof OwnerFault) return invalidDockerfile(place, 'owner', error.message);
  if (error instanceof CopyFault) return invalidDockerfile(place, error.reason, error.message);
  return error;
};
