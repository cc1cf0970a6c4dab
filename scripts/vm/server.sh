#!/bin/sh
# A whole server in the guest, by the commands that docs/security.md has for worker VMs. Runs inside, from the checkout; every step must do as it says.
set -eu
data=/var/lib/dsec
steps=0

step() {
  steps=$((steps + 1))
  echo "server: $*"
}

# An image of one program, as `docker save` writes it: a guest has no registry.
image=$(mktemp -d)
mkdir -p "$image/root/bin" "$image/root/tmp"
cp /mnt/busybox "$image/root/bin/busybox"
for name in sh cat id unshare mount; do ln -s busybox "$image/root/bin/$name"; done
tar -C "$image/root" -cf "$image/layer.tar" .
layer=$(sha256sum "$image/layer.tar" | cut -d ' ' -f 1)
cat >"$image/config.json" <<CONFIG
{"architecture":"amd64","os":"linux","config":{"Cmd":["/bin/sh"]},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]},"history":[{"created_by":"test"}]}
CONFIG
echo '[{"Config":"config.json","RepoTags":["busybox:latest"],"Layers":["layer.tar"]}]' >"$image/manifest.json"
tar -C "$image" -cf "$image/image.tar" manifest.json config.json layer.tar

step "dsec doctor"
bin/dsec doctor
step "dsec up"
bin/dsec up --detach --data "$data" --volume-size 2G --pool-blanks 4 --listen 127.0.0.1:7080
export DSEC_DATA="$data"
free -m
step "dsec env build"
bin/dsec env build "$image/image.tar" -t busybox

for profile in strict default builder; do
  step "programs of $profile are confined"
  # shellcheck disable=SC2016 # expanded inside
  said=$(bin/dsec run busybox --profile "$profile" -- /bin/sh -c 'cat /proc/self/attr/apparmor/current; cat /proc/1/attr/apparmor/current 2>/dev/null; cat /proc/self/cgroup
    { echo 1 >/proc/sys/kernel/ns_last_pid; } 2>/dev/null || echo refused')
  echo "$said"
  echo "$said" | grep -q "dsec-$profile-[0-9a-f]* (enforce)"
  echo "$said" | grep -qx 'refused'
  echo "$said" | grep -qx '0::/'
done
step "sandboxes nest"
bin/dsec run busybox -- /bin/unshare -Urmp -f /bin/sh -c '/bin/mount -t proc proc /proc && /bin/mount -t tmpfs tmpfs /tmp && id -u' | grep -qx 0
step "dsec down leaves nothing"
bin/dsec down
if grep '^dsec-' /sys/kernel/security/apparmor/profiles || ls -d /sys/fs/cgroup/dsec* 2>/dev/null || grep "$data" /proc/self/mountinfo; then
  echo "server: left behind"
  exit 1
fi
echo "test result: ok. $steps passed"
