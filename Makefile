# The whole interface: make setup, demo, test, lint, bench. Everything else is cargo.

CARGO ?= cargo
VTAX := $(or $(CARGO_TARGET_DIR),target)/release/vtax

.PHONY: help setup build demo test lint bench bench-mvm clean

help:
	@echo "make demo    install what is missing, build, run the network-tax plan, show the report"
	@echo "make test    run every test"
	@echo "make lint    formatting and lints"
	@echo "make bench   measure vtax itself"
	@echo "make bench-mvm    measure micro VMs: MVM='parked 1000000 live 4000 bare 4000 qemu 4'"

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

# Without MVM: a small run of every part.
bench-mvm: setup
	@$(CARGO) bench --locked --quiet -p vtax-mvm --bench population -- $(MVM)

clean:
	$(CARGO) clean
