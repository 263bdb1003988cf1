# The whole interface of the repository; everything else is plain cargo.

CARGO ?= cargo
VTAX := $(or $(CARGO_TARGET_DIR),target)/release/vtax

.PHONY: help setup build package package-testbed package-test fresh demo demo-density testbed test test-all lint bench bench-busy bench-identical bench-density bench-mvm bench-nic bench-charge bench-fleet accuracy fuzz docs clean

help:
	@echo "make demo           install what is missing, build, run the network-tax plan, show the report"
	@echo "make demo-density   how many guests this host holds, in three minutes"
	@echo "make testbed        the published tables on an emulated host"
	@echo "make test           run the tests that need what make demo installs"
	@echo "make test-all       run every test, and install what they need"
	@echo "make package        Debian packages, into target/package; make package-test tries them in clean roots"
	@echo "make package-testbed   as root: the package of the QEMU of emulated hosts, and its source, into target/package"
	@echo "make fresh          try this commit in fresh roots of Debian 12 and 13, as on a machine with nothing installed"
	@echo "make lint           formatting, lints, links of comments, imports, licences and advisories of dependencies"
	@echo "make bench          measure vtax itself"
	@echo "make bench-busy     what intervals and claims are worth beside busy loops: RUNS=40, on a quiet host"
	@echo "make bench-identical  what gates between runs are worth on identical runs: RUNS=40"
	@echo "make bench-density  what the scalability test costs"
	@echo "make bench-mvm      measure micro VMs: MVM='parked 1000000 live 4000 bare 4000 qemu 4'"
	@echo "make bench-nic      measure the virtual NIC beside DPDK, QEMU and vhost-net: PARTS='pmd switch hold guest testbed'"
	@echo "make bench-charge   measure charge-back"
	@echo "make bench-fleet    what the metrics of many hosts cost a server: FLEET='prometheus 1000 40 5'"
	@echo "make docs           write the generated pages, and the documentation as a site into target/book"
	@echo "make fuzz           fuzz the virtual NIC: FUZZ_SECONDS=600 for each target"
	@echo "make accuracy       how right charge-back is, on an emulated host"

setup:
	@./scripts/setup

build: setup
	@CARGO=$(CARGO) ./scripts/build --release --locked --bin vtax --bin vtax-nic --bin vtax-mvm

# Debian packages, into target/package.
package: build
	@./scripts/package $(VTAX) $(dir $(VTAX))../package

# QEMU is built where this cache has no build of it.
package-testbed: build
	@$(VTAX) testbed build qemu
	@./scripts/package $(VTAX) $(dir $(VTAX))../package --testbed

package-test: package
	@./scripts/package-test $(dir $(VTAX))../package/vtax_*.deb

fresh:
	@./scripts/fresh

demo: build
	@./scripts/demo $(VTAX)

demo-density: build
	@./scripts/demo-density $(VTAX)

testbed: build
	@./scripts/testbed $(VTAX)

test:
	@./scripts/setup may-lack
	@./scripts/test

test-all:
	@./scripts/setup test
	@./scripts/test all

lint:
	@./scripts/setup lint
	@./scripts/rooms
	@./scripts/circles
	@./scripts/strings
	@./scripts/programs
	@without=$$(grep -L 'deny(clippy::disallowed_methods' crates/*/*/src/lib.rs crates/*/*/src/main.rs crates/*/*/src/bin/*.rs); \
	test -z "$$without" || { echo "these do not deny clippy::disallowed_methods, see clippy.toml: $$without"; false; }
	@without=$$(grep -rL --include='*.rs' SPDX-License-Identifier: crates; grep -L SPDX-License-Identifier: scripts/*); \
	test -z "$$without" || { echo "these do not name their licence in an SPDX line: $$without"; false; }
	@./scripts/dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace --locked

bench: build
	@./scripts/bench $(VTAX)

bench-busy: build
	@./scripts/busy-host $(VTAX) $(or $(RUNS),40)

bench-identical: build
	@./scripts/identical-runs $(VTAX) $(or $(RUNS),40)

bench-density: setup
	@./scripts/bench-density

# Without MVM: a small run of all parts.
bench-mvm: setup
	@$(CARGO) bench --locked --quiet -p vtax-mvm --bench population -- $(MVM)

# Without PARTS: all parts, which takes two hours.
bench-nic: build
	@$(CARGO) build --release --locked -p vtax-nic -p vtax-nic-driver --bins
	@./scripts/bench-nic $(dir $(VTAX)) $(PARTS)

bench-charge: setup
	$(CARGO) bench --locked -p vtax-charge --bench charge_windows
	$(CARGO) bench --locked -p vtax-serve --bench charge --bench scrape

# Without FLEET: 100 hosts, which takes a minute.
bench-fleet: setup
	@$(CARGO) bench --locked --quiet -p vtax-serve --bench fleet -- $(or $(FLEET),victoria-metrics 100 40 5)

fuzz:
	@./scripts/fuzz $(or $(FUZZ_SECONDS),60)

accuracy: build
	@$(VTAX) accuracy run plans/papers/cherkasova-accuracy.toml --place testbed:kvm
	@$(VTAX) accuracy run plans/papers/cherkasova-accuracy-kvm.toml --place testbed:kvm --testbed plans/coarse-timers.toml
	@$(VTAX) accuracy run plans/papers/cherkasova-accuracy-xen.toml --place testbed:xen
	@$(VTAX) accuracy run plans/papers/cherkasova-accuracy-disk.toml --place testbed:xen
	@$(VTAX) accuracy run plans/papers/cherkasova-monitor.toml --place testbed:kvm

# The generated pages of docs/reference from the parser and the catalogues, and the site. The links are tested by `make test`.
docs:
	@./scripts/rooms --draw
	@VTAX_WRITE_DOCS=1 $(CARGO) test --quiet --locked -p vtax --bin vtax generated_pages
	@VTAX_WRITE_DOCS=1 $(CARGO) test --quiet --locked -p vtax-atlas --lib kept_page
	@command -v mdbook >/dev/null || { echo "mdbook is missing: cargo install mdbook"; false; }
	@mdbook build

clean:
	$(CARGO) clean
