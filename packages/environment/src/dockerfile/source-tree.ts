import { ByteString } from '@dsec/erofs';
import type { LowerEntry, LowerNode } from '../lower-tree.ts';
import { CopyFault } from './copy-fault.ts';
import { isPattern, NamePattern, plainName } from './glob.ts';

/** As in Linux. */
const MAX_LINKS_FOLLOWED = 40;
/** What a pattern may fit. */
const MAX_MATCHES = 100_000;

/** Something of a tree, and where it really is: no link is left in the path. */
export interface FoundNode {
  readonly path: readonly ByteString[];
  readonly node: LowerNode;
}

/** What can be looked into name by name. */
export interface Lookups {
  lookup(path: readonly ByteString[]): Promise<LowerNode | undefined>;
}

/** A tree to copy from. Links in it are followed as in a file system of which it is the root: none leads out of it. */
export abstract class SourceTree implements Lookups {
  abstract lookup(path: readonly ByteString[]): Promise<LowerNode | undefined>;
  /** What is no directory has nothing in it. */
  abstract entries(path: readonly ByteString[]): AsyncIterable<LowerEntry>;

  /**
   * What fits a pattern, in the order of names: `*`, `?` and `[a-z]` stand for parts of one name. Links on the way and at the end are followed.
   *
   * @param pattern names without a slash in them
   * @throws CopyFault when more fits than can be copied
   */
  async find(pattern: readonly string[]): Promise<FoundNode[]> {
    const root = await this.lookup([]);
    let found: FoundNode[] = root === undefined ? [] : [{ path: [], node: root }];
    for (const part of pattern) {
      const next: FoundNode[] = [];
      for (const { path, node } of found) {
        if (node.kind !== 'directory') continue;
        for (const name of await this.#names(path, part)) {
          const reached = await follow(this, [...path, name]);
          if (reached?.node !== undefined) next.push({ path: reached.path, node: reached.node });
          if (next.length > MAX_MATCHES) {
            throw new CopyFault('too_many_entries', `a pattern fits more than ${MAX_MATCHES} files and directories`);
          }
        }
      }
      found = next;
    }
    return found;
  }

  async #names(path: readonly ByteString[], part: string): Promise<ByteString[]> {
    if (!isPattern(part)) return [ByteString.fromText(plainName(part))];
    const pattern = new NamePattern(part);
    const names: ByteString[] = [];
    for await (const { name } of this.entries(path)) if (pattern.matches(ByteString.toText(name))) names.push(name);
    return names.sort(ByteString.compare);
  }
}

/** Where a path leads, whether or not something is there; undefined where something in the way is no directory, or links lead round and round. */
export const follow = async (
  tree: Lookups,
  path: readonly ByteString[],
): Promise<{ readonly path: readonly ByteString[]; readonly node: LowerNode | undefined } | undefined> => {
  const real: ByteString[] = [];
  const todo = path.toReversed();
  let node: LowerNode | undefined = await tree.lookup([]);
  let links = 0;
  for (let name = todo.pop(); name !== undefined; name = todo.pop()) {
    if (name === '' || name === '.') continue;
    if (name === '..') {
      real.pop();
      node = await tree.lookup(real);
      continue;
    }
    if (node !== undefined && node.kind !== 'directory') return undefined;
    const child: LowerNode | undefined = node === undefined ? undefined : await tree.lookup([...real, name]);
    if (child?.kind !== 'symlink') {
      real.push(name);
      node = child;
      continue;
    }
    links++;
    if (links > MAX_LINKS_FOLLOWED) return undefined;
    if (child.target.startsWith('/')) real.length = 0;
    todo.push(...ByteString.split(child.target, '/').reverse());
    node = await tree.lookup(real);
  }
  return { path: real, node };
};
