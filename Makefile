# The whole interface: make setup, demo, test, lint, bench. Everything else is cargo.

CARGO ?= cargo
VTAX := $(or $(CARGO_TARGET_DIR),target)/release/vtax

.PHONY: help setup build demo test lint bench testbed clean

help:
	@echo "make demo    install what is missing, build, run the network-tax plan, show the report"
	@echo "make test    run every test"
	@echo "make lint    formatting and lints"
	@echo "make bench   measure vtax itself"
	@echo "make testbed the published tables on an emulated host"

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

testbed: build
	@./scripts/testbed $(VTAX)

clean:
	$(CARGO) clean
