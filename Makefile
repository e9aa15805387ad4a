# `make run` and `make test` install what they need; they require Python 3.11 or later, make and a Python package index.
SHELL := /bin/bash
# Prefer the system's Python if it is new enough: our packages run on it, and a Python that was built without
# profile-guided optimisation needs a third more CPU per mail.
PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready
# Three more than the number of processors, because many tests spend time waiting.
TEST_PROCESSES ?= $(shell echo $$(($$(nproc) + 3)))

PACKAGE_EXTRAS := all
AUDIT_OPTIONS := --strict
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

.PHONY: help setup lock audit run cluster test test-long test-faults test-cluster test-fresh test-systemd test-tools test-pythons test-upgrade test-packages lint format docs site dist packages release release-check dashboard-picture console-pictures bench bench-service bench-analysis bench-history bench-queue bench-connections bench-lists bench-overload bench-memory bench-console bench-digests bench-commands digest-pictures translations evaluate fuzz clean

help:                           ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: $(DEV_READY)             ## prepare .venv for development, and do nothing else

run: $(RUN_READY)               ## start the embedded default: the bridge and the scanning service
	@exec $(BIN)/scanbridge run --demo

cluster: $(DEV_READY)           ## start a whole cluster on this machine: NATS, PostgreSQL, HAProxy, bridges, workers (deploy/cluster)
	deploy/test-servers.sh
	@exec $(BIN)/python -m deploy.cluster.up $(or $(DIR),build/cluster)

# The tests start hundreds of programs, and without bytecode, each would compile everything again.
test test-long: export PYTHONDONTWRITEBYTECODE =
test: $(DEV_READY)              ## run all tests except the long ones, with the real servers that they use
	deploy/test-servers.sh
	$(BIN)/python -m pytest -q --tb=short -n $(TEST_PROCESSES) --dist worksteal --cache-clear || $(BIN)/python -m tests.failed_again $$?

test-long: $(DEV_READY)         ## run the long tests: what `make test` tests, with more cases, more data and other servers
	deploy/test-servers.sh
	$(BIN)/python -m pytest -q --tb=short -n $(TEST_PROCESSES) --dist worksteal -m long

test-faults: $(DEV_READY)       ## run the long fault test for MINUTES=20; the result goes into docs/evidence/trials.md
	deploy/test-servers.sh
	$(BIN)/python -m tests.faults.rig --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED))

test-cluster: $(DEV_READY)      ## kill, freeze, fill up and cut off the nodes of a cluster for MINUTES=20; the result goes into docs/evidence/cluster.md
	deploy/test-servers.sh
	$(BIN)/python -m tests.cluster.rig --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED))

fuzz: $(DEV_READY)              ## fuzz the parsers for SECONDS=60 per target; ONLY="..." selects targets
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[fuzz]' 2>/dev/null || echo "atheris cannot be built here (it needs clang): using our own runner instead"
	$(BIN)/python -m tests.fuzz.fuzz --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(ONLY)

test-fresh: $(DEV_READY)        ## run all tests on empty machines, as a user and as root; the result goes into docs/evidence/trials.md
	deploy/test-servers.sh
	$(BIN)/python -m tests.fresh.machine $(ONLY)

test-systemd: $(DEV_READY)      ## test the units under a real systemd; the result goes into docs/evidence/trials.md
	deploy/test-servers.sh
	$(BIN)/python -m tests.systemd.machine $(ONLY)

test-tools: $(DEV_READY)        ## run nmap, sslscan, testssl.sh, schemathesis and others; the result goes into docs/evidence/tools.md
	deploy/test-servers.sh
	@command -v testssl >/dev/null || apt-get install -y -qq --no-install-recommends testssl.sh || echo "testssl.sh cannot be installed here"
	$(BIN)/python -m tests.tools.examine $(ONLY)

