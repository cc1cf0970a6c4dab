#!/bin/sh
# Every check and every test. All parts run even when an early one fails, so that one run shows everything.
set -eu
cd "$(dirname "$0")/.."

reports=.cache/test
mkdir -p "$reports"
rm -f "$reports"/*
failed=""

npm run -s check || failed="$failed check"

# A pipe would hide cargo's exit code from sh: it is left in a file.
(cd native && cargo test --workspace --locked --no-fail-fast 2>&1 || echo 1 >"../$reports/cargo-failed") | tee "$reports/cargo.txt"
[ ! -e "$reports/cargo-failed" ] || failed="$failed cargo"

bin/node24 node_modules/vitest/vitest.mjs run --reporter=default --reporter=json \
  --outputFile.json="$reports/vitest.json" || failed="$failed vitest"

bin/node24 scripts/test-summary.ts "$reports/vitest.json" "$reports/cargo.txt" >"$reports/summary.txt" || failed="$failed tests"

if [ -n "$failed" ]; then
  echo "test failed:$failed" >&2
  exit 1
fi
