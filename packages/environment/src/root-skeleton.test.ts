import { ByteString, EMPTY_FILE, newDirectory } from '@dsec/erofs';
import { describe, expect, it } from 'vitest';
import { LayerTree } from './layer-tree.ts';
import { unknownLower } from './lower-tree.ts';
import { isOpaque, isWhiteout } from './overlay-marks.ts';
import { completeRoot, completeUpperRoot } from './root-skeleton.ts';
import { streamOf, type TarItem, tarOf } from './tar/tar.fixture.ts';

const text = ByteString.fromText;

const upper = async (...items: TarItem[]) => {
  const tree = new LayerTree({ above: unknownLower });
  const store = (sizeBytes: number) => Promise.resolve({ ...EMPTY_FILE, sizeBytes });
  await tree.apply(streamOf(tarOf(...items)), { name: 'sha256:layer', store });
  return tree.finish();
};

describe('a layer above a complete root file system', () => {
  it('adds nothing where it leaves the root complete', async () => {
    const root = await upper({ name: 'usr/bin/tool', content: 'x' });
    completeUpperRoot(root);
    expect([...root.children.keys()]).toEqual(['usr']);
  });

  it('has an empty directory where it would remove one that sandboxes need', async () => {
    const root = await upper({ name: '.wh.tmp' }, { name: '.wh.etc' }, { name: '.wh.opt' });
    completeUpperRoot(root);
    const tmp = root.children.get(text('tmp'));
    expect(tmp?.kind === 'directory' && isOpaque(tmp.metadata) && tmp.metadata.mode).toBe(0o1777);
    const etc = root.children.get(text('etc'));
    expect(etc?.kind === 'directory' && [...etc.children.keys()]).toEqual(['hosts', 'hostname', 'resolv.conf']);
    const opt = root.children.get(text('opt'));
    expect(opt !== undefined && isWhiteout(opt)).toBe(true);
  });

  it('does not say what only a sandbox can say', async () => {
    const root = await upper({ name: 'etc/hosts', content: '10.0.0.1 builder' }, { name: 'etc/.wh.resolv.conf' });
    completeUpperRoot(root);
    const whole = newDirectory();
    completeRoot(whole);
    const filesOf = (from: typeof whole) => {
      const etc = from.children.get(text('etc'));
      return etc?.kind === 'directory' ? new Map(etc.children) : undefined;
    };
    expect(filesOf(root)).toEqual(filesOf(whole));
  });
});