test-upgrade: export PYTHONDONTWRITEBYTECODE =
test-upgrade: $(DEV_READY)      ## upgrade from version 0.1.0 under load, then downgrade again
	deploy/test-servers.sh
	$(BIN)/python -m pytest -q --tb=short -m long tests/upgrade

test-packages: export PYTHONDONTWRITEBYTECODE =
test-packages: $(DEV_READY)     ## install the packages on empty systems (Debian 12 and 13, rpm, wheel) and send mail through them
	deploy/test-servers.sh
	$(BIN)/python -m pytest -q --tb=short -m long -k "not lintian" tests/packages/test_{debian,rpm,wheel}.py

test-pythons: export PYTHONDONTWRITEBYTECODE =
test-pythons: $(DEV_READY)      ## run the unit tests on every supported Python version available here; ONLY="3.13 3.14" selects versions
	deploy/test-servers.sh
	$(BIN)/python -m tests.pythons $(ONLY)

lint: $(DEV_READY)              ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_READY)            ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: $(DEV_READY)              ## build the documentation as a site in build/site; fails if a link is broken or a page is not in the navigation
	$(BIN)/mkdocs build --strict

docs: $(DEV_READY)              ## regenerate the references, man pages and dashboard from the code
	$(BIN)/python -m tools.generate
	$(BIN)/python deploy/mixin/dashboard.py
	$(BIN)/python -m bridge.service.openapi > docs/reference/openapi.json

dist: $(DEV_READY)              ## build the wheel and the source archive in dist/
	$(BIN)/uv build --quiet --out-dir dist

packages: $(DEV_READY)          ## build the Debian and RPM packages in dist/; ARCH=amd64 selects another processor architecture
	$(BIN)/python deploy/package/build.py $(if $(ARCH),--arch $(ARCH))

release: $(DEV_READY)           ## build all packages with checksums in dist/, signed with MINISIGN_KEY=FILE or GPG_KEY=ID (docs/develop/release.md)
	$(BIN)/python -m tools.release $(if $(TAG),--tag '$(TAG)') $(if $(MINISIGN_KEY),--minisign-key '$(MINISIGN_KEY)') $(if $(GPG_KEY),--gpg-key '$(GPG_KEY)')

release-check: $(DEV_READY)     ## check whether this commit may be released; ONLY="docs sbom" selects steps; the result goes into docs/evidence/release-check.md
	$(BIN)/python -m tools.release_check $(ONLY)

dashboard-picture: $(DEV_READY)  ## draw docs/operate/dashboard.png from a run of a few minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check matplotlib
	$(BIN)/python -m tools.draw_dashboard

console-pictures: export PYTHONDONTWRITEBYTECODE =
console-pictures: $(DEV_READY)  ## take screenshots of the console's pages, for docs/images
	deploy/test-servers.sh
	SCREENSHOTS=docs/images $(BIN)/python -m pytest -q -m "long or not long" tests/console/test_console_browser.py tests/console/test_console_work.py

bench: $(DEV_READY)             ## compare this bridge with others (15 minutes); the result goes into docs/evidence/benchmarks
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	deploy/test-servers.sh
	$(BIN)/python bench/speed.py

bench-service: $(DEV_READY)     ## measure the scanning service
	$(BIN)/python bench/service.py

bench-analysis: $(DEV_READY)    ## measure the analysis of the mails in CORPUS=..., compared with rspamd; the result goes into docs/evidence/analysis.md
	@test -n "$(CORPUS)" || { echo "usage: make bench-analysis CORPUS=DIR, with DIR/ham/SOURCE/* and DIR/phishing/SOURCE/*"; exit 2; }
	$(BIN)/python bench/analysis.py $(CORPUS) --out docs/evidence/analysis.md

bench-queue: $(DEV_READY)       ## measure what the queue in NATS costs; the result goes into docs/evidence/queue.md
	$(BIN)/python bench/queue_cost.py --out docs/evidence/queue.md

