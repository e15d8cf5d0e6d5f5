# Two commands do everything on a fresh Linux machine with Python 3.11+ and make:
#   make serve   installs, gets the model, starts the server
#   make test    installs, gets the test weights, runs the tests
# The rest are for people who work on quicksilver. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
MODEL ?= nano
# CPU wheels of torch where that index can be reached; a machine with a GPU sets TORCH_INDEX= (empty) to get CUDA wheels.
TORCH_INDEX ?= --extra-index-url https://download.pytorch.org/whl/cpu --retries 1
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help serve test unit parity contract clients kernels gpu lint fix types rooms size web test-web newcomer browser bench bfcl docs \
	weights clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.base: requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH_INDEX) --constraint requirements.lock "torch==2.13.0"
	$(PIP) --constraint requirements.lock --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base pyproject.toml requirements.lock
	$(PIP) --constraint requirements.lock --editable '.[dev]'
	@touch $@

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
	$(BIN)/python -m tests.contract.clients.run

unit: $(VENV)/.dev ## the fast tests
	$(PYTEST) -m "not parity and not contract and not gpu"

parity: $(VENV)/.dev weights ## our numbers against other implementations
	$(PYTEST) -m parity

contract: $(VENV)/.dev weights ## real clients against a live server
	$(PYTEST) -m contract

clients: $(VENV)/.dev weights ## other people's clients, Python and Node, against a live server
	$(BIN)/python -m tests.contract.clients.run

# An environment of its own: Triton's interpreter wants an older numpy than the lock has.
kernels: ## the kernels' tests in Triton's interpreter, where there is no GPU
	$(MAKE) --no-print-directory VENV=.build/kernels .build/kernels/.dev
	.build/kernels/bin/python -m pip install --quiet --disable-pip-version-check "triton==3.6.0" "numpy==2.3.5"
	.build/kernels/bin/python -m pytest -q tests/backends/cuda/kernels tests/backends/cuda/test_round_kernels.py \
		tests/backends/cuda/test_biased_rounds.py tests/backends/cuda/test_constrained_graphs.py

gpu: $(VENV)/.dev ## tests that need a CUDA device
	$(PYTEST) -m gpu

lint: $(VENV)/.dev ## ruff, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fix: $(VENV)/.dev ## ruff, mending what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## mypy
	$(BIN)/mypy

rooms: $(VENV)/.dev ## imports only go down
	$(BIN)/lint-imports

size: $(VENV)/.dev ## lines per room, lengths of functions
	$(BIN)/python tools/size.py

web: ## build the playground (needs Node)
	cd web && npm ci && npm run build

test-web: $(VENV)/.dev ## the playground in a real browser (needs Node and Chromium)
	cd web && npm ci && npm test && npm run e2e

newcomer: browser ## time the way from `make serve` to the first resolved answer, in a real browser
	node web/e2e/newcomer.mjs

bench: $(VENV)/.dev weights ## CPU benchmarks, as ratios from one run
	$(BIN)/python benchmarks/cpu_decode.py

bfcl: $(VENV)/.dev weights ## the function-calling leaderboard's AST categories; its data and checker come from PyPI
	$(PIP) --no-deps --upgrade --target .build/bfcl bfcl-eval==2026.3.23
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.bfcl

docs: $(VENV)/.dev ## check that documented commands and links hold
	$(PYTEST) tests/docs

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
