"""llama.cpp's server for a GGUF file: whether it is here, what it needs of the memory, and what it does not have."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from dovetail.checkpoints.gguf.folder import gguf_file
from dovetail.errors import PlanError
from dovetail.plan import memory
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.embedded import machine_memory

NAME = "llama.cpp"
#: Sequences that it computes at a time by default. Each has room for a whole context.
SEQUENCES = 4
#: The share of the memory beside the weights that the cache takes by default.
_SHARE = 0.5
_LEAST_CONTEXT = 4096


def find(requested: str | None) -> str:
    """The server's path: the `requested` one, else beside this Python, else on the PATH. Raises `PlanError`."""
    if requested is not None:
        if not os.access(requested, os.X_OK) or Path(requested).is_dir():
            raise PlanError(f"llama_server is {requested}, which is not a program: name the file `llama-server`")
        return requested
    beside = Path(sys.executable).with_name("llama-server")
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which("llama-server")
    if program is None:
        raise PlanError(
            "llama-server was found neither beside this Python nor on the PATH: install llama.cpp, or name its server "
            "with --llama-server PROGRAM"
        )
    return program


def is_here(requested: str | None) -> bool:
    try:
        find(requested)
    except PlanError:
        return False
    return True


def cache_type(plan: Candidate) -> str:
    """The type of the KV cache: llama.cpp's default is float16."""
    kind = plan.value("kv_cache_dtype")
    return "float16" if kind in (None, "auto") else kind


def longest_context(plan: Candidate, context: int) -> int:
    """As much of `context` as fits into the memory for `SEQUENCES`, or the planned number of sequences."""
    per_token = memory.per_token_of(plan.target, plan.drafter, memory.Layout(kv_dtype=cache_type(plan)))
    here = machine_memory()
    if not per_token or here is None:
        return context
    room = (here - plan.target.weights.bytes) * _SHARE / (per_token * (plan.value("max_batch") or SEQUENCES))
    return min(context, max(_LEAST_CONTEXT, int(room) // 1024 * 1024))


def check(plan: Candidate, folders: Mapping[str, str]) -> list[Advice]:
    """What there is to know of a plan for llama.cpp. Raises `PlanError` for what it cannot run."""
    if gguf_file(folders["target"]) is None:
        raise PlanError(f"{plan.text('engine')}, which reads GGUF files, and {plan.target.path} has none")
    if plan.drafter is not None and "drafter" in folders and gguf_file(folders["drafter"]) is None:
        raise PlanError(f"{plan.text('engine')}, which reads GGUF files, and {plan.text('drafter')} has none")
    advice = []
    if not is_here(plan.value("llama_server")):
        missing = "llama-server is not here: install llama.cpp, or name its server with --llama-server"
        advice.append(Advice("warning", "engine", missing))
    return [*advice, *_grammars(plan), *_memory(plan)]


def _grammars(plan: Candidate) -> list[Advice]:
    """A note on how calls are constrained, and on what no server constrains."""
    if plan.value("strict") == "off":
        return []
    text = (
        "calls are constrained by a grammar: llguidance's if this llama.cpp was built with it, else GBNF, which says "
        "less (dovetail lint TOOLS.json --for gbnf); nothing constrains single logits, which a bound of reasoning needs"
    )
    return [Advice("note", "strict", text)]


def _memory(plan: Candidate) -> list[Advice]:
    """What weights and cache take, and a warning if that is more than there is."""
    layout = memory.Layout(kv_dtype=cache_type(plan))
    per_token, context = memory.per_token_of(plan.target, plan.drafter, layout), plan.value("context")
    if per_token is None or context is None:
        return []
    batch, here = plan.value("max_batch") or 1, machine_memory()
    cache, weights = per_token * context * batch, plan.target.weights.bytes
    needs = (
        f"memory: {weights / 1e9:,.1f} GB of weights, as they are in the file, and {cache / 1e9:,.1f} GB of KV cache "
        f"({batch} × {context:,} tokens × {per_token:,.0f} bytes in {layout.kv_dtype})"
    )
    if plan.gpus is None and here is not None and weights + cache > here:
        less = "a smaller --context or --max-batch"
        return [Advice("warning", "context", f"{needs}; this machine has {here / 1e9:,.1f} GB: {less}")]
    return [Advice("note", "engine", needs)]
