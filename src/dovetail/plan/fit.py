"""Checks that target, drafter, settings and GPUs fit each other, before anything loads.

What cannot work is refused: the message names both sides and a way out. What may disappoint is returned as advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.methods import CLEAN_LOOKUP
from dovetail.checkpoints.target import Target
from dovetail.errors import PlanError
from dovetail.plan import latent_kernels, memory, pairing, parallel
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.hardware import Gpus
from dovetail.plan.layers import Setting


def check(
    target: Target, drafter: Drafter | None, settings: Mapping[str, Setting[Any]], gpus: Gpus | None = None
) -> list[Advice]:
    """Check the plan, and return what there is to know. Raises `PlanError` for the first thing that cannot work."""
    plan = Candidate(target, drafter, settings, gpus)
    _context(plan)
    advice = [] if drafter is None else pairing.check(plan, drafter)
    _tree_under_grammar(plan)
    _argmax(plan)
    advice += [*_stored(plan), *_lookup(plan), *_gate(plan)]
    return [*advice, *parallel.check(plan), *_memory(plan), *_kernels(plan), *latent_kernels.check(plan)]


def _context(plan: Candidate) -> None:
    context, target = plan.value("context"), plan.target
    if context is not None and context > target.context:
        raise PlanError(
            f"{plan.text('context')} but {target.path} was made for {target.context} tokens ({target.context_note}): "
            "set a smaller --context"
        )


_MAX_RATIO = 4  # storage formats that are not known here differ by less


def _stored(plan: Candidate) -> list[Advice]:
    """A warning if the size of the stored weights contradicts config.json: they may be another model's."""
    weights = plan.target.weights
    low, high = sorted((weights.bytes, weights.estimate))
    if high <= _MAX_RATIO * low:
        return []
    source = "the index" if weights.source == "index" else "the files"
    message = (
        f"by {source} of {plan.target.path} the weights take {_gib(weights.bytes)} GiB, which the plan assumes, but by "
        f"config.json {_gib(weights.estimate)} GiB: one of them is another model's"
    )
    return [Advice("warning", "target", message)]


def _tree_under_grammar(plan: Candidate) -> None:
    """Refuse a tree of drafts under a grammar: a Constraint advances along one chain and rolls back."""
    width, strict = plan.value("draft_top_k"), plan.value("strict")
    if width is not None and width > 1 and strict not in (None, "off"):
        raise PlanError(
            f"{plan.text('draft_top_k')}, which makes a tree of drafts, but {plan.text('strict')} and a grammar "
            "follows one chain: --draft-top-k 1, or --strict off"
        )


def _argmax(plan: Candidate) -> None:
    """Refuse probabilistic drafts with local argmax, as vLLM 0.33 does (v1/worker/gpu/spec_decode/speculator.py)."""
    if plan.value("local_argmax") and plan.value("draft_sampling") == "probabilistic":
        raise PlanError(
            f"{plan.text('local_argmax')} but {plan.text('draft_sampling')}: an argmax over parts of the vocabulary "
            "leaves no probabilities to sample from: --draft-sampling greedy, or --no-local-argmax"
        )


_BAD_LOOKUP = 2


def _lookup(plan: Candidate) -> list[Advice]:
    """Refuse or warn of n-gram lookup with short matches, which corrupts tool calls."""
    if plan.method != "ngram":
        return []
    shortest = plan.value("prompt_lookup_min")
    if shortest is not None and shortest <= _BAD_LOOKUP:
        raise PlanError(
            f"{plan.text('prompt_lookup_min')} with method ngram: such short matches were reported to corrupt about "
            f"half of all tool calls (vLLM issue 40875), {CLEAN_LOOKUP} was clean: --prompt-lookup-min {CLEAN_LOOKUP}"
        )
    advice = []
    if shortest is None or shortest < CLEAN_LOOKUP:
        advice.append(
            f"{plan.text('prompt_lookup_min')}: tool calls were reported clean at {CLEAN_LOOKUP} (vLLM issue 40875)"
        )
    if plan.target.attention.linear_layers:
        advice.append(
            f"{plan.target.attention.linear_layers} layers of {plan.target.path} are linear attention, where ngram "
            "was reported to corrupt tool calls (vLLM issue 39273)"
        )
    return [Advice("warning", "method", message) for message in advice]


def _gate(plan: Candidate) -> list[Advice]:
    """A note that the gate saves less on data-parallel ranks that share experts: they wait for each other's drafter.

    vLLM 0.32 and 0.33 disable their own dynamic lengths there for the same reason. The ranks of a dense model are
    independent engines.
    """
    gate = ("gate", "speculate_below_context", "speculate_up_to_batch")
    gated = [name for name in gate if plan.value(name) not in (None, "off")]
    if not gated or plan.engine != "vllm" or plan.size("data_parallel_size") == 1 or not plan.target.experts:
        return []
    ranks = "ranks that share experts all draft equally many tokens, so the gate saves only verification"
    return [Advice("note", gated[0], f"{plan.text(gated[0])} and {plan.text('data_parallel_size')}: {ranks}")]


def _memory(plan: Candidate) -> list[Advice]:
    """Refuse a plan whose cache surely has no room for one sequence of full length; warn if it may have none."""
    if plan.gpus is None or plan.engine == "embedded":
        return []
    layout = memory.layout(plan.settings)
    budget = memory.budget(plan.target, plan.drafter, layout, plan.gpus.gpu)
    one = _gib(budget.sequence or 0)
    spent = (
        f"of {_gib(budget.total)} GiB on each {plan.gpus.gpu.name}, {layout.utilization:.0%} are used: weights take "
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
        architecture = plan.target.text_architecture
        return [
            Advice(
                "note", "context", f"only weights are counted: the KV cache layout of {architecture} is not known here"
            )
        ]
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


#: Storage format -> the lowest compute capability that calculates in it. Older GPUs unpack the weights first.
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
            f"{gpu.name} (SM{gpu.capability[0]}{gpu.capability[1]}) does not calculate in {stored.kind}, which needs "
            f"SM{needed[0]}{needed[1]}: the weights save memory, not arithmetic",
        )
    ]
