# `make` lists the targets. PYTHON is the interpreter that the virtual environment is made with (3.11 or newer).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PURE   := elastic_launcher/batch.py elastic_launcher/batch_schedule.py elastic_launcher/sampling.py elastic_launcher/lane_order.py elastic_launcher/virtual_ranks.py elastic_launcher/weighted_sampling.py elastic_launcher/config.py elastic_launcher/argument.py elastic_launcher/options.py elastic_launcher/events.py elastic_launcher/field_types.py elastic_launcher/period.py elastic_launcher/hints elastic_launcher/checkpoint elastic_launcher/kube elastic_launcher/engines/kubernetes elastic_launcher/quota elastic_launcher/adaptive elastic_launcher/argo.py
TWO    := --numprocesses 2 --dist loadgroup # for two cores
ON_A_GPU := resize sudden_loss deterministic lanes keras lightning transformers accelerate # whose scripts use a GPU where there is one
IRS    := digits_elastic digits_keras digits_search gpt_lora plan_train_evaluate text_tuning
KNOWN  := settings=$$($(PYTHON) -m tests.cluster env) && eval "$$settings" # KUBECONFIG, and kubectl on the PATH

unexport PYTHONDONTWRITEBYTECODE # with it, each process of a job compiles the package anew, as no installed one does

.DEFAULT_GOAL := help
.PHONY: help run run-shared test test-local test-gpu cluster test-cluster test-cluster-full cluster-down lint format bench soak chaos golden clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 19

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; say which with PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV), once; torch is large"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $@

run: $(STAMP) ## a real Kubeflow pipeline on this machine: 1 -> 3 -> 2 nodes while it trains
	$(BIN)/python -m pipelines.digits_elastic.run

run-shared: $(STAMP) ## two projects share this machine: a job borrows GPUs, gives them back, another one is paused and goes on
	$(BIN)/python -m pipelines.shared_machine.run

test: $(STAMP) ## unit tests, the quick local tests, one kfp.local run
	$(BIN)/python -m pytest -q $(TWO) -m 'not thorough' tests/unit components
	$(BIN)/python -m pytest -q $(TWO) -m quick tests/local

test-local: $(STAMP) ## the other unit tests and the other local ones: several processes each
	$(BIN)/python -m pytest -q $(TWO) -m thorough tests/unit
	$(BIN)/python -m pytest -q $(TWO) -m 'not quick' tests/local

test-gpu: $(STAMP) ## what one NVIDIA GPU can show; fails where there is none (no part of any other target)
	$(BIN)/python -m pytest -q tests/gpu
	$(BIN)/python -m pytest -q -n 8 --dist loadgroup -m 'not thorough' $(ON_A_GPU:%=tests/local/test_%.py)

cluster: ## a real Kubernetes of two nodes on this machine; needs root and Go (tests/cluster/README.md; ARGS="--grace 10")
	$(PYTHON) -m tests.cluster up $(ARGS)

test-cluster: $(STAMP) cluster ## the tests that need a cluster, one case of each kind
	@$(KNOWN) && $(BIN)/python -m pytest -q -m 'not thorough' --durations=10 tests/cluster

test-cluster-full: $(STAMP) cluster ## all tests that need a cluster, with a table of what each took, and 20 seeds of chaos on it
	@$(KNOWN) && $(BIN)/python -m pytest -q -rap --durations=0 --durations-min=1 tests/cluster
	$(BIN)/python -m tests.cluster.chaos --seeds $(or $(SEEDS),1-20)
	$(BIN)/python -m tests.cluster.quota_chaos --seeds 1-10

cluster-down: ## end the cluster and leave nothing of it but the cache of its programs
	$(PYTHON) -m tests.cluster down

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict $(PURE)
	$(BIN)/mypy elastic_launcher
	$(BIN)/mypy --warn-unused-ignores pipelines/hera_examples tests/support/hera_types.py

format: $(STAMP) ## let ruff format and sort
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## every benchmark that needs no cluster, one after another
	@set -e; for file in benchmarks/sampling.py benchmarks/overhead.py benchmarks/bitwise.py benchmarks/resize.py benchmarks/respawn.py benchmarks/hint_latency.py benchmarks/failure.py benchmarks/checkpoint.py benchmarks/sharded.py benchmarks/sharded_overhead.py benchmarks/sharded_memory.py benchmarks/peers.py benchmarks/fronts.py benchmarks/allocation.py benchmarks/quota_round.py benchmarks/throughput_fit.py benchmarks/noise.py benchmarks/adaptive.py; do echo "== $$file"; $(BIN)/python -m "benchmarks.$$(basename "$$file" .py)"; done

soak: $(STAMP) ## 100 launches that end well and badly, none of which may leave anything (resumable: ARGS="--from 40")
	$(BIN)/python -m tests.soak $(ARGS)

chaos: $(STAMP) ## jobs to which all sorts of things happen at drawn moments (resumable: SEEDS=40-300; ARGS="--kills 50", "--resizes 1000")
	$(BIN)/python -m tests.chaos $(or $(ARGS),--seeds $(or $(SEEDS),1-400) --at-once $(or $(AT_ONCE),1))

golden: $(STAMP) ## write again what is made from code and committed: what follows from options, compiled pipelines, components' YAML, READMEs, Argo's templates, Hera's YAML, diffs in docs
	$(BIN)/python -m components.from_options
	for name in $(IRS); do $(BIN)/kfp dsl compile --py pipelines/$$name/pipeline.py --output tests/golden/$$name.yaml || exit; done
	$(BIN)/python -m components.generated
	$(BIN)/python -m elastic_launcher.argo manifests/argo
	$(BIN)/python -m pipelines.hera_examples
	$(BIN)/python -m pipelines.migration

clean: ## remove what was built and run here, the virtual environment too
	rm -rf $(VENV) build dist elastic-jobs *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
