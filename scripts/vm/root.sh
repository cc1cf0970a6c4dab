#!/bin/sh
# Makes the root filesystem and the kernel of the test guest: scripts/vm/root.sh DIRECTORY. Both come from the Debian archive that this machine's own
# sources name, or from DSEC_VM_ARCHIVE. The kernel is that of backports: the newest that Debian has for a release.
set -eu
release=${DSEC_VM_RELEASE:-trixie}
directory=$1

say() { echo "test-vm: $*" >&2; }

# shellcheck disable=SC2016 # the field name is apt's
archive=${DSEC_VM_ARCHIVE:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u | head -n 1)}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -n "$archive" ] || { say "no apt source of this machine is Debian's: name an archive by DSEC_VM_ARCHIVE"; exit 1; }
[ -e "$keyring" ] || { say "$keyring is missing (Debian: debian-archive-keyring)"; exit 1; }

mkdir -p "$directory"
work=$(mktemp -d "$directory/making.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

# What suites call: parsers and makers of filesystems, the packet filter, Python for probes.
packages=apparmor,btrfs-progs,erofs-utils,iproute2,kmod,nftables,procps,python3-minimal,util-linux
# Not the package that names the newest kernel, which would also make an initramfs: all that is needed to boot is built in.
# shellcheck disable=SC2016 # expanded by the hook
kernel_hook='set -eu
image=$(chroot "$1" apt-cache -o APT::Default-Release="$DSEC_VM_SUITE" depends linux-image-cloud-amd64 | sed -n "s/^ *Depends: linux-image-\([0-9]\)/\1/p" | head -n 1)
chroot "$1" apt-get -qq install -y --no-install-recommends -t "$DSEC_VM_SUITE" "linux-binary-$image" "linux-modules-$image"'
export DSEC_VM_SUITE="$release-backports"
say "making a guest of Debian $release from $archive"
printf 'Types: deb\nURIs: %s\nSuites: %s %s-backports\nComponents: main\nSigned-By: %s\n' "$archive" "$release" "$release" "$keyring" |
  mmdebstrap --variant=minbase --aptopt='Acquire::Retries "5"' --format=directory \
    --include="$packages" --customize-hook="$kernel_hook" "$release" "$work/root" - >"$directory/log" 2>&1 || { tail -n 20 "$directory/log" >&2; exit 1; }

kernel=$(find "$work/root/usr/lib/modules" -name vmlinuz | sort -V | tail -n 1)
[ -n "$kernel" ] || { say "$release-backports has no kernel"; exit 1; }
cp "$kernel" "$work/vmlinuz"
basename "$(dirname "$kernel")" >"$work/release"
mke2fs -q -t ext4 -O '^has_journal' -d "$work/root" "$work/root.img" 4G
mv "$work/vmlinuz" "$work/release" "$directory/"
# Last: its presence says that all is there.
mv "$work/root.img" "$directory/root.img"
