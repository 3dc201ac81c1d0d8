# All tasks of the project. `make help` lists them, in one row for each purpose.

CARGO ?= cargo
PORT ?= 6379
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
export ENGINES
export MODULE := $(TARGET)/release/libredis_rl.so
# Where scripts/install-deps.sh puts a newer Node.js than the system's.
export PATH := $(CURDIR)/target/tools/node/bin:$(PATH)

.PHONY: help demo test test-repeatedly test-clients test-python test-node test-rust test-go test-java test-faults faults test-envoy envoy test-monitoring test-deploy fuzz test-baseline sizing bench bench-quick bench-instructions bench-clients bench-envoy bench-scale functions soak budgets lint build package test-packages run engines clean
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -E '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z -]+):.*## (.*)/\1\t\2/' | expand -t 20

demo: deps-build deps-server build ## Show the module at work on a private server
	@scripts/demo.sh

build: deps-build functions/rl.library.lua functions/rl.script.lua ## Build the module: target/release/libredis_rl.so
	$(CARGO) build --locked --release

functions: ## Put functions/ together into the two files that servers load, functions/rl.library.lua and rl.script.lua
	@scripts/functions.sh

functions/rl.%.lua: clients/go/lua/%.head.lua clients/go/lua/core.lua clients/go/lua/%.tail.lua
	@cat $^ >$@

run: deps-build deps-server build ## Run a server with the module in the foreground (PORT=6379)
	redis-server --port $(PORT) --save '' --loadmodule $(MODULE)

envoy: deps-build deps-server build ## Run the rate limit service with an example configuration, on a private server
	cd envoy && $(CARGO) build --locked --release
	envoy/run.sh

test: deps-build deps-server build build-hooks ## Test the module, live on every installed engine (ENGINES="name ..." for some; test-repeatedly: TIMES=20 in a row under load)
	PROPTEST_RNG_SEED=$(or $(RL_SEED),20) $(CARGO) test --locked --profile tests --features test-hooks --lib --test live

test-repeatedly: deps-build deps-server build build-hooks
	scripts/test-repeatedly.sh $(or $(TIMES),20) $(or $(ENGINE),redis-7.0)

test-clients: test-python test-node test-rust test-go test-java ## Test the packages, live: each by itself with test-python, -node, -rust, -go, -java
	@$(MAKE) --no-print-directory test-faults

test-python test-node test-rust test-go test-java: test-%: deps-build deps-server deps-clients build
	clients/$*/test.sh

# After the packages' tests, since it uses what they have installed and built; and alone, since it judges times.
test-faults: deps-build deps-server deps-clients build
	clients/faults/test.sh --quick

faults: deps-build deps-server deps-clients build ## Play all scenarios of clients/faults: what the packages do when something breaks (test-faults: a fixed choice)
	clients/faults/test.sh

test-envoy: deps-build deps-server deps-envoy build ## Test the rate limit service, behind a real Envoy too
	envoy/test.sh

# The program as test-envoy builds it: another one would be put in its place while that runs.
test-monitoring: deps-build deps-server build ## Test docker/monitoring with a live Prometheus
	cd envoy && $(CARGO) build --locked --tests
	scripts/test-monitoring.sh

test-deploy: ## Lint the Helm chart and render it with each of its values files (takes helm, or Go to build it)
	scripts/test-deploy.sh

test-baseline: deps-build deps-server deps-baseline build ## Check that the module runs on any x86-64 processor
	scripts/test-baseline.sh

# The stable toolchain is told to take the flags of the fuzzer. A finding lies in fuzz/artifacts.
fuzz: deps-build ## Fuzz what needs no server, SECONDS=600 each (FUZZ=compact, words or all); takes cargo-fuzz (cargo install cargo-fuzz)
	@for target in $(or $(FUZZ),compact words all); do \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run $$target -- -max_total_time=$(or $(SECONDS),600) -max_len=4096 -print_final_stats=1 || exit 1; done

bench-scale: deps-build deps-server build ## Measure servers, a cluster, blocks and failures into docs/SCALE.md in ten minutes (SECTIONS="name ...")
	cd envoy && $(CARGO) build --locked --release
	cd clients/rust && $(CARGO) bench --locked --bench scale -- $(SECTIONS)

