import { expect, test } from 'vitest';
import { kernelFinding, processesFinding } from './examine-network.ts';

const ALL =
  'BPF_SYSCALL NET_SCH_INGRESS NET_CLS_BPF VETH NF_TABLES NFT_CT NFT_CONNLIMIT NFT_MASQ NFT_REJECT NFT_TPROXY'.split(
    ' ',
  );
const configOf = (names: readonly string[]): string => names.map((name) => `CONFIG_${name}=m\n`).join('');

test('names what a kernel lacks', () => {
  const all = kernelFinding(configOf(ALL));
  expect(all).toMatchObject({ isPresent: true, detail: '' });
  expect(all.why).toContain('policies');
  const config = configOf(ALL.filter((name) => name !== 'NFT_TPROXY'));
  expect(kernelFinding(`${config}# CONFIG_NFT_TPROXY is not set\nCONFIG_NFT_TPROXY_X=y\n`)).toMatchObject({
    isPresent: false,
    isNeeded: false,
    detail: 'CONFIG_NFT_TPROXY',
    why: 'connections to addresses that are allowed by name go through the gate',
  });
});

test('a kernel whose configuration is nowhere is not called unfit', () => {
  expect(kernelFinding(undefined).isPresent).toBe(true);
});

test('says what keeps the process of a denial from being known', () => {
  const filesystems = 'nodev\tcgroup2\nnodev\tbpf\n';
  const fit = { filesystems, lockdown: 'none [integrity] confidentiality\n', hasTypes: true };
  expect(processesFinding(fit)).toMatchObject({ isPresent: true, isNeeded: false, detail: '' });
  const unfit = { filesystems: 'nodev\tcgroup\n', lockdown: 'none integrity [confidentiality]\n', hasTypes: false };
  const { isPresent, detail } = processesFinding(unfit);
  expect(isPresent).toBe(false);
  for (const word of ['cgroups v2', 'CONFIG_DEBUG_INFO_BTF', 'confidentiality']) expect(detail).toContain(word);
});
