# make knee is the first command on a fresh clone, make test the second; both set up .venv.

.DEFAULT_GOAL := help
.PHONY: help knee test test-all statistics drill truth versions up targets down setup lint audit format lock dist docs site bench bench-quick soak clean

# The first interpreter that is new enough; say `make PYTHON=/path/to/python3.12 setup` for another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Without compiled bytecode each process that the tests start compiles all that it imports again:
# twice the CPU time.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
READY := .venv/.ready

# What `make knee` measures: `make knee KNEE="http://127.0.0.1:8000 --slo ttft_p95=500ms"`.
KNEE ?= --embedded --slo ttft_p95=500ms --slo itl_p95=50ms --budget 90s --max-users 128 \
	--max-num-seqs 16 --prompt-tokens 128 --output-tokens 32
# What `make up` starts when there is no .env yet.
PROFILES ?= $(shell nvidia-smi -L > /dev/null 2>&1 && echo gpu || echo engine),grafana
URL ?=
# Which vLLM `make versions` installs and tries, and where; it takes about ten minutes for each.
VERSIONS ?= 0.11.0 0.15.1 0.18.1 0.22.1 0.26.0 0.32.0
VERSIONS_OUT ?= .vllm/versions
comma := ,
# What `make statistics` computes where it is stale; all by default. With CHECK=yes only a tenth of
# the cases, for a change that should change none.
NAMES ?=
CHECK ?=
# How long `make soak` holds its load, how many streams (0: the knee of the embedded server), the
# time between two tokens of each, and where its page goes.
MINUTES ?= 30
STREAMS ?= 0
GAP_MS ?= 20
PAGE ?=
# What else pytest is told: `make test TESTS="tests/test_units.py -x"`, and in how many processes.
TESTS ?=
WORKERS ?= 4
# The quick tests need Python alone. Which of all tests `make test-all` runs: MARKS="docker or vllm".
QUICK := not (vllm or docker or browser or npm or realtime or long)
MARKS ?=
SIDE_BY_SIDE := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 13

knee: $(READY) ## find the knee of the embedded server, a simulated vLLM (two minutes)
	@$(BIN)/vllm-harness knee $(KNEE)

test: $(READY) ## the quick tests: Python alone, and our own processes (five to ten minutes)
	@$(BIN)/pytest $(SIDE_BY_SIDE) -m "$(QUICK)" $(TESTS)

# Two runs: side by side, and then what measures, alone. Each may have nothing to do (5).
test-all: $(READY) ## every test, with what CONTRIBUTING.md says to install (half an hour)
	@worst=0; both="$(if $(MARKS),($(MARKS)) and )"; \
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "$${both}not realtime" $(TESTS) || { code=$$?; \
		test $$code = 5 || worst=$$code; }; \
	$(BIN)/pytest -m "$${both}realtime" $(TESTS) || { code=$$?; test $$code = 5 || worst=$$code; }; \
	exit $$worst

statistics: $(READY) ## simulate again what the tests judge, where its code has changed: NAMES="knees rates"
	@PYTHONPATH=. $(BIN)/python tests/stored_statistics.py $(if $(CHECK),--check) $(NAMES)

