# make demo   installs into .venv and compares the policies on the built-in scenario
# make test   installs what the tests need and runs them, with a covering subset of the conformance cases
# make test-full  the same with the full product of conformance cases: every policy in every case of every test
# make bench  speed, as ratios taken in one run, into bench/results.json and docs/benchmarks/simulator.md (6 minutes)
# make bench-gateway  the gateway beside its peers, which it installs aside (.venv-peers-*), into bench/gateway.json;
#             GATEWAY_PYTHON=PROGRAM runs it and litellm by another Python, such as the distribution's (bench/NOTES.md)
# make bench-policies  every policy on every scenario, into bench/policies.json and docs/benchmarks/policies.md (hours anew)
# make bench-bursts  policies under bursts, into bench/bursts.json and docs/benchmarks/bursts.md (10 minutes)
# make bench-fragmentation  how full accelerators get, into bench/fragmentation.json and docs/benchmarks/fragmentation.md (7 minutes)
# make bench-caches  hit rates beside the best possible, into bench/caches.json and docs/benchmarks/caches.md (4 minutes)
# make bench-live  policies in the gateway over unequal backends, beside the simulator's predictions (12 minutes)
# make docs   writes the generated pages of docs/ anew
# make docs-site  builds the site of docs/ into site/; warnings are errors
# make clean  removes what the others made

PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(p))))
VENV := .venv
BIN := $(VENV)/bin
OUT ?= trimtab-out

PEERS := vllm-router sglang-router litellm

.PHONY: demo test test-full lint bench bench-gateway bench-live bench-policies bench-bursts bench-fragmentation bench-caches docs docs-site clean

demo: $(VENV)/.installed
	$(BIN)/trimtab compare aigc-images --out $(OUT)

# A worker that dies ends the run: pytest-xdist waits for ever for the tests of one that it replaces
test-full: FULL := --full
test test-full: $(VENV)/.installed-test lint
	$(BIN)/trimtab warmup --quiet
	$(BIN)/python -m pytest -n auto --dist loadgroup --max-worker-restart=0 $(FULL)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-bench
	$(BIN)/python -m bench
	$(BIN)/python -m bench --docs

bench-gateway: $(VENV)/.installed-bench $(PEERS:%=.venv-peers-%/.installed)
	$(BIN)/python -m bench.gateway $(if $(GATEWAY_PYTHON),--python $(GATEWAY_PYTHON))
	$(BIN)/python -m bench.gateway --docs

bench-live: $(VENV)/.installed-bench
	$(BIN)/python -m bench.live

bench-policies: $(VENV)/.installed-bench
	$(BIN)/python -m bench.policies

bench-bursts: $(VENV)/.installed-bench
	$(BIN)/python -m bench.bursts

bench-fragmentation: $(VENV)/.installed-bench
	$(BIN)/python -m bench.fragmentation

bench-caches: $(VENV)/.installed-bench
	$(BIN)/python -m bench.caches

# A Python before 3.11.3, as GATEWAY_PYTHON may be, needs async-timeout; pip leaves it out under a newer one.
PEER_litellm = 'litellm[proxy]' async-timeout
.venv-peers-%/.installed:
	$(PYTHON) -m venv .venv-peers-$*
	echo '*' > .venv-peers-$*/.gitignore
	.venv-peers-$*/bin/python -m pip install --quiet --disable-pip-version-check $(or $(PEER_$*),$*)
	@touch $@

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/generate.py

docs-site: docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "trimtab needs Python 3.11 or newer; name one with make PYTHON=…" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench,serve]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) site .venv-peers-* $(OUT) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
