SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One torch thread a process: two on shared cores can stall.
export OMP_NUM_THREADS ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH ?= dspine_serve.proxy_guard:middlewares
export RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S ?= 30

.PHONY: setup serve test lint types unit clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(STAMP)

serve: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/serve run deployments.yaml

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest -n 2 --dist loadgroup

test: lint types unit

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