bench-connections: $(DEV_READY) ## measure the load of fifty bridges on one PostgreSQL server; the result goes into docs/understand/scale.md
	$(BIN)/python bench/connections.py --write

bench-history: $(DEV_READY)      ## fill a history with ten million mails and search it; the result goes into docs/evidence/history.md
	$(BIN)/python bench/history.py --out docs/evidence/history.md

bench-console: $(DEV_READY)     ## measure the console's pages with a million mails; the result goes into docs/evidence/console.md
	$(BIN)/python bench/console.py --out docs/evidence/console.md

bench-digests: $(DEV_READY)     ## send digests to 100,000 people, killing the sender several times; the result goes into docs/evidence/digests.md
	$(BIN)/python bench/digests.py --out docs/evidence/digests.md

bench-commands: export PYTHONDONTWRITEBYTECODE =
bench-commands: $(DEV_READY)    ## measure how quickly commands start; the result goes into docs/evidence/commands.md
	$(BIN)/python bench/commands.py --out docs/evidence/commands.md

digest-pictures: export PYTHONDONTWRITEBYTECODE =
digest-pictures: $(DEV_READY)   ## take screenshots of the digests and the pages for users, for docs/images
	SCREENSHOTS=docs/images $(BIN)/python -m pytest -q -m "long or not long" tests/digests/test_digest_mail_server.py

translations: $(DEV_READY)      ## compile the translations of the texts for users
	$(BIN)/python -m tools.translations

bench-lists: $(DEV_READY)       ## measure the List API and its client
	$(BIN)/python bench/lists.py

bench-overload: $(DEV_READY)    ## measure the bridge at ten times the scanner's capacity, compared with a naive bridge
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python bench/overload.py --write docs/evidence/benchmarks/overload.md

bench-memory: $(DEV_READY)      ## measure memory use under attack, compared with stock aiosmtpd; the result goes into docs/evidence/memory.md
	$(BIN)/python bench/memory.py

evaluate: $(DEV_READY)          ## measure phishing detection with the mails in CORPUS=..., with SAMPLE=... from each source; the result goes into docs/evidence/detection.md
	@test -n "$(CORPUS)" || { echo "usage: make evaluate CORPUS=DIR, with DIR/ham/SOURCE/* and DIR/phishing/SOURCE/*"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train]'
	deploy/test-servers.sh
	$(BIN)/python -m tools.evaluate $(CORPUS) $(if $(SAMPLE),--sample $(SAMPLE))

lock: $(DEV_READY)              ## lock the libraries with hashes, and list their licences, in requirements/
	$(BIN)/uv pip compile --quiet pyproject.toml $(foreach extra,$(PACKAGE_EXTRAS),--extra $(extra)) $(LOCK_OPTIONS) -o requirements/packages.lock
	$(BIN)/uv pip compile --quiet pyproject.toml --extra dev $(LOCK_OPTIONS) -c requirements/packages.lock -o requirements/development.lock
	$(BIN)/python -m tools.sbom

audit: $(DEV_READY)             ## check the locked libraries for known vulnerabilities; needs pypi.org
	$(BIN)/pip-audit $(AUDIT_OPTIONS) --require-hashes --disable-pip -r requirements/packages.lock

clean:                          ## remove everything that the other commands created
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis fuzz-findings dist build/site
	find . -name __pycache__ -prune -exec rm -rf {} +

# A changed pyproject.toml triggers a new installation of the dependencies.
$(RUN_READY): pyproject.toml | $(BIN)/python
	$(PIP) '.[console]'
	@touch $@

$(DEV_READY): pyproject.toml | $(BIN)/python
	$(PIP) '.[dev]'
	@touch $(RUN_READY) $@

# On Debian, venv is in a separate package.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is required"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "installing python3-venv"; \
	  apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); } \
	  || { rm -rf $(VENV); echo "cannot create a virtual environment: install python3-venv and try again"; exit 1; }
