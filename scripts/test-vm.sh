#!/bin/sh
# Runs suites in a guest: Debian's newest kernel, with AppArmor and pure cgroup v2, in QEMU, which emulates the processor: nothing
# of the host is needed but root and its packages. Every suite that was asked for runs and passes, or this fails.
#
#   scripts/test-vm.sh [SUITE...]     those of scripts/vm/suites; without any, all of them
#
# DSEC_VM_ARCHIVE    a Debian archive, where no apt source of this machine is one
# DSEC_VM_KVM        set: by /dev/kvm, where that is one on which Linux boots
# DSEC_VM_MEMORY     MiB of the guest (3072)
# DSEC_VM_MINUTES    after so long it is ended, and this fails (25)
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)

say() { echo "test-vm: $*" >&2; }

[ "$(uname -m)" = x86_64 ] || { say "the guest is one of x86-64"; exit 1; }
[ "$(id -u)" -eq 0 ] || { say "needs root, to make the guest's root filesystem"; exit 1; }

# One run at a time: they share a cache and the processors.
mkdir -p .cache/vm
exec 9>.cache/vm/lock
flock 9

missing=""
for pair in qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mke2fs:e2fsprogs mkfs.erofs:erofs-utils cc:gcc busybox:busybox-static; do
  command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
if [ -n "$missing" ]; then
  say "installing Debian packages:$missing"
  apt-get -qq update
  # shellcheck disable=SC2086 # a list of package names
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
fi

# The guest is made anew when how it is made has changed; to have a newer kernel, remove .cache/vm.
made=.cache/vm/$(sha256sum scripts/vm/root.sh | cut -c 1-16)
[ -e "$made/root.img" ] || scripts/vm/root.sh "$made"

work=$(mktemp -d .cache/vm/run.XXXXXX)
# Without the name, QEMU would outlive a run that is cut short.
trap 'kill "$guest" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
guest=""

say "building the suites"
scripts/vm/payload.sh "$work" "$@"
mke2fs -q -t ext4 -O '^has_journal' -d "$work/payload" "$work/payload.img" 6G

accelerator="tcg,thread=multi"
processor=max
if [ -n "${DSEC_VM_KVM:-}" ]; then accelerator=kvm processor=host; fi
say "booting Linux $(cat "$made/release") ($accelerator)"
begun=$(date +%s)
# The kernel has NVMe built in, and so needs no initramfs; the name of a second disk of that kind would be up to chance.
# QEMU opens both ends of both.
mkfifo "$work/results.in" "$work/results.out"
timeout -k 10 $((${DSEC_VM_MINUTES:-25} * 60)) qemu-system-x86_64 \
  -M q35 -accel "$accelerator" -cpu "$processor" -smp 2 -m "${DSEC_VM_MEMORY:-3072}" \
  -nodefaults -display none -monitor none -no-reboot \
  -kernel "$made/vmlinuz" \
  -append "console=ttyS0 quiet root=/dev/nvme0n1 rootwait rw panic=-1 lsm=landlock,lockdown,yama,apparmor,bpf init=/bin/sh -- -c \"mount -t devtmpfs dev /dev; modprobe virtio_blk; until [ -b /dev/vda ]; do sleep 0.1; done; mount -t ext4 /dev/vda /mnt && exec sh /mnt/guest-init\"" \
  -drive "file=$made/root.img,if=none,id=root,format=raw,snapshot=on,cache=unsafe" \
  -drive "file=$work/payload.img,if=none,id=payload,format=raw,cache=unsafe" \
  -device nvme,drive=root,serial=root -device virtio-blk-pci,drive=payload \
  -chardev "file,id=console,path=.cache/vm/console.txt" -serial chardev:console \
  -device virtio-serial-pci -chardev "pipe,id=results,path=$work/results" -device virtserialport,chardev=results,name=dsec.results &
guest=$!
tee .cache/vm/results.txt <"$work/results.out"
wait "$guest" || say "QEMU ended with $?"
guest=""
say "$(($(date +%s) - begun)) s in the guest; its console is in .cache/vm/console.txt"
scripts/vm/summary.sh "$work/payload/suites" .cache/vm/results.txt
