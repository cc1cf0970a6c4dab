#!/bin/bash
# measure.bash RUNTIME STATE BUNDLE create|exec COUNT ID: prints what each took, in microseconds, a line each.
# Runs in a mount namespace of its own: crun refuses a host that has both versions of cgroups, so the second one is
# taken out of its sight here, and of nobody else's.
set -eu
runtime=$1 state=$2 bundle=$3 kind=$4 count=$5 id=$6
if [ -e /sys/fs/cgroup/memory ] && [ -e /sys/fs/cgroup/unified ]; then
  umount /sys/fs/cgroup/unified
fi
oci() { "$runtime" --root "$state" "$@" </dev/null; }
remove() { oci delete -f "$id" >/dev/null 2>&1 || true; }
trap remove EXIT
# A container goes on with the descriptors of its runtime.
start() { oci run -d --bundle "$bundle" "$id" >/dev/null 2>"$state/error" || { cat "$state/error" >&2; exit 1; }; }
since() {
  local now=${EPOCHREALTIME/[.,]/}
  echo $((now - $1))
}
if [ "$kind" = create ]; then
  for ((i = 0; i < count; i++)); do
    begin=${EPOCHREALTIME/[.,]/}
    start
    oci exec "$id" true
    since "$begin"
    oci delete -f "$id"
  done
else
  start
  for ((i = 0; i < count; i++)); do
    begin=${EPOCHREALTIME/[.,]/}
    oci exec "$id" true
    since "$begin"
  done
fi
