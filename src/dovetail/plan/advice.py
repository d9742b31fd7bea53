"""What would be gained by what a plan does without: a drafter, an FP8 cache, a longer context, a recipe, more GPUs.

Figures are reckoned as the fit is, or a recipe's, with who measured them; there are no others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from dovetail.checkpoints.drafter import Drafter, mtp_drafter
from dovetail.errors import DovetailError
from dovetail.plan import defaults, fit, memory, pairing
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.embedded import LOOKUP
from dovetail.plan.layers import Setting
from dovetail.plan.memory import Layout
from dovetail.plan.methods import LOOKUPS
from dovetail.plan.recipe import Facts, Figure, Recipe, may_run_on, named

_FP8_SINCE = (8, 9)  # the compute capability


def advise(plan: Candidate, recipes: Iterable[Recipe], taken: Collection[str]) -> list[Advice]:
    """What would be gained. `recipes`: those for this model, on whatever GPUs; `taken`: the names of those in use."""
    recipes = list(recipes)
    found = [*_drafting(plan, recipes)]
    if not any(recipe.name in taken for recipe in recipes):
        found += _recipes(plan, recipes)
    if plan.engine != "embedded" and "://" not in plan.engine:  # which have no such settings, or have their own
        found += [*_cache(plan), *_context(plan), *_gpus(plan)]
    return [Advice("advice", setting, message) for setting, message in found]


_Gains = Iterable[tuple[str, str]]


def _followed(plan: Candidate, its: Drafter | None = None, /, **said: Any) -> Candidate | None:
    """The plan in which this is said too, None if it is refused. What nobody said is then chosen anew."""
    kept = ("engine", "strict", *(("max_batch",) if "engine" not in said else ()))
    settings = {name: each for name, each in plan.settings.items() if each.source != "default" or name in kept}
    settings |= {name: Setting(value, "advice") for name, value in said.items()}
    plan = Candidate(plan.target, its or plan.drafter, settings, plan.gpus)
    try:
        sizes, _ = defaults.sizes(plan)
        settings |= {name: Setting(value, "default") for name, value in sizes.items()}
        fit.check(plan.target, plan.drafter, settings, plan.gpus)
    except DovetailError:
        return None
    return Candidate(plan.target, plan.drafter, settings, plan.gpus)


def _with_recipe(plan: Candidate, recipe: Recipe) -> bool:
    """Whether the plan with this recipe, below what is said, is not refused. A drafter that it brings is not read."""
    said = {name: each.value for name, each in plan.settings.items() if each.source != "default"}
    facts = Facts(plan.target.path, drafter=said.get("drafter", UNSET), gpus=plan.gpus, settings=said)
    values = {name: value for name, value in named(recipe, facts).values.items() if name not in (*said, "env")}
    if values.get("drafter") is not None:
        values.setdefault("method", _SOME)
    try:
        drafter = mtp_drafter(plan.target) if values.get("method") == "mtp" else None
    except DovetailError:
        return False
    return _followed(plan, drafter, **values) is not None


_SOME = "eagle3"  # of a drafter whose method is not known before it is read


def _options(plan: Candidate, /, **said: Any) -> str | None:
    """How this is asked for, over as many GPUs as now; None if it is refused."""
    then = _followed(plan, **said)
    if then is not None and then.size("tensor_parallel_size") != plan.size("tensor_parallel_size"):
        said["tensor_parallel_size"] = plan.size("tensor_parallel_size")
        then = _followed(plan, **said)
    if then is None:
        return None
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in said.items())


def _drafting(plan: Candidate, recipes: list[Recipe]) -> _Gains:
    target, embedded = plan.target, plan.engine == "embedded"
    if plan.method is not None and plan.settings["method"].source != "default":
        return
    drafters = {recipe.drafters[0]: recipe for recipe in reversed(recipes) if recipe.drafters}
    for drafter, recipe in drafters.items():
        if not _followed(plan, method=recipe.settings.get("method") or _SOME) or (
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
            f"download, {_gigabytes(target.weights.parts.mtp)} more of weights",
        )
    if not recipes and not target.mtp_layers:
        kind = "EAGLE-3, P-EAGLE, or a smaller one of its kind" if embedded else "EAGLE-3, DFlash and others"
        yield "drafter", f"a drafter made for this model ({kind}) saves steps of the target: --drafter PATH"
    methods = (LOOKUP,) if embedded else LOOKUPS[::-1]
    if plan.method is not None or not all(_followed(plan, method=method) for method in methods):
        return
    named = " or ".join(f"--method {method}" for method in methods)
    package = "" if embedded else " (suffix needs the package arctic-inference)"
    yield (
        "method",
        f"{named} drafts from earlier text, without a drafter: it pays where answers repeat their prompt, as edits of "
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
    """What other layouts of the cache would hold."""
    layout, attention = _layout(plan), plan.target.attention
    stored = plan.target.quantization.kv_cache if plan.target.quantization else None
    capability = plan.gpus.gpu.capability if plan.gpus else None
    if layout.kv_dtype in ("auto", "bfloat16", "float16") and not stored and (capability or _FP8_SINCE) >= _FP8_SINCE:
        gain = _gain(plan, msgspec.structs.replace(layout, kv_dtype="fp8"))
        asked = _options(plan, kv_cache_dtype="fp8")
        if gain and asked:
            yield "kv_cache_dtype", f"{asked}: {gain}"
    # Not for sparse attention: only some of its kernels can do it (vLLM 0.33, v1/attention/backends/mla).
    if attention.kind == "mla" and attention.index_dim is None and layout.tensor > layout.decode_context:
        gain = _gain(plan, msgspec.structs.replace(layout, decode_context=layout.tensor))
        asked = _options(plan, decode_context_parallel_size=layout.tensor)
        if gain and asked:
            yield (
                "decode_context_parallel_size",
                f"{asked}: {gain}; tensor parallelism alone does not divide an MLA cache",
            )


def _gain(plan: Candidate, other: Layout) -> str | None:
    """What the cache then holds in place of what it holds now, None where nothing is gained."""
    if plan.gpus is not None:
        now, then = (memory.budget(plan.target, plan.drafter, each, plan.gpus.gpu) for each in (_layout(plan), other))
        if now.tokens is None or then.tokens is None or then.tokens <= now.tokens:
            return None
        return f"room for {then.tokens:,} tokens in place of {now.tokens:,} (reckoned)"
    before, after = (memory.per_token_of(plan.target, plan.drafter, each) for each in (_layout(plan), other))
    if before is None or after is None or after >= before:
        return None
    return f"{after:,.0f} bytes of cache a token on each GPU in place of {before:,.0f}"


def _context(plan: Candidate) -> _Gains:
    context, longest = plan.value("context"), pairing.longest_context(plan.target, plan.drafter)[0]
    if context is None or plan.gpus is None:
        return
    if context < longest:
        layout = msgspec.structs.replace(_layout(plan), context=longest)
        whole = memory.budget(plan.target, plan.drafter, layout, plan.gpus.gpu)
        asked = _options(plan, context=longest)
        if whole.fits and whole.sequence is not None and asked:
            yield (
                "context",
                f"{asked} fits as well: one such sequence takes {_gigabytes(whole.sequence)} of the "
                f"{_gigabytes(whole.room)} that each GPU has for the cache",
            )
    elif longest < plan.target.context:
        yield "context", f"the target alone goes to {plan.target.context} tokens, with another drafter or none"


def _gpus(plan: Candidate) -> _Gains:
    if plan.gpus is None:
        yield "gpus", "say which GPUs (--gpus '8x B200', or '8x96GB'), and memory and recipes are checked against them"
        return
    used, replicas = _layout(plan).gpus, plan.gpus.count // max(_layout(plan).gpus, 1)
    asked = _options(plan, data_parallel_size=replicas) if replicas > 1 else None
    if asked and plan.value("data_parallel_size") is None:
        yield (
            "data_parallel_size",
            f"{asked} serves as many requests again on the {plan.gpus.count - used} GPUs that are not used; more of "
            "them for each make it quicker (--tensor-parallel-size)",
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
