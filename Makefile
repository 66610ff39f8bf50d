# Twinpool's commands. `make` alone lists them.

# Interpreter that makes the virtual environment; 3.11 or newer.
PYTHON ?= python3
# A further package index to take torch from; empty: the default index alone. `auto`: on Linux without an NVIDIA GPU
# the one of CPU builds, since the default index has torch for CUDA there (2 to 4 GB more).
TORCH_INDEX ?= auto
# Model to pull and serve; empty takes the default one.
MODEL =
# More arguments for serve, test and bench-peers.
ARGS =

BIN := .venv/bin
# What is installed is a file each: what serves, what tests need beside, what checks need beside.
SERVES := .venv/.installed
TESTS := .venv/.installed-test
CHECKS := .venv/.installed-check
# The native kernels have a stamp of their own: a change of theirs installs nothing else anew.
NATIVE := .venv/.native
# Others' programs and clients have an environment of their own, which only their tests use.
CLIENTS := .venv/clients/.installed

.DEFAULT_GOAL := help
.PHONY: help setup pull serve test test-clients mutants bench-quick bench-peers check format metrics proto baseline exactness chaos pauses clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON, TORCH_INDEX (setup); MODEL, ARGS (serve, test, bench-peers)."

setup: $(SERVES) $(NATIVE) ## make .venv and install what serves into it; does nothing where that is done
	@echo "setup: .venv is ready" >&2

$(SERVES): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: $(PYTHON) is older than Python 3.11; name another with PYTHON=..." >&2; exit 1; }
	@echo "setup: making .venv with $$($(PYTHON) --version)" >&2
	@$(PYTHON) -m venv .venv
	@echo "setup: installing twinpool (a minute or two the first time)" >&2
	@index=$$(scripts/torch_index.sh $(BIN)/python '$(TORCH_INDEX)') \
	  && $(BIN)/python -m pip install $(if $(CI),--quiet) $${index:+--extra-index-url $$index} \
	  -c constraints.txt -e '.[worker]' >&2
	@touch $@

# Installing has compiled them already, unless they changed since.
$(NATIVE): $(SERVES) setup.py $(wildcard native_build/*.py twinpool/engine/kernels/native/csrc/*)
	@$(BIN)/python -m pip install --quiet --no-deps -e . >&2
	@touch $@

$(TESTS) $(CHECKS): $(SERVES)
	@echo "setup: installing what $(patsubst .venv/.installed-%,%s,$@) need" >&2
	@$(BIN)/python -m pip install $(if $(CI),--quiet) -c constraints.txt -e '.[$(patsubst .venv/.installed-%,%,$@)]' >&2
	@touch $@

pull: setup ## fetch and prepare MODEL (default: the small one that tests use)
	@$(BIN)/twinpool pull $(MODEL) >&2

serve: pull ## serve MODEL on this machine; ARGS="--decode 2" adds options
	@exec $(BIN)/twinpool serve $(MODEL) $(ARGS)

test: pull $(TESTS) ## run all tests; ARGS="-k name" picks some
	@$(BIN)/python -m pytest --durations 20 --durations-min 1 $(ARGS)

test-clients: pull $(TESTS) $(CLIENTS) ## test with other people's clients and checkers, in an environment of their own
	@$(BIN)/python -m pytest -m clients $(ARGS)

$(CLIENTS): $(SERVES)
	@echo "setup: installing what test-clients needs into $(@D)" >&2
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install $(if $(CI),--quiet) -c constraints.txt \
	  $$($(BIN)/python scripts/dependency_group.py clients) >&2
	@touch $@

mutants: pull $(TESTS) ## plant bugs in copies of the code, and see the tests catch each (minutes)
	@$(BIN)/python -m tests.mutants $(ARGS)

bench-quick: pull ## compare native kernels with torch, in a minute; fails where they are not much faster
	@$(BIN)/python -m benchmarks.quick

bench-peers: pull ## compare this engine with others, in environments of their own (half an hour, and installs)
	@$(BIN)/python -m benchmarks.peers $(ARGS)

exactness: pull $(TESTS) ## compare tokens with transformers' over the full grid (minutes)
	@$(BIN)/python -m pytest -m exactness $(ARGS)

chaos: pull $(TESTS) ## send three hundred requests among dying workers; every fault at every moment (half an hour)
	@$(BIN)/python -m pytest -m chaos -s $(ARGS)

pauses: pull ## measure how long streams pause when their decode worker is killed, or drains (minutes)
	@$(BIN)/python -m benchmarks.pauses

check: $(CHECKS) ## lint, formatting, types, import rules, proto contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint
	PYTHON=$(BIN)/python scripts/check_proto.sh

format: $(CHECKS) ## format the code and fix what the linter can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

metrics: $(CHECKS) ## rewrite docs/metrics.md and the dashboards in deploy/grafana from the code
	$(BIN)/python -m scripts.make_metrics_docs
	$(BIN)/python -m scripts.make_dashboards

proto: $(CHECKS) ## regenerate twinpool/v1 from proto/
	PYTHON=$(BIN)/python scripts/generate_proto.sh

baseline: ## at a release: keep its proto files, which later ones must not break
	rm -rf released/proto
	mkdir -p released
	cp -r proto released/proto

clean: ## remove .venv and all caches
	rm -rf .venv *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
