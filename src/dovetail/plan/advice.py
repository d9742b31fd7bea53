"""Advises on what a plan could gain: a drafter, an FP8 cache, a longer context, a recipe, more GPUs.

Figures are estimates, calculated like the fit, or measurements from recipes, with who measured them. Advice is checked
before it is given: a plan that follows it is not refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from dovetail.checkpoints.drafter import Drafter, mtp_drafter
from dovetail.checkpoints.methods import LOOKUPS
from dovetail.errors import DovetailError
from dovetail.plan import defaults, fit, memory, pairing
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.embedded import LOOKUP
from dovetail.plan.layers import Setting
from dovetail.plan.memory import Layout
from dovetail.plan.recipe import Facts, Figure, Recipe, may_run_on, named

_FP8_SINCE = (8, 9)  # the lowest compute capability with FP8


def advise(plan: Candidate, recipes: Iterable[Recipe], used: Collection[str]) -> list[Advice]:
    """The advice on `plan`. `recipes`: those for this model on any GPUs. `used`: the names of the recipes in use."""
    recipes = list(recipes)
    gains = [*_drafting(plan, recipes)]
    if not any(recipe.name in used for recipe in recipes):
        gains += _recipes(plan, recipes)
    if plan.engine not in ("embedded", "llama.cpp") and "://" not in plan.engine:  # these have no such settings
        gains += [*_cache(plan), *_context(plan), *_gpus(plan)]
    return [Advice("advice", setting, message) for setting, message in gains]


#: The setting and the message of each advice.
_Gains = Iterable[tuple[str, str]]


def _followed(plan: Candidate, drafter: Drafter | None = None, /, **changes: Any) -> Candidate | None:
    """The plan with `changes` and, if given, another drafter; None if it is refused. Defaults are chosen again."""
    fixed = ("engine", "strict", *(("max_batch",) if "engine" not in changes else ()))
    settings = {name: each for name, each in plan.settings.items() if each.source != "default" or name in fixed}
    settings |= {name: Setting(value, "advice") for name, value in changes.items()}
    plan = Candidate(plan.target, drafter or plan.drafter, settings, plan.gpus)
    try:
        sizes, _ = defaults.sizes(plan)
        settings |= {name: Setting(value, "default") for name, value in sizes.items()}
        fit.check(plan.target, plan.drafter, settings, plan.gpus)
    except DovetailError:
        return None
    return Candidate(plan.target, plan.drafter, settings, plan.gpus)


def _with_recipe(plan: Candidate, recipe: Recipe) -> bool:
    """Whether the plan with this recipe as its weakest source is not refused. The recipe's drafter is not read."""
    given = {name: each.value for name, each in plan.settings.items() if each.source != "default"}
    facts = Facts(plan.target.path, drafter=given.get("drafter", UNSET), gpus=plan.gpus, settings=given)
    values = {name: value for name, value in named(recipe, facts).values.items() if name not in (*given, "env")}
    if values.get("drafter") is not None:
        values.setdefault("method", _ANY_METHOD)
    try:
        drafter = mtp_drafter(plan.target) if values.get("method") == "mtp" else None
    except DovetailError:
        return False
    return _followed(plan, drafter, **values) is not None


_ANY_METHOD = "eagle3"  # stands for the method of a drafter that is not read yet


def _options(plan: Candidate, /, **changes: Any) -> str | None:
    """The options for `changes`, on as many GPUs as now; None if the plan with them is refused."""
    changed = _followed(plan, **changes)
    if changed is not None and changed.size("tensor_parallel_size") != plan.size("tensor_parallel_size"):
        changes["tensor_parallel_size"] = plan.size("tensor_parallel_size")
        changed = _followed(plan, **changes)
    if changed is None:
        return None
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())


def _drafting(plan: Candidate, recipes: list[Recipe]) -> _Gains:
    target, own, engine = plan.target, {"embedded": (LOOKUP,), "llama.cpp": ("ngram",)}, plan.engine
    if plan.method is not None and plan.settings["method"].source != "default":
        return
    drafters = {recipe.drafters[0]: recipe for recipe in reversed(recipes) if recipe.drafters}
    for drafter, recipe in drafters.items():
        if not _followed(plan, method=recipe.settings.get("method") or _ANY_METHOD) or (
            may_run_on(recipe, plan.gpus) and not _with_recipe(plan, recipe)
        ):
            continue
        figure = next((each for each in recipe.measured if each.what == "acceptance length"), None)
        yield "drafter", f"--drafter {drafter} drafts for this model{_measured(figure)}"
    if target.mtp_layers and target.mtp_weights is not False and _followed(plan, mtp_drafter(target), method="mtp"):
        layers = "layer" if target.mtp_layers == 1 else "layers"
        yield (
            "method",
            f"--method mtp drafts with the target's own {target.mtp_layers} MTP {layers}: nothing to "
            f"download, {_gigabytes(target.weights.parts.mtp)} more weights",
        )
    if not recipes and not target.mtp_layers:
        smaller = {
            "embedded": "EAGLE-3, P-EAGLE, or a smaller model of its kind",
            "llama.cpp": "a smaller GGUF of its kind",
        }
        kind = smaller.get(engine, "EAGLE-3, DFlash and others")
        yield "drafter", f"a drafter for this model ({kind}) saves steps of the target: --drafter PATH"
    methods = own.get(engine, LOOKUPS[::-1])
    if plan.method is not None or not all(_followed(plan, method=method) for method in methods):
        return
    named = " or ".join(f"--method {method}" for method in methods)
    package = "" if engine in own else " (suffix needs the package arctic-inference)"
    yield (
        "method",
        f"{named} drafts from earlier text, without a drafter: it helps if answers repeat their prompt, as edits of "
        f"code do{package}",
    )


