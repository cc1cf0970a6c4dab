import { ByteString, isStorableXattr, type Metadata } from '@dsec/erofs';
import { refusal } from './entry-refusal.ts';
import type { TarEntry } from './tar/tar-reader.ts';

/** As much as Linux lets one file have. */
const MAX_XATTR_BYTES = 64 * 1024 - 1;
/** Names of left-out attributes that are remembered for the report. */
const MAX_DROPPED_NAMES = 64;

/** What the entries of layers say of their files, less what has no place in a layer. */
export class EntryMetadata {
  /** Names of attributes that were left out, with how often. */
  readonly droppedXattrs = new Map<string, number>();

  /** @param layer what errors call it */
  of(entry: TarEntry, layer: string): Metadata {
    const xattrs = new Map<ByteString, Uint8Array>();
    let bytes = 0;
    for (const [name, value] of entry.xattrs) {
      if (!isKeptXattr(name)) {
        this.#countDropped(ByteString.toText(name));
        continue;
      }
      bytes += name.length + value.length;
      if (bytes > MAX_XATTR_BYTES) throw refusal('image_unsupported', entry, layer, 'xattr_size');
      xattrs.set(name, value);
    }
    return { mode: entry.mode, uid: entry.uid, gid: entry.gid, mtime: entry.mtime, xattrs };
  }

  #countDropped(name: string): void {
    const count = this.droppedXattrs.get(name);
    if (count !== undefined || this.droppedXattrs.size < MAX_DROPPED_NAMES) {
      this.droppedXattrs.set(name, (count ?? 0) + 1);
    }
  }
}

/**
 * File capabilities, ACLs and the user's own attributes are kept. `trusted.overlay.*` and `user.overlay.*` would steer the overlay mount that
 * the layer becomes part of, and labels of another host's security module mean nothing here.
 */
const isKeptXattr = (name: ByteString): boolean =>
  isStorableXattr(name) &&
  (name === 'security.capability' ||
    name.startsWith('system.posix_acl_') ||
    (name.startsWith('user.') && !name.startsWith('user.overlay.')));
