# `make` alone lists the targets; each `##` comment is a line of that list.

PYTHON ?= python3
BIN := .venv/bin
FLINK := apache-flink==2.3.0
BYTEWAX := bytewax==0.21.1 pyarrow numpy
PATHWAY := pathway==0.33.0

# Spark's Python workers must be this environment's interpreter, else they find no pyarrow.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# A machine's own name may not resolve; one machine is all that is used here.
export SPARK_LOCAL_IP := 127.0.0.1
# Fewer and shorter runs of make bench (benchmarks/_quick.py).
export QUICK
# Another Spark on this machine must not take the place of the one that setup.cfg pins.
unexport SPARK_HOME

.PHONY: help java setup demo test soak lint check site chaos bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s  %s\n", $$1, $$2}' Makefile

setup: java .venv/.setup ## make .venv with absflow and its tools (again when setup.cfg changed)

demo: setup ## run the flights job on this machine (STORE=s3 or hdfs: on a server of that, started with it)
	@$(if $(STORE),$(BIN)/python tests/spark/demo.py $(STORE),\
	  $(BIN)/spark-submit --properties-file conf/flights.conf jobs/flights.py)

test: setup .cache/jvm/classes.jsa ## run the tests, but for those of soak and chaos, in two processes
	@$(BIN)/python -m pytest --numprocesses 2

soak: setup .cache/jvm/classes.jsa ## the tests that take too long for make test, in two processes
	@$(BIN)/python -m pytest -m soak --numprocesses 2

lint: setup ## ruff, mypy, direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@cd benchmarks && ../$(BIN)/mypy --config-file mypy.ini .
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import_linter

check: lint ## lint, and the tests that need no JVM, in three minutes: before every commit
	@$(BIN)/python -m pytest --numprocesses 2 -m "not spark"

site: setup ## the docs as a site, in .cache/site; a broken link is an error
	@$(BIN)/python -m mkdocs build --strict

chaos: setup .cache/jvm/classes.jsa ## kill the driver with SIGKILL KILLS=120 times, from SEED= (JOB=generator, flights or clock; STORE=s3 or hdfs; SINK=kafka or postgres)
	@$(BIN)/python tests/chaos/chaos.py \
	  $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) $(if $(JOB),--job $(JOB)) \
	  $(if $(STORE),--store $(STORE)) $(if $(SINK),--sink $(SINK))

bench: setup .venv/.bench .venv-flink/.setup .venv-bytewax/.setup .venv-pathway/.setup ## run each program in benchmarks/, with peers (WRITE=1: figures into docs/figures; QUICK=1: fewer and shorter runs, in 25 minutes)
	@if [ -n "$(QUICK)" ] && [ -n "$(WRITE)" ]; then \
	  echo "found QUICK=$(QUICK) and WRITE=$(WRITE); quick figures are not for the docs: make bench WRITE=1"; exit 1; fi
	@failed=; for program in benchmarks/[a-z]*.py; do echo "== $$program"; \
	  case $$program in *_flink.py) python=.venv-flink/bin/python;; *) python=$(BIN)/python;; esac; \
	  write=; if [ -n "$(WRITE)" ] && grep -q "^from _results" $$program; then write=--write; fi; \
	  $$python $$program $$write || failed="$$failed $$program"; done; \
	  if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

clean: ## delete caches and what Spark left behind (.venv stays)
	@rm -rf .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@rm -rf build dist *.egg-info spark-warehouse metastore_db derby.log artifacts
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

java:
	@sh .ci/java_check.sh

# PyFlink pins other versions of what absflow needs, and only benchmarks want it.
.venv-flink/.setup: | java
	@echo "setting up .venv-flink (PyFlink, about 850 MB) ..."
	@test -x .venv-flink/bin/python || $(PYTHON) -m venv .venv-flink
	@.venv-flink/bin/python -m pip install --quiet --disable-pip-version-check $(FLINK)
	@touch $@

.venv/.bench: .venv/.setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

.venv-bytewax/.setup:
	@echo "setting up .venv-bytewax ..."
	@test -x .venv-bytewax/bin/python || $(PYTHON) -m venv .venv-bytewax
	@.venv-bytewax/bin/python -m pip install --quiet --disable-pip-version-check $(BYTEWAX)
	@touch $@

.venv-pathway/.setup:
	@echo "setting up .venv-pathway ..."
	@test -x .venv-pathway/bin/python || $(PYTHON) -m venv .venv-pathway
	@.venv-pathway/bin/python -m pip install --quiet --disable-pip-version-check $(PATHWAY)
	@touch $@

# For the drivers of the tests, which start without it, too, in twice the time.
.cache/jvm/classes.jsa: .venv/.setup tests/spark/class_archive.py
	@echo "keeping the classes of Spark for the tests' drivers ..."
	-@$(BIN)/python tests/spark/class_archive.py >/dev/null 2>&1

# The stamp is written last, so that a setup that failed is done again.
.venv/.setup: setup.cfg setup.py | java
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { echo \
	  "found $$({ $(PYTHON) --version || echo nothing; } 2>&1 | tail -n 1) ('$(PYTHON)'); absflow needs Python 3.10 or newer: make setup PYTHON=/path/to/python3" \
	  >&2; exit 1; }
	@echo "setting up .venv ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 -e '.[dev,flights]'
	@touch $@
