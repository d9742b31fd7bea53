"""The defaults of a plan: fixed values, and values that follow from the target, the GPUs and the engine."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Mapping
from typing import Any

from dovetail.checkpoints.methods import CLEAN_LOOKUP
from dovetail.errors import PlanError
from dovetail.gate import per_draft
from dovetail.plan import llama_cpp, memory, pairing, parallel
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.embedded import LOOKUP_TOKENS
from dovetail.plan.layers import Setting
from dovetail.plan.options import OPTIONS
from dovetail.plan.recipe import Recipe, every

_DRAFT_TOKENS = 3
_SUFFIX_TOKENS = 24  # an upper bound: suffix decoding stops when it is unsure (vLLM 0.33, config/speculative.py)
_MIN_CONTEXT = 4096  # tokens; a context that does not fit is not cut below this


def fixed(target: str, engine: str, method: str | None) -> dict[str, Any]:
    """The defaults that need no checkpoint. `target` is a folder or a hub id; None leaves a setting to the engine."""
    embedded = engine == "embedded"
    lengths = {None: 0, "suffix": LOOKUP_TOKENS if embedded else _SUFFIX_TOKENS}
    return {option.name: None for option in OPTIONS} | {
        "method": method,
        "draft_tokens": lengths.get(method, _DRAFT_TOKENS),
        "prompt_lookup_min": CLEAN_LOOKUP if method == "ngram" else None,
        "dtype": "float32" if embedded else None,
        "max_batch": {"embedded": 16, llama_cpp.NAME: llama_cpp.SEQUENCES}.get(engine),
        "strict": "schema",
        "no_repair": "none",
        "on_malformed_call": "error",
        "served_model_name": _model_name(target),
        "host": "127.0.0.1",
        "port": 8000,
    }


def _model_name(target: str) -> str:
    """The name of a folder or of a GGUF file, or the whole hub id, which engines use as the model's name too."""
    return (os.path.basename(target).removesuffix(".gguf") or target) if os.path.isabs(target) else target


def sizes(plan: Candidate) -> tuple[dict[str, Any], list[Advice]]:
    """Defaults of context and tensor_parallel_size, where no source sets them, and what to know about them.

    The target is spread over the smallest number of GPUs that holds the whole context. If all GPUs together do not hold
    it, the target is spread over all of them and the context is cut to what they hold. The GPUs are divided by the
    pipeline and data parallelism that the settings name.
    """
    sizes: dict[str, Any] = {}
    context, whose = pairing.longest_context(plan.target, plan.drafter)
    if plan.value("context") is None:
        sizes["context"] = context
    gpus = plan.gpus
    if plan.engine == llama_cpp.NAME:
        return _for_llama_cpp(plan, sizes, whose)
    if gpus is None or plan.engine == "embedded":
        return sizes, []
    if plan.value("tensor_parallel_size") is None:
        plan = _with(plan, sizes)
        each = gpus.count // (plan.size("pipeline_parallel_size") * plan.size("data_parallel_size"))
        powers = {2**i for i in range(each.bit_length())}
        degrees = [degree for degree in sorted(powers | {each}) if degree and _divides(plan, degree)]
        holding = [degree for degree in degrees if _budget(plan, degree).fits]
        if degrees:
            sizes["tensor_parallel_size"] = min(holding) if holding else max(degrees)
    plan = _with(plan, sizes)
    budget = _budget(plan, plan.size("tensor_parallel_size"))
    longest = (budget.longest or 0) // 1024 * 1024
    if "context" not in sizes or budget.fits or longest < _MIN_CONTEXT:
        return sizes, []
    sizes["context"] = longest
    note = f"context is {longest:,}, which fits on {gpus}: {context:,}, {whose}, does not fit. --context sets another"
    return sizes, [Advice("warning", "context", note)]


def _for_llama_cpp(plan: Candidate, sizes: dict[str, Any], whose: str) -> tuple[dict[str, Any], list[Advice]]:
    """A context that fits into this machine's memory, for each of the sequences."""
    if "context" not in sizes:
        return sizes, []
    whole, sizes["context"] = sizes["context"], llama_cpp.longest_context(plan, sizes["context"])
    if sizes["context"] == whole:
        return sizes, []
    batch = plan.value("max_batch") or llama_cpp.SEQUENCES
    note = (
        f"context is {sizes['context']:,}: the KV cache of {batch} sequences of {whole:,}, {whose}, would take more "
        "than half of the memory. --context and --max-batch set other sizes"
    )
    return sizes, [Advice("note", "context", note)]


def _with(plan: Candidate, values: dict[str, Any]) -> Candidate:
    more = {name: Setting(value, "default") for name, value in values.items()}
    return Candidate(plan.target, plan.drafter, {**plan.settings, **more}, plan.gpus)


def _divides(plan: Candidate, degree: int) -> bool:
    try:
        parallel.check(_with(plan, {"tensor_parallel_size": degree}))
    except PlanError:
        return False
    return True


def _budget(plan: Candidate, degree: int) -> memory.Budget:
    assert plan.gpus is not None
    layout = memory.layout({**plan.settings, "tensor_parallel_size": Setting(degree, "default")})
    return memory.budget(plan.target, plan.drafter, layout, plan.gpus.gpu)


_UNIT = re.compile(r"tokens a step, of (\d+)")


def expected_acceptance(settings: Mapping[str, Setting[Any]]) -> float | None:
    """The probability that a draft is accepted when those before it were; None if the drafter in a plan's `settings`,
    or else the method, is not from one of Dovetail's recipes, or the recipe has no acceptance length."""
    drafter = settings.get("drafter")
    chosen = settings.get("method") if drafter is None or drafter.value is None else drafter
    source = chosen.source if chosen is not None else None
    lengths = [own for recipe in every() if source == f"recipe {recipe.name}" for own in _measured(recipe)]
    return statistics.median(lengths) if lengths else None


def _measured(recipe: Recipe) -> list[float]:
    figures = [figure for figure in recipe.measured if figure.what == "acceptance length"]
    units = [(figure.value, _UNIT.fullmatch(figure.unit)) for figure in figures]
    return [per_draft(length, int(unit[1]) - 1) for length, unit in units if unit is not None]
