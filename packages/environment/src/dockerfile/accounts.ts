/** Who a name stands for in a file system (`passwd(5)`, `group(5)`). */
import { ByteString, type Metadata } from '@dsec/erofs';
import { follow, type Lookups } from './source-tree.ts';

export type Owner = Pick<Metadata, 'uid' | 'gid'>;

const MAX_FILE_BYTES = 4 * 1024 * 1024;
/** Sandboxes have 64 Ki ids. */
const MAX_ID = 65_535;

/** Why there is no such owner. */
export class OwnerFault extends Error {
  override readonly name = 'OwnerFault';
}

/**
 * The owner that `--chown` names: `user`, `user:group`, each a name or a number. Without a group it is that of the user's account, or has the
 * user's number.
 *
 * @throws OwnerFault
 */
export const ownerOf = async (tree: Lookups, text: string): Promise<Owner> => {
  const [user = '', group, ...rest] = text.split(':');
  if (user === '' || group === '' || rest.length > 0) throw new OwnerFault(`${text} is not of the form user:group`);
  const account = await userOf(tree, user);
  return { uid: account.uid, gid: group === undefined ? account.gid : await groupOf(tree, group) };
};

const userOf = async (tree: Lookups, user: string): Promise<Owner> => {
  if (/^\d+$/.test(user)) return { uid: checkedId(user), gid: checkedId(user) };
  const [, , uid = '', gid = ''] = await entryOf(tree, 'passwd', user);
  return { uid: checkedId(uid), gid: checkedId(gid) };
};

const groupOf = async (tree: Lookups, group: string): Promise<number> => {
  if (/^\d+$/.test(group)) return checkedId(group);
  const [, , gid = ''] = await entryOf(tree, 'group', group);
  return checkedId(gid);
};

const entryOf = async (tree: Lookups, file: 'passwd' | 'group', name: string): Promise<readonly string[]> => {
  const found = await follow(tree, [ByteString.fromText('etc'), ByteString.fromText(file)]);
  if (found?.node?.kind === 'file' && found.node.sizeBytes <= MAX_FILE_BYTES) {
    const parts: Uint8Array[] = [];
    for await (const part of found.node.bytes()) parts.push(part);
    for (const line of Buffer.concat(parts).toString('utf8').split('\n')) {
      const fields = line.split(':');
      if (fields[0] === name) return fields;
    }
  }
  throw new OwnerFault(`/etc/${file} of the stage has no ${name}`);
};

const checkedId = (text: string): number => {
  const id = /^\d{1,10}$/.test(text) ? Number(text) : Number.NaN;
  if (id <= MAX_ID) return id;
  throw new OwnerFault(`${text} is no id of a sandbox, which has ${MAX_ID + 1} of them`);
};
