# Sets itself up on a machine that has only Python (3.11 or newer) and make.
#
#   make demo                      find genes in the embedded leukaemia data
#   make test                      run the tests
#
# Variables: PYTHON (interpreter that makes the environment), VENV (its folder), PEERS (the folder
# of the environment with the libraries that benchmarks compare with), BENCH_ARGS (passed on),
# TORCH_INDEX (an extra package index for torch: on Linux PyTorch's default build
# brings CUDA, several GB; TORCH_INDEX=https://download.pytorch.org/whl/cpu gives the
# CPU build), PYTEST_ARGS and DEMO_ARGS (passed on), EXPERIMENTS (which ones to reproduce).

PYTHON      ?= python3
VENV        ?= .venv
PEERS       ?= .venv-peers
TORCH_INDEX ?=
PYTEST_ARGS ?=
DEMO_ARGS   ?=
BENCH_ARGS  ?=
EXPERIMENTS ?= synthetic golub mnist vi unlearning

BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
DOCS    := $(VENV)/.docs
SOURCES := $(wildcard src tests benchmarks experiments scripts)

# Benchmarks that need a peer, those that compare with one where it is there, and all others.
PEER_ONLY    := $(addprefix benchmarks/,flower.py jax_step.py pfl.py)
PEER_BENCHES := benchmarks/local_step.py benchmarks/sparse_solvers.py $(PEER_ONLY)
BENCHES      := $(filter-out $(PEER_ONLY),$(wildcard benchmarks/[!_]*.py))
SPEED        := $(addprefix benchmarks/,local_step.py rounds.py seeds.py flower.py pfl.py)
PEERS_STAMP  := $(PEERS)/.installed

# It asks for an older dp-accounting than constraints.txt has; its benchmark accounts for nothing.
PFL          := pfl==0.6.0

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format check acceptance reproduce audit bench bench-peers bench-docs docs notebooks hooks clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Create the environment and install fedsift with its tools, once

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "fedsift needs Python 3.11 or newer, $(PYTHON) is not: make PYTHON=python3.11 ..." >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## Find three genes in the embedded leukaemia data
	$(BIN)/fedsift fit --demo golub --features 3 --seeds 30 $(DEMO_ARGS)

test: $(STAMP) ## Run all tests but those marked acceptance_long
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m "not acceptance_long" $(PYTEST_ARGS)

lint: $(STAMP) ## Check style, types and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-logo

format: $(STAMP) ## Rewrite the sources in the house format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

check: lint test ## Lint, then test: what CI runs

acceptance: $(STAMP) ## Run and print every acceptance figure, write them to docs/figures.md
	FEDSIFT_FIGURES=docs $(BIN)/python -m pytest -q -s -m "acceptance or acceptance_long" $(PYTEST_ARGS)

reproduce: $(STAMP) ## Run the experiments of docs/reproduce in full (hours; they go on where stopped)
	@mkdir -p docs/reproduce/results
	@set -e; for name in $(EXPERIMENTS); do \
	    $(BIN)/fedsift reproduce $$name --jobs 2 --out build/reproduce/$$name; \
	    cp build/reproduce/$$name/page.md docs/reproduce/results/$$name.md; \
	    cp build/reproduce/$$name/*.png docs/reproduce/results/; done

bench: $(STAMP) ## Run the benchmarks that need no peer; each prints JSON
	@test -n "$(BENCHES)" || { echo "no benchmarks/*.py to run" >&2; exit 2; }
	@set -e; for bench in $(BENCHES); do echo "$$bench" >&2; $(BIN)/python "$$bench"; done

$(PEERS_STAMP): pyproject.toml constraints.txt benchmarks/requirements-peers.txt
	@$(PEERS)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --no-input --disable-pip-version-check \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt \
	    -r benchmarks/requirements-peers.txt -e .
	$(PEERS)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps $(PFL)
	@touch $@

bench-peers: $(PEERS_STAMP) ## Run the benchmarks against other libraries; each prints JSON
	@set -e; for bench in $(PEER_BENCHES); do \
	    echo "$$bench" >&2; $(PEERS)/bin/python "$$bench" $(BENCH_ARGS); done

bench-docs: $(PEERS_STAMP) ## Run the benchmarks of docs/speed.md and write it
	@mkdir -p build/bench
	@set -e; for bench in $(SPEED); do echo "$$bench" >&2; \
	    $(PEERS)/bin/python "$$bench" $(BENCH_ARGS) > build/bench/$$(basename "$$bench" .py).json; done
	$(PEERS)/bin/python scripts/speed_page.py build/bench/*.json

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS) ## Build the documentation into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

notebooks: $(DOCS) ## Run the notebooks of docs/notebooks and keep their outputs
	$(BIN)/python scripts/run_notebooks.py

audit: $(STAMP) ## Look for known vulnerabilities in the pinned versions (asks the package index)
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

hooks: $(STAMP) ## Install the git hooks
	$(BIN)/pre-commit install

clean: ## Remove caches and build output
	rm -rf build dist .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove the environments too
	rm -rf $(VENV) $(PEERS)
