"""What a plan takes where nobody says anything: from the target, the GPUs and the engine, and fixed values."""

from __future__ import annotations

import os
from typing import Any

from dovetail.errors import PlanError
from dovetail.plan import memory, pairing, parallel
from dovetail.plan.case import Advice, Case
from dovetail.plan.embedded import LOOKUP_TOKENS
from dovetail.plan.layers import Setting
from dovetail.plan.methods import CLEAN_LOOKUP
from dovetail.plan.options import OPTIONS

_DRAFT_TOKENS = 3
_SUFFIX_TOKENS = 24  # a bound only: suffix decoding drafts as far as it is sure (vLLM 0.33, config/speculative.py)
_SHORTEST = 4096  # tokens; a context that had to be cut below that is nobody's wish


def fixed(target: str, engine: str, method: str | None) -> dict[str, Any]:
    """What needs no look at anything. `target` is a folder or a hub id; settings left to an engine are None."""
    embedded = engine == "embedded"
    lengths = {None: 0, "suffix": LOOKUP_TOKENS if embedded else _SUFFIX_TOKENS}
    return {option.name: None for option in OPTIONS} | {
        "method": method,
        "draft_tokens": lengths.get(method, _DRAFT_TOKENS),
        "prompt_lookup_min": CLEAN_LOOKUP if method == "ngram" else None,
        "dtype": "float32" if embedded else None,
        "max_batch": 16 if embedded else None,
        "strict": "schema",
        "no_repair": "none",
        "served_model_name": _called(target),
        "host": "127.0.0.1",
        "port": 8000,
    }


def _called(target: str) -> str:
    """A folder's name; of a model on the hub all of it, which is what its engines answer to as well."""
    return (os.path.basename(target) or target) if os.path.isabs(target) else target


def sizes(case: Case) -> tuple[dict[str, Any], list[Advice]]:
    """The context, and over how many GPUs the target is spread, where neither is said.

    As few GPUs as hold the whole context; if all of them do not, all, and as much of the context as they hold. Where
    stages or replicas are said, so many of each.
    """
    said: dict[str, Any] = {}
    context, whose = pairing.longest_context(case.target, case.drafter)
    if case.value("context") is None:
        said["context"] = context
    gpus = case.gpus
    if gpus is None or case.engine == "embedded":
        return said, []
    if case.value("tensor_parallel_size") is None:
        case = _with(case, said)
        each = gpus.count // (case.size("pipeline_parallel_size") * case.size("data_parallel_size"))
        powers = {2**i for i in range(each.bit_length())}
        degrees = [degree for degree in sorted(powers | {each}) if degree and _divides(case, degree)]
        holding = [degree for degree in degrees if _budget(case, degree).fits]
        if degrees:
            said["tensor_parallel_size"] = min(holding) if holding else max(degrees)
    case = _with(case, said)
    budget = _budget(case, case.size("tensor_parallel_size"))
    longest = (budget.longest or 0) // 1024 * 1024
    if "context" not in said or budget.fits or longest < _SHORTEST:
        return said, []
    said["context"] = longest
    note = (
        f"context is {longest:,}, for which {gpus} have room: {context:,}, {whose}, takes more. --context says another"
    )
    return said, [Advice("warning", "context", note)]


def _with(case: Case, said: dict[str, Any]) -> Case:
    more = {name: Setting(value, "default") for name, value in said.items()}
    return Case(case.target, case.drafter, {**case.settings, **more}, case.gpus)


def _divides(case: Case, degree: int) -> bool:
    try:
        parallel.check(_with(case, {"tensor_parallel_size": degree}))
    except PlanError:
        return False
    return True


def _budget(case: Case, degree: int) -> memory.Budget:
    assert case.gpus is not None
    layout = memory.layout({**case.settings, "tensor_parallel_size": Setting(degree, "default")})
    return memory.budget(case.target, case.drafter, layout, case.gpus.gpu)
