# Everything sets itself up: `make run` and `make test` need Python 3.11, make and the package registries.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test lint format docs clean

run: $(READY)                   ## start the embedded default: bridge and scanning service
	$(BIN)/scanbridge run

test: $(READY)                  ## all tests, with the real servers they talk to
	deploy/test-servers.sh
	$(BIN)/python -m pytest -q

lint: $(READY)                  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)                  ## the references that are made from the code
	$(BIN)/python docs/generate.py

# A new pyproject.toml means a new look at the dependencies; else nothing is done.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed"; exit 1; }
	@test -x $(BIN)/python && $(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv $(VENV) \
	  || { echo "installing python3-venv"; rm -rf $(VENV); apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	find . -name __pycache__ -prune -exec rm -rf {} +
