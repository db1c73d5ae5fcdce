# Everything a contributor runs.  `make` lists the targets.
# PYTHON=…     the interpreter that makes .venv (default: the first python ≥ 3.11 on the PATH)
# FETCH=1      `make check` downloads interpreters that are missing, where it can
# FUZZ_RUNS=…  how many random cases each fuzz script tries (default: each script's own full number)
# OLD=…        the checkout that `make compare` compares with
# ARGS=…       further arguments for pytest, `make bench` and `make compare`

PYTHON ?=
FETCH ?=
FUZZ_RUNS ?=
OLD ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
BENCH_STAMP := $(VENV)/.stamp-bench
PEERS := $(VENV)/peers
PEERS_STAMP := $(PEERS)/.stamp
# One more than two cores: a third of the time a test waits for a process, a server or a clock.
WORKERS := 3
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
CANDIDATES := python3 python3.13 python3.12 python3.11
# `import ensurepip`: Debian's python3 without python3-venv cannot make an environment.
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# Where it is set, as in many containers, each worker of pytest compiles every test anew: ten seconds each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check interpreters format lint types fuzz attack crash bench compare figures docs-examples wheels clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## see a real run
	@$(BIN)/python examples/demo.py

test: $(STAMP) ## run the tests
	@echo "plait: tests"
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

check: lint types interpreters ## everything that must hold before a commit: format, lint, types, tests on every Python

interpreters: $(STAMP) ## run the tests on every Python that pyproject.toml names and that is here
	@PYTHON=$(PYTHON) $(BIN)/python tests/interpreters.py $(if $(FETCH),--fetch) -n $(WORKERS) $(ARGS)

format: $(STAMP) ## put the code into its standard form
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(STAMP) ## check form and lint rules
	@echo "plait: format and lint"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

types: $(STAMP) ## check types, strictly
	@echo "plait: types"
	@$(BIN)/mypy

fuzz: $(STAMP) ## the long proofs by random cases (FUZZ_RUNS=… for a shorter run)
	@set -e; for script in tests/fuzz/*_fuzz.py; do \
	  echo "plait: $$script"; \
	  $(BIN)/python "$$script" $(if $(FUZZ_RUNS),--runs $(FUZZ_RUNS)); \
	done
	@echo "plait: the properties, with all their examples"
	@PLAIT_WHOLE=1 $(BIN)/python -m pytest -n $(WORKERS) -m hypothesis
	@PLAIT_WHOLE=1 $(BIN)/python -m pytest -n $(WORKERS) -m share tests/template

attack: $(STAMP) ## hostile processes, swapped files, links that race, the guardian under valgrind
	@set -e; for script in tests/attack/*_attack.py; do \
	  echo "plait: $$script"; \
	  $(BIN)/python "$$script"; \
	done

crash: $(STAMP) ## kills, signals, full disks and power cuts in the middle of runs
	@PYTHONPATH=tests $(BIN)/python -m crash.crash
	@echo "plait: the tests that run a share otherwise: every call of git is the last one, and more"
	@PLAIT_WHOLE=1 $(BIN)/python -m pytest -n $(WORKERS) -m share --ignore=tests/template

bench: $(BENCH_STAMP) $(PEERS_STAMP) ## measure, and write docs/benchmarks.md
	@BENCH_PEERS_PYTHON=$(PEERS)/bin/python $(BIN)/python bench/run.py $(ARGS)

compare: $(STAMP) ## compare with another checkout by computing time (OLD=its folder)
	@$(BIN)/python bench/compare.py $(OLD) $(ARGS)

figures: $(STAMP) ## print how the code reads, in figures
	@$(BIN)/python bench/figures.py

docs-examples: $(STAMP) ## run the examples of the documentation
	@$(BIN)/python -m pytest tests/test_docs.py $(ARGS)

wheels: $(STAMP) ## build the source and the wheels into dist, install each and run a flow with it
	@$(BIN)/python tests/wheels.py

clean: ## remove the environment, caches and built files
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that no longer starts (moved, or its python was removed) is made anew.
$(STAMP): pyproject.toml hatch_build.py src/plait/adapters/process/warm.c src/plait/adapters/process/guardian.c
	@set -e; if ! $(BIN)/python -c '$(USABLE)' 2>/dev/null; then \
	  for python in $(or $(PYTHON),$(CANDIDATES)); do \
	    if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "plait: no usable python among: $(or $(PYTHON),$(CANDIDATES))" >&2; \
	    echo "fix: install Python 3.11 or newer with its venv module (Debian: apt install python3-venv)," >&2; \
	    echo "     or name one: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "plait: making $(VENV) with $$found ($$("$$found" --version 2>&1))"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@echo "plait: installing the project and its tools (only when they change)"
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@

$(BENCH_STAMP): $(STAMP)
	@echo "plait: installing what the benchmarks compare with"
	@$(PIP) install --quiet --editable '.[bench]'
	@touch $@

# Without them the tables say "not installed"; they need a network and half a gigabyte.
$(PEERS_STAMP): $(STAMP)
	@echo "plait: installing the engines that a map is compared with, into $(PEERS)"
	@$(BIN)/python -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip --disable-pip-version-check --no-input install --quiet '.[peers]' \
	  || echo "plait: they could not be installed; the benchmarks go on without them"
	@touch $@
