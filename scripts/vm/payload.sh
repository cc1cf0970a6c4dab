#!/bin/sh
# Gathers what the guest runs: scripts/vm/payload.sh DIRECTORY [SUITE...] makes DIRECTORY/payload. Test programs are static and need nothing of the guest's; the
# programs that they compile on first use are compiled here.
set -eu
work=$(readlink -f "$1")
shift
cd "$(dirname "$0")/../.."
root=$(pwd)
tree=$work/payload/tree
mkdir -p "$tree"
cp scripts/vm/guest-init.sh "$work/payload/guest-init"
echo "$root" >"$work/payload/checkout"

say() { echo "test-vm: $*" >&2; }

known=$(sed 's/ *#.*//; /^$/d' scripts/vm/suites)
for wanted in "$@"; do
  echo "$known" | grep -q "^$wanted " || { say "there is no suite $wanted; there are: $(echo "$known" | cut -d ' ' -f 1 | tr '\n' ' ')"; exit 1; }
done

# Copies a file to its own path in the guest, with its time: what is older than its source would be compiled again.
give() { (cd / && cp --parents --no-dereference --preserve=mode,timestamps "${1#/}" "$work/payload/tree.absolute/"); }
mkdir -p "$work/payload/tree.absolute"

chosen=$(echo "$known" | while read -r line; do
  [ $# -eq 0 ] || case " $* " in *" ${line%% *} "*) ;; *) continue ;; esac
  echo "$line"
done)
for package in $(echo "$chosen" | cut -d ' ' -f 3 | grep -vx checkout | sort -u); do
  targets=$(echo "$chosen" | awk -v package="$package" '$3 == package { print $4 == "lib" ? "--lib" : "--test " $4 }')
  # shellcheck disable=SC2086 # options
  (cd native && cargo test --locked --package "$package" $targets --no-run) >"$work/$package.txt" 2>&1 || { cat "$work/$package.txt" >&2; exit 1; }
done

target=$root/native/target/$(rustc -vV | sed -n 's/^host: //p')
for source in native/*/tests/programs/*.c; do
  program=$target/tmp/$(basename "$source" .c)
  mkdir -p "$target/tmp"
  [ "$program" -nt "$source" ] || cc -O2 -static -o "$program" "$source"
  give "$root/$source"
  give "$program"
done

# All that a server runs from, as `make setup` has left it, but what only checks sources.
if echo "$chosen" | grep -q ' checkout '; then
  for binary in native/bin/*; do give "$root/$binary"; give "$(readlink -f "$binary")"; done
  git ls-files -z package.json bin packages environments scripts/vm | (cd / && sed -z "s,^,${root#/}/," | xargs -0 cp --parents -t "$work/payload/tree.absolute")
  mkdir -p "$work/payload/tree.absolute$root/node_modules"
  for module in node_modules/* node_modules/.bin; do
    case ${module#node_modules/} in @biomejs | @oxlint | @oxlint-tsgolint | @rolldown | @typescript | knip | lightningcss*) ;; *) cp -a "$module" "$work/payload/tree.absolute$root/node_modules/" ;; esac
  done
  for modules in packages/*/node_modules; do
    [ ! -d "$modules" ] || cp -a "$modules" "$work/payload/tree.absolute$root/${modules%/*}/"
  done
  # Compiled code, which is slow to make where the processor is emulated.
  if [ -d .cache/compile ]; then
    mkdir -p "$work/payload/tree.absolute$root/.cache"
    cp -a .cache/compile "$work/payload/tree.absolute$root/.cache/"
  fi
  cp "$(command -v busybox)" "$work/payload/busybox"
fi

: >"$work/payload/suites"
echo "$chosen" | while read -r name limit package program; do
  if [ "$package" = checkout ]; then
    echo "$name $limit $root $program" >>"$work/payload/suites"
    continue
  fi
  source=tests/$program.rs
  [ "$program" != lib ] || source="unittests src/lib.rs"
  executable=$(sed -n "s,^ *Executable $source (\(.*\))\$,$root/native/\1,p" "$work/$package.txt")
  [ -n "$executable" ] || { say "cargo has built no $program of $package"; exit 1; }
  mkdir -p "$work/payload/tree.absolute${executable%/*}"
  strip --strip-debug -o "$work/payload/tree.absolute$executable" "$executable"
  echo "$name $limit $root/native/${package#dsec-} $executable --test-threads=1" >>"$work/payload/suites"
done
strip --strip-debug -o "$work/launcher" "$target/debug/launcher"
mkdir -p "$work/payload/tree.absolute$target/debug"
mv "$work/launcher" "$work/payload/tree.absolute$target/debug/launcher"
rmdir "$tree"
mv "$work/payload/tree.absolute$root" "$tree"
rm -r "$work/payload/tree.absolute"
