# Every command sets up what it needs by itself, in $(VENV), and only when something changed:
#
#   made       a virtual environment (scripts/venv chooses the Python)
#   locked     requirements.lock and requirements-source.lock, every file checked against its hash
#   installed  the wheel, rebuilt when anything under src/ changed. Tests, demo and benchmarks run the installed
#              wheel and never src/, so a file that the wheel forgets is a failing test.
#
# Each stamp is touched before its step and moved into place after it: a source saved during a build is newer
# than the stamp, and the next run builds again.

VENV   ?= .venv
PYTHON ?=
JOBS   ?= auto
SPARKS ?= 2
ARGS   ?=
BENCH  ?= protocols

UV := uv==0.13.7

# What the shell has exported must not decide which antecede is imported, nor that each process of the tests compiles
# all tests again.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PYTHON

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Its name holds the PYTHON asked for, so asking for another one makes the environment anew.
MADE      := $(VENV)/.made$(subst /,-,$(PYTHON))
LOCKED    := $(VENV)/.locked
INSTALLED := $(VENV)/.installed

# Directories too: their times tell that a file was removed.
SOURCES := $(shell find src -name __pycache__ -prune -o -print 2>/dev/null)
CHECKED := $(wildcard src tests benchmarks experiments examples)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'make test ARGS="-k reply"   arguments for pytest (JOBS=0 SPARKS=0: in one process)'
	@echo 'make test PYTHON=python3.12 VENV=.venv-3.12   another Python, beside the usual one'

# Spark runs on it.
.PHONY: java
java:
	@scripts/java

# Spark's classes, so that each Java starts in half the time (src/antecede/spark/class_archive.py). Nothing needs it.
.PHONY: archive
archive: $(INSTALLED) java
	@$(BIN)/python -m antecede.spark.class_archive >/dev/null || true

.PHONY: demo
demo: $(INSTALLED) java ## see messages delivered out of order, and in causal order
	@$(if $(ARGS),,rm -rf demo)
	@$(BIN)/antecede demo $(or $(ARGS),--out demo)

# Both parts run at once: tests on Spark wait for Spark most of the time and leave the others most of a core. They go
# first, in two processes, file by file and the longest first (tests/spark/conftest): the last of them decides when all is
# done, and a further process would cost more Javas than it gains. So the others are nice, and are shown in one piece at
# the end. Both parts run to their end, so that one report tells all. A debugger (JOBS=0) gets one after the other.
# 5: no test has the name asked for.
REST   = nice -n 5 $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --ignore tests/spark $(ARGS)
SPARK  = $(BIN)/python -m pytest -n $(SPARKS) --dist loadgroup --no-loadscope-reorder tests/spark $(ARGS)
FAILED = [ $$? = 5 ] || failed=1

.PHONY: test
test: $(INSTALLED) java archive ## run the tests on the installed wheel
ifeq ($(JOBS),0)
	@$(REST) || $(FAILED); $(SPARK) || $(FAILED); exit $${failed:-0}
else
	@mkdir -p build; trap 'kill $$rest 2>/dev/null' EXIT; trap 'exit 1' INT TERM; \
	$(REST) >build/tests.txt 2>&1 & rest=$$!; \
	$(SPARK) || $(FAILED); \
	wait $$rest || $(FAILED); \
	cat build/tests.txt; exit $${failed:-0}
endif

# The oldest PySpark that pyproject.toml allows, beside the locked one. It is fetched, so no other command needs it.
LOWEST := $(shell sed -n 's/.*pyspark\[connect\]>=\([0-9.]*\).*/\1/p' pyproject.toml)

.PHONY: lowest
lowest: $(INSTALLED) java ## run every step once on the oldest PySpark that is supported
	[ -d $(VENV)/pyspark-$(LOWEST) ] || $(PIP) install --quiet --no-deps --no-build-isolation \
	    --target $(VENV)/pyspark-$(LOWEST) pyspark==$(LOWEST)
	PYTHONPATH=$(VENV)/pyspark-$(LOWEST) $(BIN)/python -c 'import pyspark; assert pyspark.__version__.startswith("$(LOWEST)")'
	PYTHONPATH=$(VENV)/pyspark-$(LOWEST) $(BIN)/python -m pytest tests/spark/test_each_step.py

.PHONY: soak
soak: $(INSTALLED) ## draw runs with faults and check each, for two minutes
	$(BIN)/antecede soak $(or $(ARGS),--seconds 120 --messages 2000)

.PHONY: soak-nodes
soak-nodes: $(INSTALLED) ## run whole simulated systems under fire for two minutes, with a fresh seed
	$(BIN)/antecede soak --nodes $(or $(ARGS),--seconds 120 --messages 2000 --seed $(shell date +%s) --shrink)

.PHONY: check
check: $(INSTALLED) ## lint, format, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CHECKED)
	$(BIN)/python -m pytest -q tests/test_imports.py

.PHONY: format
format: $(LOCKED) ## repair what ruff can: formatting, order of imports
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: docs
docs: $(INSTALLED) ## build the site into build/site, and check every link (ARGS=serve: show it while you write)
	$(BIN)/python scripts/site_pages.py build/pages
	$(BIN)/zensical $(or $(ARGS),build --strict) --config-file mkdocs.yml

.PHONY: bench
bench: $(INSTALLED) java ## run a benchmark: BENCH=protocols, sim, reach, optimisations, net or spark
	$(BIN)/python -m benchmarks.$(BENCH) $(ARGS)

.PHONY: install
install: $(INSTALLED) ## set up .venv with the locked dependencies and the wheel, and nothing more

.PHONY: lock
lock: ## refresh requirements.lock from pyproject.toml (ARGS=--upgrade: newest versions)
	scripts/venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip --disable-pip-version-check install --quiet $(UV)
	$(VENV)-lock/bin/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	    --generate-hashes --no-header --quiet --no-emit-package pyspark --output-file requirements.lock $(ARGS)
	echo pyspark | $(VENV)-lock/bin/uv pip compile - --no-deps --universal --python-version 3.11 \
	    --generate-hashes --no-header --quiet --output-file requirements-source.lock $(ARGS)
	rm -rf $(VENV)-lock

.PHONY: clean
clean: ## remove everything that these commands made
	rm -rf $(VENV) $(VENV)-lock demo build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests $(wildcard benchmarks examples scripts) -name __pycache__ -prune -exec rm -rf {} +

$(MADE):
	@scripts/venv $(VENV)
	@touch $@

# PySpark is published as source only. It is built by what the first lock installs, so nothing unlocked runs.
$(LOCKED): requirements.lock requirements-source.lock $(MADE)
	@touch $@.new
	$(PIP) install --quiet --require-hashes --only-binary :all: -r requirements.lock
	$(PIP) install --quiet --require-hashes --no-deps --no-build-isolation -r requirements-source.lock
	@mv $@.new $@

# Nothing is fetched here: the build backend is a locked one, and `pip check` fails if the wheel asks for more
# than the lock gives.
$(INSTALLED): pyproject.toml LICENSE $(wildcard README.md) $(SOURCES) $(LOCKED)
	@touch $@.new
	@rm -rf $(VENV)/wheel
	@$(PIP) wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir $(VENV)/wheel .
	@$(PIP) install --quiet --no-index --no-deps --force-reinstall $(VENV)/wheel/*.whl
	@$(PIP) check >$(VENV)/pip-check.txt || { cat $(VENV)/pip-check.txt >&2; echo 'antecede: run make lock' >&2; exit 1; }
	@mv $@.new $@
