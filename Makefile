# Every target sets itself up: it needs Python 3.11 or newer and, the first time, the package index that pip uses.
# Override the interpreter with:  make demo PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
CODE   := $(wildcard src tests examples bench)
FAST   := $(wildcard tests/unit tests/invariants)
# A process per core, each with servers of its own; a file's tests stay together, because they share what is slow to start.
# One process, if time does not matter and nothing else is to disturb a test:  make test JOBS=0
JOBS   ?= auto
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --maxprocesses=4 --dist=loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test check bench docs clean

help:  ## what can be made (this list)
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime  ## a worker is killed in the middle of a turn, and the turn goes on: no key, no network
	@$(BIN)/perdure demo

test: $(VENV)/.dev  ## the whole test suite
	@$(PYTEST)

check: $(VENV)/.dev  ## before each commit: format, lint, types, layers, fast tests
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy $(CODE)
	@$(BIN)/pyright $(CODE)
	@$(PYTEST) -q $(FAST)

bench: $(VENV)/.dev  ## durable turns against the same turns on raw ADK, as ratios
	@$(BIN)/python -m bench

docs: $(VENV)/.dev  ## run every code block of the README and docs/, and check their links (nothing is built yet)
	@$(BIN)/python -m pytest -q tests/docs

clean:  ## remove the environment and all caches
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	@find src tests -name __pycache__ -prune -exec rm -rf {} +

# Two stamps, so that the demo does not wait for what only tests need.  A change of the pins renews both.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("perdure needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	@echo "setting up $(VENV) (once; about half a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "adding what tests and checks need (once)"
	@$(PIP) -e '.[dev]'
	@touch $@