soak: deps-build deps-server deps-valgrind build ## Hostile calls and floods (MINUTES=8 for both), memcheck, pruning (SEED=n ENGINE=name)
	$(CARGO) bench --locked --bench soak -- $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ENGINE),--engine $(ENGINE))

CROWD := $(if $(RESERVATIONS),--reservations $(RESERVATIONS)) $(if $(SEED),--seed $(SEED)) $(if $(ENGINE),--engine $(ENGINE))

budgets: deps-build deps-server build ## A million reservations of clients that lose replies and are killed (RESERVATIONS=n SEED=n ENGINE=name)
	$(CARGO) bench --locked --bench budgets -- $(CROWD)
	$(CARGO) bench --locked --bench budgets -- $(CROWD) --functions functions/rl.library.lua

bench: deps-build deps-server build ## Measure the commands beside the scripts in MINUTES=5 (ENGINE=name REDIS_CELL_SO=path; bench-quick: in less than one, and writes no file)
	$(CARGO) bench --locked --bench limiters -- $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ENGINE),--engine $(ENGINE))

bench-quick: deps-build deps-server build
	$(CARGO) bench --locked --bench limiters -- --quick $(if $(ENGINE),--engine $(ENGINE))

bench-instructions: deps-build deps-server deps-valgrind build ## Count the instructions of each command into docs/bench/instructions.tsv
	$(CARGO) bench --locked --bench limiters -- --instructions $(if $(ENGINE),--engine $(ENGINE))

bench-clients: deps-build deps-server deps-clients build ## Measure the packages beside the stores that they replace (bench-envoy: the service beside envoyproxy/ratelimit, which takes Go)
	scripts/bench-beside.sh clients

bench-envoy: deps-build deps-server build
	scripts/bench-beside.sh envoy

sizing: deps-build deps-server build ## Measure the memory of a key of each rule (ENGINES="name ...")
	scripts/sizing.sh $(ENGINES)

lint: deps-build ## Check formatting, lints, scripts and licences
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --profile tests --all-targets -- -D warnings
	$(CARGO) clippy --locked --profile tests --features test-hooks -- -D warnings
	@for script in scripts/*.sh .ci/run; do bash -n $$script || exit 1; done
	@scripts/functions.sh --check
	@scripts/release.py check >/dev/null
	@scripts/check-manifests.py
	@clients/go/lint.sh
	@pages=$$(mktemp -d) && scripts/package.sh --pages $$pages && rm -r $$pages
	@if command -v actionlint >/dev/null; then actionlint; else echo 'actionlint is not here: the workflows are not checked'; fi
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --locked check bans licenses sources; \
	else echo 'cargo-deny is not here: licences and sources are not checked (cargo install cargo-deny)'; fi

engines: ## Fetch the servers that the tests can run on, about 400 MB (ENGINES="name ..." for some)
	scripts/engines.sh $(ENGINES)

package: deps-build deps-package ## Build the tarball, .deb and .rpm: target/package (TRIPLE=target)
	scripts/package.sh $(if $(TRIPLE),--target $(TRIPLE))

test-packages: deps-installations ## Install and use the packages in fresh Debian and Ubuntu systems, as root
	scripts/test-packages.sh

clean: ## Remove what was built
	$(CARGO) clean

# The module with additional commands for the tests, and these.
.PHONY: build-hooks build-tests deps-build deps-server deps-valgrind deps-baseline deps-clients deps-envoy deps-package deps-installations
build-hooks:
	$(CARGO) build --locked --profile tests --features test-hooks --lib --tests

# What test-envoy, test-monitoring, test-rust and test-faults check and compile in Rust.
build-tests: deps-build deps-envoy
	envoy/test.sh --no-run
	clients/rust/test.sh --no-run
	$(CARGO) build --locked --release --quiet --manifest-path clients/faults/subjects/rust/Cargo.toml --target-dir clients/rust/target

deps-build deps-server deps-valgrind deps-baseline deps-clients deps-envoy deps-package deps-installations: deps-%:
	@scripts/install-deps.sh $*
