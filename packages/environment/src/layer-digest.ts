import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';

/**
 * The name of a layer whose data are apart: of both, so that neither can be another.
 *
 * @param metadataHex SHA-256 of `rootfs.erofs`
 * @param dataHex SHA-256 of the digests of all chunks, one behind the other
 */
export const layerDigest = (metadataHex: string, dataHex: string): string =>
  `sha256:${createHash('sha256').update(`dsec-layer 2\n${metadataHex}\n${dataHex}\n`).digest('hex')}`;

export const fileSha256 = async (path: string): Promise<string> => {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { highWaterMark: 1024 * 1024 })) hash.update(chunk as Buffer);
  return hash.digest('hex');
};
