# Everything a new user needs: `make run` and `make test`. Only Python 3.11+ and make are assumed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test test-long check lint format types layers bench clean help

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
	$(BIN)/python -m pytest -q -n auto -m 'not long'

test-long: $(STAMP) ## what takes minutes
	$(BIN)/python -m pytest -q -m long --timeout 1800

lint: $(STAMP) ## lint and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## put the code into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

layers: $(STAMP) ## who may import whom
	$(BIN)/lint-imports

check: lint types layers test ## what CI runs

clean: ## remove the environment and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
