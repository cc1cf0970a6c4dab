#!/bin/sh
# PID 1 of the test guest, read from the payload, which is mounted at /mnt, as /dev is too: mounts what a host has, pure cgroup v2 and AppArmor among it, runs the
# suites of the payload one after another, and switches off. What it says goes to the host by a virtio port; lines that begin with `=== ` are for
# scripts/test-vm.sh.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb RUST_BACKTRACE=1 DSEC_REQUIRE=root,btrfs,apparmor

off() {
  sync
  echo o >/proc/sysrq-trigger
  # The kernel switches off from a queue of its own.
  while :; do sleep 1; done
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t securityfs securityfs /sys/kernel/security
for link in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
  ln -sfn "${link#*:}" "/dev/${link%%:*}"
done

port=
for named in /sys/class/virtio-ports/*/name; do
  [ "$(cat "$named" 2>/dev/null)" = dsec.results ] && port=/dev/$(basename "$(dirname "$named")")
done
if [ -z "$port" ]; then
  echo "guest: no port for results" >/dev/console
  off
fi
exec >"$port" 2>&1 </dev/null

for module in loop btrfs erofs overlay veth nf_tables sch_ingress cls_bpf; do
  modprobe "$module" || echo "guest: no module $module"
done
ip link set lo up
hostname guest

checkout=$(cat /mnt/checkout)
# Test programs know their files by the paths that they were built with.
mkdir -p "$checkout"
mount --bind /mnt/tree "$checkout"

echo "guest: Linux $(uname -r), $(nproc) processors, security modules $(cat /sys/kernel/security/lsm)"
echo "guest: cgroup v2 with $(cat /sys/fs/cgroup/cgroup.controllers)"
while read -r name limit directory command; do
  echo "=== suite $name"
  begun=$(cut -d. -f1 /proc/uptime)
  # shellcheck disable=SC2086 # a command and its arguments
  (cd "$directory" && exec timeout -k 10 "$limit" $command)
  code=$?
  echo "=== exit $name $code $(($(cut -d. -f1 /proc/uptime) - begun))"
done </mnt/suites
echo "=== kernel"
dmesg | grep -E 'BUG:|WARNING:|Oops:' | head -n 20
echo "=== end"
off
