import { PlatformError } from '@dsec/contract';
import { crc32c } from './crc32c.ts';
import {
  BLOCK_BITS,
  BLOCK_SIZE,
  DEVICE_SLOT_SIZE,
  DEVICE_TAG_SIZE,
  FEATURE_COMPAT_MTIME,
  FEATURE_COMPAT_SB_CHECKSUM,
  FEATURE_INCOMPAT_DEVICE_TABLE,
  MAX_DEVICES,
  SUPER_MAGIC,
  SUPER_OFFSET,
  SUPER_SIZE,
} from './format.ts';

/** A further device that an image names. */
export interface ImageDevice {
  /** What the device is: here the digest of the data, in hex. */
  readonly tag: string;
  readonly blocks: number;
}

/** Where it fits, the table lies behind the superblock in the first block, so that the checksum covers it; else in the blocks behind that. */
const TABLE_OFFSET = SUPER_OFFSET + SUPER_SIZE;

export interface Superblock {
  readonly featureCompat: number;
  readonly featureIncompat: number;
  readonly blockBits: number;
  readonly rootNid: number;
  readonly inodeCount: number;
  /** Seconds since 1970: the times of compact inodes. */
  readonly buildTime: number;
  readonly buildTimeNanoseconds: number;
  readonly blocks: number;
  readonly metaBlock: number;
  readonly xattrBlock: number;
  readonly uuid: Uint8Array;
  readonly extraDevices: number;
  /** Where the device table begins, in bytes. */
  readonly deviceTableOffset: number;
}

/** @throws PlatformError `image_unsupported` for more devices than EROFS can count */
export const encodeDeviceTable = (devices: readonly ImageDevice[]): Buffer => {
  if (devices.length > MAX_DEVICES) {
    throw new PlatformError('image_unsupported', 'The image has more devices than EROFS can count', {
      details: { reason: 'devices', limit: MAX_DEVICES },
    });
  }
  const table = Buffer.alloc(devices.length * DEVICE_SLOT_SIZE);
  for (const [index, { tag, blocks }] of devices.entries()) {
    table.write(tag, index * DEVICE_SLOT_SIZE, DEVICE_TAG_SIZE, 'latin1');
    table.writeUInt32LE(blocks, index * DEVICE_SLOT_SIZE + DEVICE_TAG_SIZE);
  }
  return table;
};

export const fitsInFirstBlock = (table: Buffer): boolean => TABLE_OFFSET + table.length <= BLOCK_SIZE;

/** Encodes the whole first block; the checksum covers everything from the superblock to the end of it. */
export const encodeFirstBlock = (
  superblock: Pick<Superblock, 'featureIncompat' | 'rootNid' | 'inodeCount' | 'blocks' | 'metaBlock' | 'uuid'>,
  devices: { readonly table: Buffer; readonly isApart: boolean },
): Buffer => {
  const block = Buffer.alloc(BLOCK_SIZE);
  const at = SUPER_OFFSET;
  block.writeUInt32LE(SUPER_MAGIC, at);
  block.writeUInt32LE(FEATURE_COMPAT_SB_CHECKSUM | FEATURE_COMPAT_MTIME, at + 8);
  block.writeUInt8(BLOCK_BITS, at + 12);
  block.writeUInt16LE(superblock.rootNid, at + 14);
  block.writeBigUInt64LE(BigInt(superblock.inodeCount), at + 16);
  block.writeUInt32LE(superblock.blocks, at + 36);
  block.writeUInt32LE(superblock.metaBlock, at + 40);
  block.set(superblock.uuid, at + 48);
  block.writeUInt32LE(superblock.featureIncompat, at + 80);
  const { table, isApart } = devices;
  if (table.length > 0) {
    block.writeUInt16LE(table.length / DEVICE_SLOT_SIZE, at + 86);
    // Its place is counted in slots.
    block.writeUInt16LE((isApart ? BLOCK_SIZE : TABLE_OFFSET) / DEVICE_SLOT_SIZE, at + 88);
    if (!isApart) block.set(table, TABLE_OFFSET);
  }
  block.writeUInt32LE(crc32c(block.subarray(at)), at + 4);
  return block;
};

export type SuperblockFault = 'truncated' | 'magic' | 'checksum';

/** Decodes the first block of an image; what is wrong with it comes back as a word. */
export const decodeFirstBlock = (block: Buffer): Superblock | SuperblockFault => {
  const at = SUPER_OFFSET;
  if (block.length < at + SUPER_SIZE) return 'truncated';
  if (block.readUInt32LE(at) !== SUPER_MAGIC) return 'magic';
  const featureCompat = block.readUInt32LE(at + 8);
  if (featureCompat & FEATURE_COMPAT_SB_CHECKSUM) {
    const copy = Buffer.from(block.subarray(at));
    copy.writeUInt32LE(0, 4);
    if (crc32c(copy) !== block.readUInt32LE(at + 4)) return 'checksum';
  }
  const featureIncompat = block.readUInt32LE(at + 80);
  return {
    featureCompat,
    featureIncompat,
    blockBits: block.readUInt8(at + 12),
    rootNid: block.readUInt16LE(at + 14),
    inodeCount: Number(block.readBigUInt64LE(at + 16)),
    buildTime: Number(block.readBigInt64LE(at + 24)),
    buildTimeNanoseconds: block.readUInt32LE(at + 32),
    blocks: block.readUInt32LE(at + 36),
    metaBlock: block.readUInt32LE(at + 40),
    xattrBlock: block.readUInt32LE(at + 44),
    uuid: block.subarray(at + 48, at + 64),
    extraDevices: featureIncompat & FEATURE_INCOMPAT_DEVICE_TABLE ? block.readUInt16LE(at + 86) : 0,
    deviceTableOffset: block.readUInt16LE(at + 88) * DEVICE_SLOT_SIZE,
  };
};

/** Decodes one entry of the device table. */
export const decodeDeviceSlot = (slot: Buffer): ImageDevice & { readonly mappedBlock: number } => {
  const tag = slot.subarray(0, DEVICE_TAG_SIZE);
  const end = tag.indexOf(0);
  return {
    tag: tag.toString('latin1', 0, end === -1 ? DEVICE_TAG_SIZE : end),
    blocks: slot.readUInt32LE(DEVICE_TAG_SIZE),
    mappedBlock: slot.readUInt32LE(DEVICE_TAG_SIZE + 4),
  };
};
