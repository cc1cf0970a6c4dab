#!/bin/sh
# Judges a run: scripts/vm/summary.sh SUITES RESULTS. Fails unless every suite has ended with 0, has run something and has skipped nothing, and the guest came
# to its end.
set -eu
failed=""
grep -q '^=== end' "$2" || failed=" guest"
while read -r name _; do
  # What lies between the beginning of a suite and its end.
  part=$(sed -n "/^=== suite $name\$/,/^=== exit $name /p" "$2" | tr -d '\r')
  end=$(echo "$part" | sed -n "s/^=== exit $name //p")
  code=${end%% *}
  passed=$(echo "$part" | sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' | paste -sd+ - | sed 's/^$/0/')
  passed=$((passed))
  skips=$(echo "$part" | grep -c '^skipped: ' || true)
  verdict=passed
  { [ "$code" = 0 ] && [ "$passed" -gt 0 ] && [ "$skips" = 0 ]; } || verdict=FAILED
  printf '%-14s %-7s %4s tests passed, %s skipped, %s s\n' "$name" "$verdict" "$passed" "$skips" "${end#* }"
  [ $verdict = passed ] || failed="$failed $name"
done <"$1"
if [ -n "$failed" ]; then
  echo "test-vm failed:$failed" >&2
  exit 1
fi
