# Sets itself up in .venv and runs things; nothing else has to be installed first but Python 3.11 or later.
#
#   make serve [PORT=8000] [ARGS=…]     make demo [MODEL=smollm2]     make test     make bench
#
# CONTRIBUTING.md has the other targets and commands.
#
# torch comes first, alone and exact, so that no resolver can bring CUDA packages onto a machine without a GPU.
# TORCH_INDEX names the package index to take it from; without it, see `torch` below.

PYTHON ?= python3
PORT ?= 8000
ARGS ?=
TORCH_INDEX ?=
TORCH := torch==2.13.0
# For tests only, and without what it asks for: triton is large, and nothing of it is used.
XGRAMMAR := xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2
CPU_INDEX := https://download.pytorch.org/whl/cpu

# Compiled modules are kept whatever the environment says: compiling src/ takes a second of every process that a test
# starts, and compiling the tests takes half of the time that collecting them takes.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
PARALLEL := -n auto --dist worksteal
# The tests by which reading/ and formats/ are covered.
OWN := tests/reading tests/formats tests/grammar tests/drift
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.PHONY: serve test test-slow test-stores lint format demo bench coverage check-emitted check-parsers
.DEFAULT_GOAL := serve

serve: $(VENV)/.engine
	@$(BIN)/dovetail serve --port $(PORT) $(ARGS)

# On all cores, without the tests marked slow, with a quarter of the examples of each property, and for one family of each
# reader.
test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=quick -m "not slow and not sibling" $(ARGS)

# The slow tests, and every property with all its examples; without the proofs.
test-slow: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=test -m "(slow or hypothesis) and not proof" $(ARGS)

demo: $(VENV)/.dev
	@$(BIN)/python -m demo $(if $(MODEL),--demo $(MODEL)) $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.prose
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks $(ARGS)

# Every line and branch of reading/ and formats/ has to be run by their own tests and those of grammar/, as `make test`
# runs them.
coverage: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=quick -m "not slow and not sibling" --cov --cov-report=term:skip-covered $(OWN) $(ARGS)

# The stores that gateways share, with real servers of Debian's packages. redis-py leaves the socket of a connection that is
# given up while it is made to the garbage collector, which warns of it in a later test.
test-stores: $(VENV)/.dev
	@DOVETAIL_REDIS="$$(command -v redis-server || command -v valkey-server)" \
	  DOVETAIL_POSTGRESQL="$$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)" \
	  $(BIN)/python -m pytest -W ignore::pytest.PytestUnraisableExceptionWarning tests/gateway/store $(ARGS)

# Whether vLLM 0.33, vLLM 0.32 and SGLang take the commands that plans are written as: by their own argument parsers, in
# an environment below .peers (420 MB, made once, in half a minute).
check-emitted: $(VENV)/.dev
	@tests/plan/parsers.sh .peers/arguments $(BIN)/python
	@DOVETAIL_VLLM_PYTHON=".peers/arguments/bin/vllm-0.33:.peers/arguments/bin/vllm-0.32" \
	  DOVETAIL_SGLANG_PYTHON=".peers/arguments/bin/sglang-0.5" \
	  $(BIN)/python -m pytest $(PARALLEL) tests/plan/test_emit_accepted.py $(ARGS)

# Dovetail's parsers inside vLLM 0.33 and 0.32: in the same environment, two minutes.
check-parsers: $(VENV)/.dev
	@tests/plan/parsers.sh .peers/arguments $(BIN)/python
	@DOVETAIL_VLLM_PARSERS="$(abspath .peers)/arguments/bin/vllm-0.33:$(abspath .peers)/arguments/bin/vllm-0.32" \
	  $(BIN)/python -m pytest $(PARALLEL) tests/plugins/vllm $(ARGS)

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Dovetail needs Python 3.11 or later: make PYTHON=/path/to/python3.11 …" >&2; exit 2; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# With a GPU, the index's own build (on Linux: CUDA). Without, the CPU build from wherever pip is set up to look, else
# from PyTorch's own index. macOS has one build.
$(VENV)/.torch: $(VENV)/.python Makefile
	@echo "installing $(TORCH)"
	@if [ -n "$(TORCH_INDEX)" ]; then $(PIP) install --index-url "$(TORCH_INDEX)" "$(TORCH)"; \
	elif [ "$$(uname -s)" != Linux ] || command -v nvidia-smi >/dev/null; then $(PIP) install "$(TORCH)"; \
	else $(PIP) install "$(TORCH)+cpu" 2>/dev/null || $(PIP) install --index-url "$(CPU_INDEX)" "$(TORCH)"; fi
	@touch $@

$(VENV)/.engine: $(VENV)/.torch pyproject.toml
	@echo "installing dovetail[engine]"
	@$(PIP) install --editable '.[engine]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@echo "installing dovetail[bench,dev,engine,otel]"
	@$(PIP) install --editable '.[bench,dev,engine,otel]'
	@$(PIP) install --no-deps $(XGRAMMAR)
	@touch $@ $(VENV)/.engine