drill: $(READY) ## rehearse each of drills/ once, on two simulated vLLMs (eight minutes)
	@worst=0; for file in drills/*.toml; do $(BIN)/vllm-harness drill $$file || worst=$$?; done; \
		exit $$worst

truth: $(READY) ## turn every knob of planted CPU vLLMs: MODEL=DIR OUT=DIR (ten minutes a case)
	@test -n "$(MODEL)" || { echo "MODEL is not given: expected a model's folder; try" \
		"make truth MODEL=.vllm/tiny OUT=/tmp/truth."; exit 2; }
	@$(BIN)/python bench/truth.py --model $(MODEL) --out $(OUT) --budget 60s
	@$(BIN)/python bench/truth.py --table $(OUT)

versions: $(READY) ## install vLLM's CPU builds and try each: VERSIONS="0.26.0 0.32.0" (ten minutes each)
	@mkdir -p $(VERSIONS_OUT)
	@$(BIN)/python bench/versions.py --out $(VERSIONS_OUT) $(VERSIONS)

up: .env targets ## start the stack in Docker: PROFILES=gpu,grafana or engine or url (then URL=http://...)
	@test "$(origin PROFILES)" = file || grep -qxF 'COMPOSE_PROFILES=$(PROFILES)' .env || { \
		echo "PROFILES is $(PROFILES), and .env has others: edit .env, or remove it first."; exit 2; }
	@test -z "$(URL)" || grep -qxF 'HARNESS_TARGET=$(URL)' .env || { \
		echo "URL is $(URL), and .env has another HARNESS_TARGET: edit .env, or remove it first."; \
		exit 2; }
	@docker compose up --detach --build --wait
	@echo "Locust: http://$$(docker compose port locust-master 8089)"
	@grafana=$$(docker compose port grafana 3000 2> /dev/null) && \
		echo "Grafana: http://$$grafana, user admin, password in .secrets/grafana_password" || true

down: ## stop the stack; volumes stay
	@docker compose --profile '*' down

setup: $(READY) ## prepare .venv
	@echo ".venv is ready"

lint: $(READY) ## ruff, mypy, and a linter for each other kind of file
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/hadolint Dockerfile Dockerfile.vllm
	@$(BIN)/yamllint --strict --config-file .ci/yamllint.yml docker-compose.yml prometheus deploy $(wildcard grafana) .github .ci action.yml
	@$(BIN)/shellcheck .ci/run .ci/*.sh docker/*.sh
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-actions action.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*))
	@$(BIN)/zizmor --offline --quiet .github/workflows action.yml
	@PATH=$(BIN):$$PATH actionlint .github/workflows/*.yml
	@$(BIN)/mypy grafana/generate.py prometheus/recording.py prometheus/watching.py

audit: $(READY) ## known vulnerabilities of what requirements.lock pins, where the index has advisories
	@$(BIN)/python .ci/audit.py

format: $(READY) ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

docs: $(READY) ## write the generated pages and pictures of docs/ and Grafana's dashboards again, and build the site
	@$(BIN)/python docs/generate.py
	@$(BIN)/python tests/page_pictures.py
	@$(BIN)/python -W ignore::DeprecationWarning grafana/generate.py
	@$(MAKE) --no-print-directory site

# Each link leads somewhere, and each page has a place.
site: $(READY) ## build the pages as a site with a search: build/site/index.html
	@$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --conf-dir docs --jobs auto . build/site
	@echo "the site is build/site/index.html"

bench: $(READY) ## accuracy and cost beside others, the whole matrix; the live page (22 minutes)
	@$(BIN)/python bench/matrix.py
	@$(BIN)/python bench/live_page.py

bench-quick: $(READY) ## the same, four cells (three minutes)
	@$(BIN)/python bench/matrix.py --quick

soak: $(READY) ## MINUTES=30 at the knee of the embedded server, or at STREAMS=512: memory must be flat
	@PYTHONPATH=. $(BIN)/python bench/soak.py --minutes $(MINUTES) \
		$(if $(filter-out 0,$(STREAMS)),--streams $(STREAMS) --gap-ms $(GAP_MS)) $(if $(PAGE),--page $(PAGE))

lock: $(READY) ## write requirements.lock and .ci/dist.lock again from pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev \
		--generate-hashes --no-emit-index-url --no-header --upgrade \
		pyproject.toml --output-file requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --group dist \
		--generate-hashes --no-emit-index-url --no-header --upgrade --output-file .ci/dist.lock

dist: ## the source archive and the wheels of a release, in dist/ (two minutes)
	@rm -rf dist
	@.ci/dist.sh dist

# Written once and never again: what stands in it is yours. Secrets: see .env.example.
SERVER = $(filter gpu engine url,$(subst $(comma), ,$(PROFILES)))
TARGET = $(or $(URL),http://$(SERVER:gpu=vllm):8000)
GPU_METRICS := http://exporter:9400
.env:
	@test "$(words $(SERVER))" = 1 || { echo "PROFILES is $(PROFILES): expected one of gpu, engine" \
		"and url, with or without grafana; try make up PROFILES=engine."; exit 2; }
	@test "$(SERVER)" != url -o -n "$(URL)" || { echo "PROFILES has url, and there is no URL:" \
		"expected the server's; try make up PROFILES=url URL=http://10.0.0.7:8000."; exit 2; }
	@mkdir -p -m 700 .secrets
	@cd .secrets && for name in grafana_password locust_password; do test -s $$name || \
		head -c 24 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n' > $$name; done
	@cd .secrets && touch hf_token vllm_api_key && chmod 644 *
	@umask 077 && sed -e 's|^COMPOSE_PROFILES=.*|COMPOSE_PROFILES=$(PROFILES)|' \
		-e 's|^HARNESS_TARGET=.*|HARNESS_TARGET=$(TARGET)|' \
		$(if $(filter gpu,$(SERVER)),-e 's|^HARNESS_GPU_METRICS=.*|HARNESS_GPU_METRICS=$(GPU_METRICS)|' \
		-e 's|^LOCUST_FLAGS=.*|& --gpu-metrics $(GPU_METRICS)|') \
		.env.example > .env
	@$(MAKE) --no-print-directory targets
	@echo "Wrote .env (profiles $(PROFILES)) and .secrets/"

# What Prometheus scrapes elsewhere is what .env says now: it may have been edited since.
targets: .env
	@set -e; url=$$(sed -n 's/^HARNESS_TARGET=//p' .env); host=$${url#*://}; \
	if grep -qE '^COMPOSE_PROFILES=(.*,)?url(,|$$)' .env; then mkdir -p prometheus/targets; \
		printf -- '- targets: ["%s"]\n  labels: {__scheme__: %s}\n' "$${host%%/*}" "$${url%%://*}" \
		> prometheus/targets/vllm.yml; else rm -f prometheus/targets/vllm.yml; fi

clean: ## remove .venv and caches; run folders stay
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist harness/*/*.so

# uv is what reads the lock; pip brings it. The stamp file makes this run only after a change.
$(READY): requirements.lock pyproject.toml $(wildcard harness/*/*.[ch])
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
