# Everything sets itself up: `make run` and `make test` need Python 3.11, make and the package registries.
SHELL := /bin/bash
# The system's own where it is new enough: our packages run on it, and one that was built without profiling costs a third
# more for each mail.
PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready
# One more than there are processors: many tests wait for something.
TEST_PROCESSES ?= $(shell echo $$(($$(nproc) + 1)))

.PHONY: help run test test-faults test-systemd test-tools lint format docs site dist packages dashboard-picture bench bench-service bench-lists bench-overload bench-memory fuzz clean

help:                           ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

run: $(RUN_READY)               ## start the embedded default: bridge and scanning service
	@exec $(BIN)/scanbridge run

# Hundreds of programs are started: without bytecode each would compile all of it again.
test: export PYTHONDONTWRITEBYTECODE =
test: $(DEV_READY)              ## all tests, with the real servers they talk to
	deploy/test-servers.sh
	$(BIN)/python -m pytest -q --tb=short -n $(TEST_PROCESSES) --dist worksteal

test-faults: $(DEV_READY)       ## the long fault run, MINUTES=20; its result goes into docs/understand/faults.md
	deploy/test-servers.sh
	$(BIN)/python -m tests.faults.rig --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED))

fuzz: $(DEV_READY)              ## strangers' bytes, SECONDS=60 for each target; ONLY="..." for some of them
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[fuzz]' 2>/dev/null || echo "atheris cannot be built here (it needs clang): our own runner takes its place"
	$(BIN)/python -m tests.fuzz.fuzz --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(ONLY)

test-systemd: $(DEV_READY)      ## the units under a real systemd; its result goes into docs/operate/systemd.md
	deploy/test-servers.sh
	$(BIN)/python -m tests.systemd.machine $(ONLY)

test-tools: $(DEV_READY)        ## nmap, sslscan, testssl.sh, schemathesis and others; the result goes into docs/evidence/tools.md
	deploy/test-servers.sh
	@command -v testssl >/dev/null || apt-get install -y -qq --no-install-recommends testssl.sh || echo "testssl.sh cannot be installed here"
	$(BIN)/python -m tests.tools.examine $(ONLY)

lint: $(DEV_READY)              ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_READY)            ## put the code into its style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: $(DEV_READY)              ## these documents as a site, into build/site; broken links and pages nobody finds fail
	$(BIN)/mkdocs build --strict

docs: $(DEV_READY)              ## the references that are made from the code
	$(BIN)/python -m tools.generate
	$(BIN)/python deploy/mixin/dashboard.py
	$(BIN)/python -m bridge.service.openapi > docs/reference/openapi.json

dist: $(DEV_READY)              ## wheel and source archive, into dist/
	$(BIN)/uv build --quiet --out-dir dist

packages: $(DEV_READY)          ## Debian and RPM package, into dist/; ARCH=amd64 for another processor
	$(BIN)/python deploy/package/build.py $(if $(ARCH),--arch $(ARCH))

dashboard-picture: $(DEV_READY)  ## docs/operate/dashboard.png, from a run of some minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check matplotlib
	$(BIN)/python -m tools.draw_dashboard

bench: $(DEV_READY)             ## our bridge beside its peers: docs/evidence/benchmarks (15 minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	deploy/test-servers.sh
	$(BIN)/python bench/speed.py

bench-service: $(DEV_READY)     ## what the scanning service can do
	$(BIN)/python bench/service.py

bench-lists: $(DEV_READY)       ## what the List API and its client can do
	$(BIN)/python bench/lists.py

bench-overload: $(DEV_READY)    ## ten times the scanner's capacity, beside what one would write first
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python bench/overload.py --write docs/evidence/benchmarks/overload.md

bench-memory: $(DEV_READY)      ## memory under each attack, beside stock aiosmtpd: docs/evidence/memory.md
	$(BIN)/python bench/memory.py

clean:                          ## remove what the other commands made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis fuzz-findings dist build/site
	find . -name __pycache__ -prune -exec rm -rf {} +

# A changed pyproject.toml means a new look at the dependencies; else nothing is done.
$(RUN_READY): pyproject.toml | $(BIN)/python
	$(PIP) .
	@touch $@

$(DEV_READY): pyproject.toml | $(BIN)/python
	$(PIP) '.[dev]'
	@touch $(RUN_READY) $@

# Debian ships venv in a package of its own.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "installing python3-venv"; \
	  apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); } \
	  || { rm -rf $(VENV); echo "a virtual environment cannot be made: install python3-venv and try again"; exit 1; }
