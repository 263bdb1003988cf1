# The whole interface: make setup, demo, test, lint, bench. Everything else is cargo.

CARGO ?= cargo
VTAX := $(or $(CARGO_TARGET_DIR),target)/release/vtax

.PHONY: help setup build demo test lint bench bench-nic bench-hold clean

help:
	@echo "make demo    install what is missing, build, run the network-tax plan, show the report"
	@echo "make test    run every test"
	@echo "make lint    formatting and lints"
	@echo "make bench   measure vtax itself"
	@echo "make bench-nic  measure vtax-nic beside DPDK's back end and QEMU's own device"
	@echo "make bench-hold  measure vtax-nic's hold modes"

setup:
	@./scripts/setup

build: setup
	@$(CARGO) build --release --locked --bin vtax

demo: build
	@./scripts/demo $(VTAX)

test:
	@./scripts/setup test
	@./scripts/test

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

bench: build
	@./scripts/bench $(VTAX)

bench-nic: setup
	@$(CARGO) build --release --locked -p vtax-nic --bin vtax-nic
	@./scripts/bench-nic $(dir $(VTAX))vtax-nic

bench-hold: setup
	@$(CARGO) build --release --locked -p vtax-nic -p vtax-nic-driver --bins
	@$(dir $(VTAX))hold-bench --program $(dir $(VTAX))vtax-nic

clean:
	$(CARGO) clean