def _measured(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return f". Measured: {figure.what} {figure.value:g} {figure.unit} ({figure.conditions}; by {figure.by})"


def _recipes(plan: Candidate, recipes: list[Recipe]) -> _Gains:
    for recipe in recipes:
        if may_run_on(recipe, plan.gpus) and _with_recipe(plan, recipe):
            figure = next((each for each in recipe.measured if each.what != "acceptance length"), None)
            yield "recipe", f"--recipe {recipe.name} is for this model: {recipe.title}{_measured(figure)}"


def _layout(plan: Candidate) -> Layout:
    return memory.layout(plan.settings)


def _cache(plan: Candidate) -> _Gains:
    """Layouts of the KV cache with room for more tokens."""
    layout, attention = _layout(plan), plan.target.attention
    stored = plan.target.quantization.kv_cache if plan.target.quantization else None
    capability = plan.gpus.gpu.capability if plan.gpus else None
    if layout.kv_dtype in ("auto", "bfloat16", "float16") and not stored and (capability or _FP8_SINCE) >= _FP8_SINCE:
        gain = _gain(plan, msgspec.structs.replace(layout, kv_dtype="fp8"))
        options = _options(plan, kv_cache_dtype="fp8")
        if gain and options:
            yield "kv_cache_dtype", f"{options}: {gain}"
    # Not for sparse attention, of which only some kernels support it (vLLM 0.33, v1/attention/backends/mla).
    if attention.kind == "mla" and attention.index_dim is None and layout.tensor > layout.decode_context:
        gain = _gain(plan, msgspec.structs.replace(layout, decode_context=layout.tensor))
        options = _options(plan, decode_context_parallel_size=layout.tensor)
        if gain and options:
            yield (
                "decode_context_parallel_size",
                f"{options}: {gain}; tensor parallelism alone does not divide an MLA cache",
            )


def _gain(plan: Candidate, other: Layout) -> str | None:
    """What the cache would hold instead of what it holds now, None if nothing is gained."""
    if plan.gpus is not None:
        now, then = (memory.budget(plan.target, plan.drafter, each, plan.gpus.gpu) for each in (_layout(plan), other))
        if now.tokens is None or then.tokens is None or then.tokens <= now.tokens:
            return None
        return f"room for {then.tokens:,} tokens instead of {now.tokens:,} (estimated)"
    before, after = (memory.per_token_of(plan.target, plan.drafter, each) for each in (_layout(plan), other))
    if before is None or after is None or after >= before:
        return None
    return f"{after:,.0f} bytes of KV cache per token on each GPU instead of {before:,.0f}"


def _context(plan: Candidate) -> _Gains:
    context, longest = plan.value("context"), pairing.longest_context(plan.target, plan.drafter)[0]
    if context is None or plan.gpus is None:
        return
    if context < longest:
        layout = msgspec.structs.replace(_layout(plan), context=longest)
        whole = memory.budget(plan.target, plan.drafter, layout, plan.gpus.gpu)
        options = _options(plan, context=longest)
        if whole.fits and whole.sequence is not None and options:
            yield (
                "context",
                f"{options} fits as well: one such sequence takes {_gigabytes(whole.sequence)} of the "
                f"{_gigabytes(whole.room)} that each GPU has for the cache",
            )
    elif longest < plan.target.context:
        yield "context", f"the target alone supports {plan.target.context} tokens, with another drafter or none"


def _gpus(plan: Candidate) -> _Gains:
    if plan.gpus is None:
        yield "gpus", "name the GPUs (--gpus '8x B200', or '8x96GB') to have memory and recipes checked against them"
        return
    used, replicas = _layout(plan).gpus, plan.gpus.count // max(_layout(plan).gpus, 1)
    options = _options(plan, data_parallel_size=replicas) if replicas > 1 else None
    if options and plan.value("data_parallel_size") is None:
        yield (
            "data_parallel_size",
            f"{options} serves that many times the requests, on the {plan.gpus.count - used} unused GPUs too; more "
            "GPUs per replica make answers faster (--tensor-parallel-size)",
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
