/** The files of a published layer. */
export const ROOTFS_FILE = 'rootfs.erofs';
/** Only of a layer whose data are apart, and that has any. */
export const DATA_FILE = 'data';
/** Only of a layer whose data may be in the blob store alone. */
export const CHUNKS_FILE = 'chunks';
export const RECORD_FILE = 'layer.json';
