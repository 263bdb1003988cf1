# The whole interface: make setup, demo, demo-density, test, lint, bench, bench-density. Everything else is cargo.

CARGO ?= cargo
VTAX := $(or $(CARGO_TARGET_DIR),target)/release/vtax

.PHONY: help setup build demo demo-density test lint bench bench-density clean

help:
	@echo "make demo    install what is missing, build, run the network-tax plan, show the report"
	@echo "make test    run every test"
	@echo "make lint    formatting and lints"
	@echo "make bench   measure vtax itself"
	@echo "make demo-density    a first look at how many guests this host holds"
	@echo "make bench-density   what micro VMs and the scalability test cost"

setup:
	@./scripts/setup

build: setup
	@$(CARGO) build --release --locked --bin vtax

demo: build
	@./scripts/demo $(VTAX)

demo-density: build
	@./scripts/demo-density $(VTAX)

test:
	@./scripts/setup test
	@./scripts/test

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

bench: build
	@./scripts/bench $(VTAX)

bench-density: setup
	@./scripts/bench-density

clean:
	$(CARGO) clean
