import { access, readFile } from 'node:fs/promises';
import { release } from 'node:os';
import { gunzipSync } from 'node:zlib';
import type { Finding } from './finding.ts';

/** What the kernel must be configured with for sandboxes to have a network, and what for. */
const OPTIONS: Readonly<Record<string, string>> = {
  BPF_SYSCALL: 'programs in the kernel decide about every packet',
  NET_SCH_INGRESS: 'they are attached to the devices of sandboxes',
  NET_CLS_BPF: 'they are attached to the devices of sandboxes',
  VETH: 'a sandbox has a device of its own',
  NF_TABLES: 'the packet filter refuses what no program has let through',
  NFT_CT: 'answers of flows are told from what begins one',
  NFT_CONNLIMIT: 'flows of a sandbox are counted',
  NFT_MASQ: 'sandboxes go by the address of the host',
  NFT_REJECT: 'refusals are heard at once',
  NFT_TPROXY: 'connections to addresses that are allowed by name go through the gate',
};
const MAX_CONFIG_BYTES = 4 * 1024 * 1024;

/** What policies that allow something need of the host; without it `dsec up` starts a server whose sandboxes reach nothing. */
export async function examineNetwork(): Promise<readonly Finding[]> {
  const [config, filesystems, forwarding, lockdown] = await Promise.all([
    kernelConfig(),
    readFile('/proc/filesystems', 'utf8').catch(() => ''),
    readFile('/proc/sys/net/ipv4/ip_forward', 'utf8').catch(() => undefined),
    readFile('/sys/kernel/security/lockdown', 'utf8').catch(() => ''),
  ]);
  const hasTypes = await access('/sys/kernel/btf/vmlinux').then(
    () => true,
    () => false,
  );
  const isForwarding = forwarding?.trim() === '1';
  return [
    kernelFinding(config),
    {
      name: 'network: bpffs',
      isPresent: /\tbpf$/m.test(filesystems),
      isNeeded: false,
      detail: '',
      why: 'what a policy allows stays in force while daemons are replaced',
      fix: 'use a kernel with CONFIG_BPF_SYSCALL',
    },
    {
      name: 'network: ip_forward',
      isPresent: forwarding !== undefined,
      isNeeded: false,
      detail: isForwarding ? 'on' : 'off: `dsec up` turns it on, for sandboxes alone, until `dsec down`',
      why: 'packets of sandboxes are forwarded',
      fix: 'use a kernel with CONFIG_INET',
    },
    processesFinding({ filesystems, lockdown, hasTypes }),
  ];
}

/** What is needed to tell which process has caused what was denied; `hasTypes`: the kernel describes its own types. */
export function processesFinding(kernel: {
  readonly filesystems: string;
  readonly lockdown: string;
  readonly hasTypes: boolean;
}): Finding {
  const lacks = [
    ...(/\tcgroup2$/m.test(kernel.filesystems) ? [] : ['no cgroups v2 (CONFIG_CGROUPS)']),
    ...(kernel.hasTypes ? [] : ['no types of its own (CONFIG_DEBUG_INFO_BTF)']),
    ...(kernel.lockdown.includes('[confidentiality]') ? ['lockdown=confidentiality'] : []),
  ];
  return {
    name: 'network: processes',
    isPresent: lacks.length === 0,
    isNeeded: false,
    detail: lacks.join('; '),
    why: 'events of denied connections and names say which process it was; without it they come all the same',
    fix: 'use a kernel that has them (those of Debian and Ubuntu do), with lockdown=integrity at most',
  };
}

/** What the configuration of a kernel says; undefined: it is nowhere to be read. */
export function kernelFinding(config: string | undefined): Finding {
  const missing =
    config === undefined
      ? []
      : Object.keys(OPTIONS).filter((name) => !new RegExp(`^CONFIG_${name}=[ym]$`, 'm').test(config));
  return {
    name: 'network: kernel',
    isPresent: missing.length === 0,
    isNeeded: false,
    detail:
      config === undefined
        ? 'its configuration is not to be read; `dsec up` tries it'
        : missing.map((name) => `CONFIG_${name}`).join(', '),
    why:
      missing.length === 0
        ? 'programs in the kernel and the packet filter keep sandboxes to their policies'
        : [...new Set(missing.map((name) => OPTIONS[name]))].join('; '),
    fix: 'use a kernel that has them (those of Debian and Ubuntu do); until then `dsec up` says that sandboxes get no network',
  };
}

async function kernelConfig(): Promise<string | undefined> {
  const packed = await readFile('/proc/config.gz').catch(() => undefined);
  if (packed !== undefined) return gunzipSync(packed, { maxOutputLength: MAX_CONFIG_BYTES }).toString();
  return await readFile(`/boot/config-${release()}`, 'utf8').catch(() => undefined);
}
