# make knee is the first command on a fresh clone, make test the second; both set up .venv.

.DEFAULT_GOAL := help
.PHONY: help knee test setup lint format lock docs clean

# The first interpreter that is new enough; say `make PYTHON=/path/to/python3.12 setup` for another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready

# What `make knee` measures: `make knee KNEE="http://127.0.0.1:8000 --slo ttft_p95=500ms"`.
KNEE ?= --slo ttft_p95=500ms --slo itl_p95=50ms --budget 90s --max-users 128 \
	--max-num-seqs 16 --prompt-tokens 128 --output-tokens 32
# What `make test` runs: `make test TESTS="tests/test_units.py -x"`.
TESTS ?=

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 10

knee: $(READY) ## find the knee of the embedded engine (two minutes)
	@$(BIN)/vllm-harness knee $(KNEE)

test: $(READY) ## run every test: pure ones on two cores, real-time ones alone
	@$(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder $(TESTS)

setup: $(READY) ## prepare .venv
	@echo ".venv is ready"

lint: $(READY) ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY) ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

docs: $(READY) ## write the generated pages of docs/ again
	@$(BIN)/python docs/generate.py

lock: $(READY) ## write requirements.lock again from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev \
		--generate-hashes --no-emit-index-url --no-header --upgrade \
		pyproject.toml --output-file requirements.lock

clean: ## remove .venv and caches; run folders stay
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

# uv is what reads the lock; pip brings it. The stamp file makes this run only after a change.
$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is missing: install it (Debian, Ubuntu:" \
		"apt-get install python3 python3-venv), then run make again."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv is missing:" \
		"install it (Debian, Ubuntu: apt-get install python3-venv), then run make again."; exit 1; }
	@echo "Setting up .venv, once ..."
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@$(BIN)/pip install -qq --disable-pip-version-check uv
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@
