# Two commands do everything on a fresh Linux machine with Python 3.11+ and make:
#   make serve   installs, gets the model, starts the server
#   make test    installs, gets the test weights, runs the tests
# The rest are for people who work on quicksilver. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
MODEL ?= nano
# The CPU build of torch where its index can be reached; `make serve TORCH_INDEX=` takes the CUDA build from PyPI.
TORCH_INDEX ?= --extra-index-url https://download.pytorch.org/whl/cpu --retries 1
TORCH := torch==2.13.0
PYTEST := $(BIN)/python -m pytest
# Other people's clients that `make test` runs. CI adds `frameworks`, which take 1.3 GB to install.
SUITES ?= clients openai

.DEFAULT_GOAL := help
.PHONY: help install serve test environments check unit parity contract clients frameworks kernels cluster-tests gpu lint fix types \
	layers size generate generated docs docs-serve lock web test-web pictures newcomer browser bench bfcl soak weights clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# Every file is checked against the hashes in the lock. torch is the exception: its CPU and CUDA builds are different
# files under one version, so it has a step of its own, after its pure-Python dependencies. The package itself is built
# by the pinned hatchling of the lock, without an isolated build environment.
$(VENV)/.base: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --requirement requirements.lock
	$(PIP) $(TORCH_INDEX) "$(TORCH)"
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base requirements-dev.lock
	$(PIP) --require-hashes --requirement requirements-dev.lock
	@touch $@

install: $(VENV)/.base ## install everything that the server needs, and start nothing

weights: $(VENV)/.base ## download the small model that the tests and the first run use
	@$(BIN)/quicksilver pull $(MODEL) >/dev/null

serve: weights ## install everything and start the server with its playground
	$(BIN)/quicksilver serve --model $(MODEL)

# The browser tests need Node and a Chromium. Where one is missing, or npm's registry is out of reach, they are skipped,
# and both this and the tests say so. npm writes the file named here when all packages are in place.
browser: web/node_modules/.package-lock.json ## packages of the browser tests, where Node and Chromium are there

web/node_modules/.package-lock.json: web/package-lock.json
	@sh tools/browser_packages.sh

test: $(VENV)/.dev weights browser ## run every test that runs without a GPU
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(PYTEST) --numprocesses 2 --dist loadfile
	$(BIN)/python -m tests.contract.suites $(SUITES)

environments: $(VENV)/.dev ## install the environments of other people's clients that `make test` uses
	$(BIN)/python -m tests.contract.suites $(SUITES) --install

unit: $(VENV)/.dev ## the fast tests
	$(PYTEST) -m "not parity and not contract and not gpu"

parity: $(VENV)/.dev weights ## our numbers against other implementations
	$(PYTEST) -m parity

contract: $(VENV)/.dev weights ## real clients against a live server
	$(PYTEST) -m contract

clients: $(VENV)/.dev weights ## other people's clients, agents and API tests against a live server
	$(BIN)/python -m tests.contract.clients.run
	$(BIN)/python -m tests.contract.openai_suite.run

frameworks: $(VENV)/.dev weights ## agent, voice and evaluation frameworks against a live server
	$(BIN)/python -m tests.contract.clients.run --frameworks

# An environment of its own: Triton's interpreter wants an older numpy than the lock has.
kernels: ## the kernels' tests in Triton's interpreter, where there is no GPU
	$(MAKE) --no-print-directory VENV=.build/kernels .build/kernels/.dev
	.build/kernels/bin/python -m pip install --quiet --disable-pip-version-check "triton==3.6.0" "numpy==2.3.5"
	.build/kernels/bin/python -m pytest -q --timeout=900 tests/backends/cuda

soak: $(VENV)/.dev ## 30 minutes of requests under random kills, drains and database outages
	$(BIN)/python -m tests.contract.soak --minutes 30

# An environment of its own: Ray adds 240 MB and is not part of the lock.
cluster-tests: ## engine replicas on real raylets: equal answers, lost nodes, drain, scaling
	$(MAKE) --no-print-directory VENV=.build/cluster .build/cluster/.dev
	.build/cluster/bin/python -m pip install --quiet --disable-pip-version-check "ray[serve]==2.60.0"
	OMP_NUM_THREADS=1 .build/cluster/bin/python -m pytest -q -W ignore tests/cluster/ray/live

gpu: $(VENV)/.dev ## tests that need a CUDA device
	$(PYTEST) -m gpu

check: lint types layers size generated docs ## every check that is not a test

lint: $(VENV)/.dev ## ruff: rules and format, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fix: $(VENV)/.dev ## ruff: mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## mypy
	$(BIN)/mypy

layers: $(VENV)/.dev ## the import contracts: imports only go down
	$(BIN)/lint-imports

size: $(VENV)/.dev ## lines per package against their budgets, lengths of files and functions
	$(BIN)/python tools/size.py --check

generate: $(VENV)/.dev ## rewrite the generated pages: figures, reference, package map
	$(BIN)/python tools/figures.py
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/architecture_map.py
	$(BIN)/python -m tools.support_table

generated: $(VENV)/.dev ## fail where a generated page is stale
	$(BIN)/python tools/figures.py --check
	$(BIN)/python tools/pictures.py --check
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/architecture_map.py --check
	$(BIN)/python -m tools.support_table --check

docs: $(VENV)/.dev ## build the documentation into .build/site; a broken link or an orphan page is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(VENV)/.dev ## the documentation on http://127.0.0.1:8000, rebuilt as it changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

lock: ## write the lock files anew from pyproject.toml
	$(PYTHON) tools/lock.py $(UPGRADE)

web: ## build the playground (needs Node)
	cd web && npm ci && npm run build

test-web: $(VENV)/.dev ## the playground in a real browser (needs Node and Chromium)
	cd web && npm ci && npm test && npm run e2e

pictures: $(VENV)/.dev weights browser ## retake the playground's pictures in the documentation, with the real nano
	cd web && PYTHON=$(abspath $(BIN))/python node e2e/pictures.mjs

newcomer: browser ## time the way from `make serve` to the first resolved answer, in a real browser
	node web/e2e/newcomer.mjs

bench: $(VENV)/.dev weights ## CPU benchmarks, as ratios from one run
	$(BIN)/python benchmarks/cpu_decode.py

bfcl: $(VENV)/.dev weights ## the function-calling leaderboard's AST categories; its data and checker come from PyPI
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.bfcl

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
