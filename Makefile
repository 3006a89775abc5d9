# Everything a new user needs: `make run` and `make test`. Only Python 3.11+ and make are assumed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Most tests wait for daemons and brokers, so more run at once than there are cores; who is done early takes from the others.
TEST_WORKERS ?= 4
STAMP := $(VENV)/.installed
FUZZ_STAMP := $(VENV)/.installed-fuzz

.PHONY: api-docs run test test-long fuzz fuzz-quick check lint format types layers bench bench-full dist clean help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (PYTHON=python3.12 make …)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): a minute or two, the first time only"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable . --group dev
	@touch $(STAMP)

run: $(STAMP) ## set up, then run a daemon on the embedded broker
	@$(BIN)/aghd run

test: $(STAMP) ## set up, then run every test but the long ones
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal -m 'not long'

test-long: $(STAMP) ## slow tests
	$(BIN)/python -m pytest -q -m long --timeout 1800
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal --hypothesis-profile thorough --timeout 1800 tests/protocol tests/daemon/test_settings.py

# Without a wheel of Atheris for this Python or machine nothing is built: the fuzzer says that it is skipped.
$(FUZZ_STAMP): $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --only-binary atheris --group fuzz && touch $(FUZZ_STAMP) || true

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
	$(BIN)/lint-imports

check: lint types layers test ## what CI runs

BENCHED := $(VENV)/.benched

$(BENCHED): $(STAMP) pyproject.toml
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group bench
	@touch $(BENCHED)

api-docs: $(STAMP) ## write docs/openapi.json and the routes of docs/api.md
	$(BIN)/python -m aghbus.daemon.api.documents docs

bench: $(BENCHED) ## figures of this machine, in three minutes
	$(BIN)/python -m bench --quick

bench-full: $(BENCHED) ## the same in half an hour, with the large sizes
	$(BIN)/python -m bench --full

dist: $(STAMP) ## build the wheel and the source distribution into dist/
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group dist
	@rm -rf build dist
	@$(BIN)/python -m build --quiet --outdir dist .
	@ls dist

clean: ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
