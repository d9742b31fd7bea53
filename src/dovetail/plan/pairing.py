"""Whether a drafter is one for this target: widths, vocabularies, layers, family, positions, lengths.

Every refusal names what each side says, and the way out. Where a rule is an engine's, its docstring names the file in
vLLM 0.33 that has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.drafter_fit import misfit
from dovetail.checkpoints.target import Target
from dovetail.errors import PlanError
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.drafter_support import cannot_run


def check(plan: Candidate, drafter: Drafter) -> list[Advice]:
    """What there is to know about the pair. Raises `PlanError` for the first thing that does not fit."""
    _engine(plan, drafter)
    _pair(plan.target, drafter)
    return [*_named_target(plan.target, drafter), *_positions(plan, drafter), *_length(plan, drafter)]


def longest_context(target: Target, drafter: Drafter | None) -> tuple[int, str]:
    """The longest context that both can do, and which of them says so: what a plan takes when nobody asks."""
    limit = _limit(drafter)
    if drafter is not None and limit is not None and limit < target.context:
        return limit, f"the drafter's ({drafter.path}: max_position_embeddings)"
    return target.context, f"the target's ({target.context_note})"


def _misfit(target: Target, drafter: Drafter, why: str) -> PlanError:
    return PlanError(
        f"{drafter.path} does not fit {target.path}: {why}. Use a drafter made for this target, or `--drafter none`"
    )


def _engine(plan: Candidate, drafter: Drafter) -> None:
    if plan.engine in ("embedded", "vllm", "sglang", "trtllm"):
        why = cannot_run(drafter, plan.engine)
        if why is not None:
            raise PlanError(
                f"engine {plan.engine} cannot run {drafter.path} ({drafter.method}, {drafter.config_format}): {why}. "
                "Use another drafter or engine, or `--drafter none`"
            )


#: Drafters for another model than their name says, which their config does not declare: part of the path -> the
#: model_types of their targets, the target, and the source. vLLM's recipe for Kimi-K2.5 names this drafter too, but
#: those who ran the pair report that it is not compatible.
_PAIRS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "kimi-k2.5-thinking-eagle3": (
        ("kimi_k2", "deepseek_v3"),
        "nvidia/Kimi-K2-Thinking-NVFP4, the text model",
        "README of the vllm-kimi25-eagle image",
    ),
}


def _pair(target: Target, drafter: Drafter) -> None:
    for part, (families, only, source) in _PAIRS.items():
        if part in drafter.path.lower() and target.family not in families:
            multimodal = ", multimodal" if target.multimodal else ""
            this = f"this one is {target.architecture} ({target.family}{multimodal})"
            raise _misfit(target, drafter, f"it works only with {only} ({source}), {this}")
    reason = misfit(drafter, target)
    if reason is not None:
        raise _misfit(target, drafter, reason)
    draft = drafter.draft_vocab
    if draft is not None and draft < target.vocab and drafter.has_vocab_map is False:
        raise PlanError(
            f"{drafter.path}: draft_vocab_size is {draft} of the target's {target.vocab} but its weights hold no d2t, "
            "the map from one vocabulary to the other: fetch or convert the drafter again"
        )


def _named_target(target: Target, drafter: Drafter) -> list[Advice]:
    """Targets of one shape can be different models (Qwen3-30B-A3B and its Coder): only the name tells."""
    verifier = drafter.verifier
    if drafter.config_format != "speculators" or verifier is None or _letters(verifier) in _letters(target.path):
        return []
    return [
        Advice(
            "warning",
            "drafter",
            f"{drafter.path} was made for {verifier}: with {target.path} it may guess worse (what is said stays the "
            "target's)",
        )
    ]


def _letters(path: str) -> str:
    """The last name of `path`, or all of it inside a hub's cache, as letters and digits that can be compared."""
    name = path if "snapshots" in path else path.rstrip("/").rpartition("/")[2]
    return "".join(letter for letter in name.lower() if letter.isalnum())


#: Ropes whose table of positions can be made longer (config/speculative.py: _CACHE_ONLY_ROPE_TYPES).
_EXTENSIBLE = ("default", "linear", "llama3", "ntk", "proportional", "mrope")


def _limit(drafter: Drafter | None) -> int | None:
    """The context that a drafter bounds, None where it bounds none.

    A drafter beside the target shares its positions; a rope that only sizes a table is made longer, one whose table or
    frequencies come from the trained length (YaRN, dynamic, longrope) is not, and then bounds the endpoint, as the
    context of a draft model does (config/vllm.py: _limit_max_model_len_to_draft).
    """
    if drafter is None or drafter.context is None or drafter.rope is None:
        return None
    extends = drafter.rope.type in _EXTENSIBLE and drafter.method != "draft_model"
    return None if extends else drafter.context


def _positions(plan: Candidate, drafter: Drafter) -> list[Advice]:
    """The drafter's rope: three-part positions (mrope) as the target's, and a context as long as is asked for."""
    rope, target = drafter.rope, plan.target
    if rope is not None and rope.mrope and not target.rope.mrope:
        raise _misfit(
            target,
            drafter,
            f"its positions have three parts (rope type {rope.type}, mrope), the target's have one (rope type "
            f"{target.rope.type})",
        )
    context = plan.value("context") or target.context
    limit = _limit(drafter)
    if limit is not None and rope is not None and limit < context:
        asked = plan.text("context") if plan.value("context") else f"context is the target's {context}"
        raise PlanError(
            f"{asked} but {drafter.path} ends at {limit} (max_position_embeddings, rope type {rope.type}): ask for "
            f"--context {limit}, or `--drafter none`"
        )
    below = plan.value("speculate_below_context") or context
    if drafter.context is None or drafter.context >= min(context, below):
        return []
    # No limit is made of it: what a config says is a bound of positions as often as what was trained on, and a drafter
    # may guess well beyond it. A gate that measures finds where it does not.
    measured = plan.value("gate") == "measured"
    tail = f"worse, which the gate measures; --speculate-below-context {drafter.context} draws the line there"
    return [
        Advice(
            "note" if measured else "warning",
            "speculate_below_context",
            f"{drafter.path} was trained on {drafter.context} tokens, the context is {context}: beyond those it "
            f"guesses {tail if measured else 'worse'}",
        )
    ]


def _length(plan: Candidate, drafter: Drafter) -> list[Advice]:
    """A block method drafts no more than its block; MTP layers are run in whole rounds (config/speculative.py)."""
    tokens, layers = plan.value("draft_tokens"), drafter.layers
    if not tokens:
        return []
    if drafter.most_tokens is not None and tokens > drafter.most_tokens:
        raise PlanError(
            f"{plan.text('draft_tokens')} but {drafter.path} ({drafter.method}) drafts at most {drafter.most_tokens} a "
            f"step (block_size {drafter.block_size}): ask for no more"
        )
    if drafter.method != "mtp" or not layers or tokens <= layers:
        return []
    if tokens % layers:
        raise PlanError(
            f"{plan.text('draft_tokens')} but {drafter.path} has {layers} MTP layers, which are run in whole rounds: "
            f"ask for a multiple of {layers}, or for fewer"
        )
    return [
        Advice(
            "note",
            "draft_tokens",
            f"{tokens} tokens a step from {layers} MTP layer{'s' if layers > 1 else ''}: the same layers run again for "
            "the further ones, which are accepted less often",
        )
    ]
