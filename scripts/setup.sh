#!/bin/sh
# Brings a bare Debian or Ubuntu machine to where everything here can be built, run and tested; with --to-use, built and
# run. Each step looks first whether it is needed, so a second run takes a second or two.
set -eu
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }

# What no Debian package has in the version that is needed is asked for first, before anything is changed.
for tool in node npm cargo; do
  command -v "$tool" >/dev/null && continue
  say "$tool is missing: Node 20 or newer with npm (nodejs.org), and Rust (rustup.rs), are needed"
  [ -z "${SUDO_USER:-}" ] || say "sudo may hide what $SUDO_USER has: run this without sudo, which it uses itself where it must"
  exit 1
done
if [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
  say "Node $(node --version) is too old: 20 or newer is needed (nodejs.org)"
  exit 1
fi

# mmdebstrap builds environments, btrfs-progs makes the data volume, iproute2 and util-linux serve `doctor` and the
# tests; libc6-dev has the static C library that aether and the launcher are linked with. clang compiles the eBPF programs of
# egressd, which sets up the packet filter with nftables.
packages="btrfs-progs ca-certificates clang gcc iproute2 libc6-dev make mmdebstrap nftables util-linux"
# erofs-utils judges the EROFS writer, crun and runc are what the benchmarks compare with, openssl makes certificates,
# docker-registry is what images are pulled from, and skopeo fills it; curl tries the gate; xfsprogs makes a filesystem that sandboxes attack.
[ "${1:-}" = --to-use ] || packages="$packages crun curl docker-registry erofs-utils openssl runc skopeo xfsprogs"

missing=""
for package in $packages; do
  # shellcheck disable=SC2016 # the field name is dpkg's, not the shell's
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
  as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "needs root (or sudo) to install:$missing"; exit 1; }
    as_root=sudo
  fi
  say "installing Debian packages:$missing"
  $as_root apt-get -qq update
  # shellcheck disable=SC2086 # a list of package names
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
  case $missing in
    *docker-registry*)
      # Tests start registries of their own; the package starts one that listens on all addresses, now and at each boot.
      $as_root invoke-rc.d --quiet docker-registry stop >/dev/null 2>&1 || true
      $as_root update-rc.d docker-registry disable
      ;;
  esac
fi

# What is installed is compared with the lock file, so that it does not matter how it came there.
if ! node scripts/lock-is-installed.cjs; then
  say "installing npm packages"
  npm ci --loglevel=error >&2
fi

say "building native/"
(cd native && cargo build --release --locked --quiet)
# Whoever sets up owns it, although later commands may run as root.
mkdir -p .cache
# One path for the binaries, whatever the platform: links, so that a later `cargo build` is seen as well.
triple=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p native/bin
for binary in aether launcher layerd publisher gate egressd; do
  ln -sfn "../target/$triple/release/$binary" "native/bin/$binary"
done
say "ready"
