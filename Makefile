# Twinpool's commands. `make` alone lists them.

# Interpreter that makes the virtual environment; 3.11 or newer.
PYTHON ?= python3
# A further package index to take torch from. On Linux the default index has torch for CUDA (several GB);
# an index of CPU builds makes the download small.
TORCH_INDEX ?=
# Model to pull and serve; empty takes the default one.
MODEL =
# More arguments for serve and test.
ARGS =

BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup pull serve test check format metrics proto exactness chaos pauses clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON, TORCH_INDEX (setup); MODEL, ARGS (serve, test)."

setup: $(STAMP) ## make .venv and install everything into it; does nothing where that is done
	@echo "setup: .venv is ready" >&2

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: $(PYTHON) is older than Python 3.11; name another with PYTHON=..." >&2; exit 1; }
	@echo "setup: making .venv with $$($(PYTHON) --version)" >&2
	@$(PYTHON) -m venv .venv
	@echo "setup: installing twinpool and its development tools (a few minutes the first time)" >&2
	@$(BIN)/python -m pip install $(if $(CI),--quiet) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  -c constraints.txt -e '.[dev]' >&2
	@touch $@

pull: setup ## fetch and prepare MODEL (default: the small one that tests use)
	@$(BIN)/twinpool pull $(MODEL) >&2

serve: pull ## serve MODEL on this machine; ARGS="--decode 2" adds options
	@exec $(BIN)/twinpool serve $(MODEL) $(ARGS)

test: pull ## run all tests; ARGS="-k name" picks some
	@$(BIN)/python -m pytest $(ARGS)

exactness: pull ## compare tokens with transformers' over the full grid (minutes)
	@$(BIN)/python -m pytest -m exactness $(ARGS)

chaos: pull ## send three hundred requests among dying workers; every fault at every moment (half an hour)
	@$(BIN)/python -m pytest -m chaos -s $(ARGS)

pauses: pull ## measure how long streams pause when their decode worker is killed, or drains (minutes)
	@$(BIN)/python -m benchmarks.pauses

check: setup ## lint, formatting, types, import rules, proto contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint
	PYTHON=$(BIN)/python scripts/check_proto.sh

format: setup ## format the code and fix what the linter can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

metrics: setup ## rewrite docs/metrics.md and the dashboards in deploy/grafana from the code
	$(BIN)/python -m scripts.make_metrics_docs
	$(BIN)/python -m scripts.make_dashboards

proto: setup ## regenerate twinpool/v1 from proto/
	PYTHON=$(BIN)/python scripts/generate_proto.sh

clean: ## remove .venv and all caches
	rm -rf .venv *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
