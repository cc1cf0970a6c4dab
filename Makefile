# `make quickstart` is the way in, `make test` the proof. Both set up all that they need, as root, on Debian or Ubuntu.
.DEFAULT_GOAL := help
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo)
.PHONY: help setup quickstart check test test-vm fuzz soak bench format

help: ## What can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## Debian packages, npm packages and native binaries, each only when needed
	@scripts/setup.sh

quickstart: ## Set up, then the main job on real input: build, create, run, read, stop
	@scripts/setup.sh --to-use
	@$(AS_ROOT) bin/dsec quickstart

check: setup ## Format, lint, types, layers, dead code, generated files
	@npm run -s check

test: setup ## Every check and every test
	@scripts/test.sh

test-vm: setup ## The suites of a kernel with AppArmor and pure cgroup v2, in a guest (SUITES="name ..." for some)
	@$(AS_ROOT) scripts/test-vm.sh $(SUITES)

# A property test of a decoder has `fuzz` in its name and goes on for DSEC_FUZZ_SECONDS when that is set.
fuzz: export DSEC_FUZZ_SECONDS ?= 30
fuzz: setup ## The property tests of all decoders, for DSEC_FUZZ_SECONDS (30) each
	@cd native && cargo test --release --workspace --locked fuzz
	@npm test -s -- --testNamePattern fuzz --testTimeout $$((DSEC_FUZZ_SECONDS * 1000 + 30000))

soak: setup ## The cases that take long: gigabytes, and minutes of silence (about half an hour)
	@bin/node24 node_modules/vitest/vitest.mjs run --config tests/soak/vitest.config.ts

bench: setup ## The benchmarks of one machine, each in its quick form
	@for name in create exec burst; do npm run -s bench -- $$name --quick || exit 1; done

format: ## Rewrite the sources in the one format
	@npm run -s format
