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
USER_STAMP := $(VENV)/.stamp-user
STAMP := $(VENV)/.stamp
BENCH_STAMP := $(VENV)/.stamp-bench
DOCS_STAMP := $(VENV)/.stamp-docs
PEERS := $(VENV)/peers
PEERS_STAMP := $(PEERS)/.stamp
# Two more than two cores: nearly half of the time a test waits for a process, a server or a clock.
WORKERS := 4
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# What an installation is made from.
SOURCES := pyproject.toml hatch_build.py src/plait/adapters/process/warm.c src/plait/adapters/process/guardian.c
CANDIDATES := python3 python3.13 python3.12 python3.11
# `import ensurepip`: Debian's python3 without python3-venv cannot make an environment.
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# Where it is set, as in many containers, each worker of pytest compiles every test anew: ten seconds each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test coverage browser check interpreters format lint types fuzz attack crash bench compare figures docs docs-examples release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(USER_STAMP) ## see a real run
	@$(BIN)/python examples/demo.py

test: $(STAMP) browser ## run the tests
	@echo "plait: tests"
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

browser: $(STAMP) ## get Chromium and the packages that the browser tests need, where that is possible
	@$(BIN)/python tests/browser/install.py

# Tests that bound what a start loads can fail here: coverage itself is loaded.  `make test` decides.
coverage: $(STAMP) ## show which lines no test executes, also of processes that the tests start
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/coverage run -m pytest -n $(WORKERS) $(ARGS) || echo "plait: some tests failed; the report counts what ran"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage html --quiet
	@$(BIN)/coverage report

check: lint types docs interpreters ## everything that must hold before a commit: format, lint, types, the site, tests on every Python

interpreters: $(STAMP) browser ## run the tests on every Python that pyproject.toml names and that is here
	@PYTHON=$(PYTHON) $(BIN)/python tests/interpreters.py $(if $(FETCH),--fetch) -n $(WORKERS) $(ARGS)

format: $(STAMP) ## put the code into its standard form
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(STAMP) ## check form and lint rules, also of the release workflow and the action
	@echo "plait: format and lint"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/zizmor --offline --quiet --no-progress --strict-collection --persona=pedantic .github action.yml
	@$(BIN)/pre-commit validate-config .pre-commit-config.yaml
	@$(BIN)/pre-commit validate-manifest .pre-commit-hooks.yaml

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

attack: $(STAMP) ## hostile processes, swapped files, links that race, hostile requests, the guardian under valgrind
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

docs: $(DOCS_STAMP) ## build the documentation site into build/site, and follow its links
	@echo "plait: documentation"
	@$(BIN)/python docs/site/build.py

docs-examples: $(STAMP) ## run the examples of the documentation
	@$(BIN)/python -m pytest tests/test_docs.py $(ARGS)

release: $(STAMP) ## build the source and the wheels into dist, install each and run the demo with it
	@$(BIN)/python tests/release.py

clean: ## remove the environment, caches and built files
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that no longer starts (moved, or its python was removed) is made anew.
define make_venv
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
endef

# What a user has: the demo needs no more, and compiles only the modules that it imports.
$(USER_STAMP): $(SOURCES)
	$(make_venv)
	@echo "plait: installing the project (only when it changes)"
	@$(PIP) install --quiet --no-compile --editable .
	@touch $@

# The tools of the tests, too.  It installs all that the other stamp stands for.
$(STAMP): $(SOURCES)
	$(make_venv)
	@echo "plait: installing the project and the tools of its tests (only when they change)"
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $(USER_STAMP) $@

$(DOCS_STAMP): $(USER_STAMP)
	@echo "plait: installing the generator of the documentation"
	@$(PIP) install --quiet --editable '.[docs]'
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
