# `make demo` and `make test` work on a fresh clone with Python 3.11 or newer and pip; nothing else is needed.
# The first of them makes .venv, and any of them renews it when pyproject.toml or constraints.txt changed.

BIN     := .venv/bin
READY   := .venv/.ready
PYTHON  ?=
WORKERS ?= 2
CANDIDATES = $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
TYPING   = $(wildcard tests/api/typing_*.py)

.DEFAULT_GOAL := help
.PHONY: help demo test soak coverage lint format types imports check bench mutants clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## the whole story in a minute: kill an agent, resume it, count the effects
	@$(BIN)/counterfoil demo

test: $(READY) ## all tests but the slow ones marked `soak`
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

soak: $(READY) ## the slow tests
	$(BIN)/pytest -m soak

coverage: $(READY) ## all tests once more, with branch coverage
	rm -rf .coverage-data
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(READY) ## style, layout and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

format: $(READY) ## mend what `make lint` can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(READY) ## mypy --strict
	$(BIN)/mypy --strict src $(TYPING)

imports: $(READY) ## which package may import which
	$(BIN)/lint-imports --no-logo

check: test lint types imports ## what CI runs

bench: $(READY) ## how long a commit and a turn take on this disk
	$(BIN)/counterfoil bench

mutants: $(READY) ## change core/ line by line and see that a test notices
	$(BIN)/python tools/mutants.py

clean: ## remove .venv and what tools left behind
	rm -rf .venv dist build .coverage-data .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is touched last, so an install that broke off is begun again.
$(READY): pyproject.toml constraints.txt
	@set -e; \
	ok='import sys; sys.exit(sys.version_info < (3, 11))'; \
	if ! $(BIN)/python -c "import pip; $$ok" 2>/dev/null; then \
	  python=; \
	  for p in $(CANDIDATES); do \
	    if "$$p" -c "$$ok" 2>/dev/null; then python=$$p; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "counterfoil needs Python 3.11 or newer; none found as: $(CANDIDATES)." >&2; \
	    echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=..." >&2; \
	    exit 1; \
	  fi; \
	  echo "making .venv with $$($$python --version)"; \
	  $$python -m venv --clear .venv; \
	fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
