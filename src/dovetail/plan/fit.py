"""Whether a target, a drafter, the settings and the GPUs go together, before anything loads.

What cannot work is refused, with what both sides say and the way out; what may disappoint comes back as advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.target import Target
from dovetail.errors import PlanError
from dovetail.plan import memory, pairing, parallel
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.hardware import Gpus
from dovetail.plan.layers import Setting
from dovetail.plan.methods import CLEAN_LOOKUP


def check(
    target: Target, drafter: Drafter | None, settings: Mapping[str, Setting[Any]], gpus: Gpus | None = None
) -> list[Advice]:
    """What there is to know about the plan. Raises `PlanError` for the first thing that cannot work."""
    plan = Candidate(target, drafter, settings, gpus)
    _context(plan)
    advice = [] if drafter is None else pairing.check(plan, drafter)
    _tree(plan)
    _argmax(plan)
    advice += [*_stored(plan), *_lookup(plan), *_gate(plan)]
    return [*advice, *parallel.check(plan), *_memory(plan), *_kernels(plan)]


def _context(plan: Candidate) -> None:
    asked, target = plan.value("context"), plan.target
    if asked is not None and asked > target.context:
        raise PlanError(
            f"{plan.text('context')} but {target.path} was made for {target.context} tokens ({target.context_note}): "
            "ask for no more than that"
        )


_APART = 4  # times: storage formats that are not known here differ by less


def _stored(plan: Candidate) -> list[Advice]:
    """What is stored can be another model's weights, or an index that says anything."""
    weights = plan.target.weights
    low, high = sorted((weights.bytes, weights.estimate))
    if high <= _APART * low:
        return []
    said = "the index" if weights.source == "index" else "the files"
    message = (
        f"{said} of {plan.target.path} come to {_gib(weights.bytes)} GiB, which is reckoned with; by its config.json "
        f"it is {_gib(weights.estimate)}: one of them is another model's"
    )
    return [Advice("warning", "target", message)]


def _tree(plan: Candidate) -> None:
    """A grammar is advanced along one chain of drafts and rolled back; the Constraint protocol knows no branches."""
    width, strict = plan.value("draft_top_k"), plan.value("strict")
    if width is not None and width > 1 and strict not in (None, "off"):
        raise PlanError(
            f"{plan.text('draft_top_k')}, which makes a tree of drafts, but {plan.text('strict')} and a grammar "
            "follows one chain: --draft-top-k 1, or --strict off"
        )


def _argmax(plan: Candidate) -> None:
    """vLLM 0.33, v1/worker/gpu/spec_decode/speculator.py: _validate_local_argmax_reduction."""
    if plan.value("local_argmax") and plan.value("draft_sampling") == "probabilistic":
        raise PlanError(
            f"{plan.text('local_argmax')} but {plan.text('draft_sampling')}: an argmax over shards leaves no "
            "probabilities to sample from: --draft-sampling greedy, or leave local_argmax out"
        )


_BAD_LOOKUP = 2


def _lookup(plan: Candidate) -> list[Advice]:
    """N-gram lookup goes wrong in tool calls where it matches too little."""
    if plan.method != "ngram":
        return []
    shortest = plan.value("prompt_lookup_min")
    if shortest is not None and shortest <= _BAD_LOOKUP:
        raise PlanError(
            f"{plan.text('prompt_lookup_min')} with method ngram: matches that short were reported to corrupt about "
            f"half of all tool calls (vLLM issue 40875), {CLEAN_LOOKUP} was clean: --prompt-lookup-min {CLEAN_LOOKUP}"
        )
    advice = []
    if shortest is None or shortest < CLEAN_LOOKUP:
        advice.append(
            f"{plan.text('prompt_lookup_min')}: tool calls were reported clean at {CLEAN_LOOKUP} (vLLM issue 40875)"
        )
    if plan.target.attention.linear_layers:
        advice.append(
            f"{plan.target.attention.linear_layers} layers of {plan.target.path} keep a state, with which ngram was "
            "reported to corrupt tool calls (vLLM issue 39273)"
        )
    return [Advice("warning", "method", message) for message in advice]


