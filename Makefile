# Two commands do all set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test check bench tables docs clean

demo: $(VENV)/.lab
	$(BIN)/longtail demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/check_dependencies.py

bench: $(VENV)/.dev
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

# Tables of measured rows, written into the pages, and the picture of the results.
tables: $(VENV)/.docs
	cd docs && ../$(BIN)/python -m site_pages.tables

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per extra: an install runs again only when what it installs has changed.
$(VENV)/.lab $(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable ".[$*]"
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
