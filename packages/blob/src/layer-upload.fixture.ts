/** A program that uploads one layer into a directory, to be killed: root, metadata and data are its arguments; it prints the digest. */
import { SystemClock, SystemRandom } from '@dsec/kit';
import { DirectoryStore } from './directory-store.ts';
import { CHUNK_BYTES } from './layer-format.ts';
import { LayerUploader } from './layer-uploader.ts';

const [, , root = '', metadataPath = '', dataPath = ''] = process.argv;
const store = new DirectoryStore({ root, random: new SystemRandom() });
const uploader = new LayerUploader({ store, clock: new SystemClock(), packBytes: 4 * CHUNK_BYTES });
const { layer } = await uploader.upload({ metadataPath, dataPath, record: Buffer.from('{}') });
process.stdout.write(layer);