def _gate(plan: Candidate) -> list[Advice]:
    """Less of a gate over data-parallel ranks that share experts: each waits for the others' passes of the drafter.

    vLLM 0.32 and 0.33 disable their own dynamic lengths there for the same reason. Ranks of a dense model are engines
    of their own.
    """
    gate = ("gate", "speculate_below_context", "speculate_up_to_batch")
    said = [name for name in gate if plan.value(name) not in (None, "off")]
    if not said or plan.engine != "vllm" or plan.size("data_parallel_size") == 1 or not plan.target.experts:
        return []
    ranks = "ranks that share experts draft as much as each other at every step, so only what is verified is gated"
    return [Advice("note", said[0], f"{plan.text(said[0])} and {plan.text('data_parallel_size')}: {ranks}")]


def _memory(plan: Candidate) -> list[Advice]:
    """One sequence of the asked length must have room. The engine's allowance is an estimate and refuses nothing."""
    if plan.gpus is None or plan.engine == "embedded":
        return []
    layout = memory.layout(plan.settings)
    budget = memory.budget(plan.target, plan.drafter, layout, plan.gpus.gpu)
    one = _gib(budget.sequence or 0)
    spent = (
        f"of {_gib(budget.total)} GiB on each {plan.gpus.gpu.name}, {layout.utilization:.0%} are used; weights take "
        f"{_gib(budget.weights)}, the drafter {_gib(budget.drafter)}, the engine about {_gib(budget.allowance)}"
    )
    if budget.hopeless:
        raise PlanError(
            f"{plan.target.path} does not fit on {plan.gpus} with tensor_parallel_size {layout.tensor} and context "
            f"{budget.context}: {spent}; the cache of one such sequence takes {one}. {_more_room(plan, layout, budget)}"
        )
    if not budget.fits:
        return [
            Advice(
                "warning",
                "context",
                f"context {budget.context} is tight on {plan.gpus}: {spent}, which leaves "
                f"{_gib(max(budget.room, 0))} for the cache, and one sequence takes {one}. "
                f"{_more_room(plan, layout, budget)}",
            )
        ]
    if budget.per_token is None:
        named = plan.target.text_architecture
        return [Advice("note", "context", f"only weights are reckoned: how {named} caches tokens is not known here")]
    if layout.max_batch and budget.sequences is not None and budget.sequences < layout.max_batch:
        return [
            Advice(
                "note",
                "max_batch",
                f"the cache has room for {budget.tokens:,} tokens: {budget.sequences} of {layout.max_batch} sequences "
                f"at the full context of {budget.context:,}, or all at {(budget.tokens or 0) // layout.max_batch:,} "
                "each",
            )
        ]
    return []


def _more_room(plan: Candidate, layout: memory.Layout, budget: memory.Budget) -> str:
    ways = []
    if budget.longest and budget.longest < budget.context:
        ways.append(f"--context {budget.longest // 1024 * 1024 or budget.longest}")
    if not layout.kv_dtype.startswith("fp8"):
        ways.append("--kv-cache-dtype fp8")
    if plan.target.attention.kind == "mla" and layout.decode_context < layout.tensor:
        ways.append(f"--decode-context-parallel-size {layout.tensor}")
    if plan.gpus is not None and layout.gpus < plan.gpus.count:
        ways.append(f"more of the {plan.gpus.count} GPUs (--tensor-parallel-size)")
    return f"What would help: {', '.join([*ways, 'more or larger GPUs'])}"


def _gib(size: int) -> str:
    return f"{size / memory.GIB:.1f}"


#: From which compute capability a GPU calculates in a format; below, weights are unpacked first.
_ARITHMETIC = {"nvfp4": (10, 0), "mxfp4": (10, 0), "fp8": (8, 9)}


def _kernels(plan: Candidate) -> list[Advice]:
    stored, gpu = plan.target.quantization, plan.gpus.gpu if plan.gpus else None
    needed = _ARITHMETIC.get(stored.kind) if stored else None
    if gpu is None or gpu.capability is None or stored is None or needed is None or gpu.capability >= needed:
        return []
    return [
        Advice(
            "note",
            "quantization",
            f"{gpu.name} (SM{gpu.capability[0]}{gpu.capability[1]}) does not calculate in {stored.kind}, which starts "
            f"with SM{needed[0]}{needed[1]}: the weights save memory, not arithmetic",
        )
    ]
