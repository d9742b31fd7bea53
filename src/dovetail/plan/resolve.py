"""Makes the plan: what was said, on the command line and elsewhere, becomes one checked value for every setting.

1. Read what was said, on the command line and in a config file: the strongest layers. 2. Find what it is about: the
target, the recipes that fit it, the drafter; each adds a layer. 3. Choose the engine, if nobody did, and fill in
defaults, the last layer. 4. Hold it all against each other: refuse what cannot work, say what is to be known and what
would be gained.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.checkpoints.files import has_tokenizer
from dovetail.checkpoints.resolver import CheckpointResolver
from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.plan import defaults, drafting_precedence, embedded, engines, fit, memory
from dovetail.plan.advice import advise
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.chat_format import chat_format
from dovetail.plan.discovery import Discovery, discover
from dovetail.plan.drafting_precedence import combined
from dovetail.plan.emit import extra_options
from dovetail.plan.layers import Layer, Setting, merged, overlay, value
from dovetail.plan.option import GROUPS
from dovetail.plan.options import OPTIONS
from dovetail.plan.outcome import Fit, Plan
from dovetail.plan.recipe import DEMO
from dovetail.plan.user_settings import drafters_apart, said

_ORDER = [option.name for group in GROUPS for option in OPTIONS if option.group == group]


def resolve(
    model: str | None,
    options: Mapping[str, Any],
    *,
    config: Path | None = None,
    recipe: str | None = None,
    engine: str | None = None,
) -> Plan:
    """The plan for `model` (a target or a drafter, as a folder or a hub id; None: the demo pair) under `options`.

    `config` is a file with more settings. `recipe` names one, or a file, that is taken in place of those that fit;
    "none" takes none. `engine` is taken where no layer says one. Raises `PlanError` for settings that are unknown, out
    of range or cannot work together, and `CheckpointError` for checkpoints that are not what they should be. Reads
    small files only; those of models on the hub are fetched.
    """
    layers, notes = said(model, options, config)
    checkpoints = CheckpointResolver(value(overlay(layers), "revision"))
    found = discover([drafters_apart(layer, checkpoints) for layer in layers], checkpoints, recipe)
    advice = [*(Advice("note", "", note) for note in notes), *found.advice]
    folders = _folders(found, checkpoints, advice)
    chosen, reason = _engine(found, folders, engine)
    layers = [*found.layers, Layer("default", _defaults(found, folders, chosen, advice))]
    settings, variables = combined(layers), merged("env", layers)
    if variables:
        sources = ", ".join(dict.fromkeys(variable.source for variable in variables.values()))
        settings["env"] = Setting({name: variable.value for name, variable in variables.items()}, sources)
    drafting_precedence.check(settings, found.drafter)
    _check_values(settings)
    if reason is not None:
        advice.append(Advice("note", "engine", reason))
    summary = None
    if found.target is not None:
        candidate = Candidate(found.target, found.drafter, settings, found.gpus)
        advice += fit.check(found.target, found.drafter, settings, found.gpus)
        advice += engines.check(candidate, folders)
        advice += advise(candidate, found.near, found.recipes)
        summary = _fit(candidate)
    return Plan(
        settings={name: settings[name] for name in _ORDER},
        variables=variables,
        target=found.target,
        drafter=found.drafter,
        gpus=found.gpus,
        fit=summary,
        recipes=found.recipes,
        advice=tuple(advice),
        folders=folders,
        reason=reason,
        compute=embedded.compute(settings) if chosen == "embedded" else None,
    )


def _folders(found: Discovery, checkpoints: CheckpointResolver, advice: list[Advice]) -> dict[str, str]:
    """Where on this machine the target, the drafter and the tokenizer lie, as far as they could be looked at."""
    settings = combined(found.layers)
    folders = {}
    if found.target is not None:
        folders["target"] = checkpoints.target_folder(settings["target"].value)
        folders["tokenizer"] = folders["target"]
    if found.drafter is not None and found.drafter.config_format != "inside the target":
        folders["drafter"] = checkpoints.folder(found.drafter.path)
    tokenizer = settings.get("tokenizer")
    if tokenizer is not None and tokenizer.value is not None:
        try:
            folders["tokenizer"] = checkpoints.folder(tokenizer.value)
        except DovetailError as error:
            if found.target is not None:
                raise
            advice.append(Advice("warning", "tokenizer", f"{tokenizer.value} could not be read: {error.message}"))
        else:
            if not has_tokenizer(folders["tokenizer"]):
                raise CheckpointError(
                    f"tokenizer is {tokenizer.value} ({tokenizer.source}) but there is neither tokenizer.json nor "
                    "tiktoken.model"
                )
    return folders


def _engine(found: Discovery, folders: Mapping[str, str], otherwise: str | None) -> tuple[str, str | None]:
    """The engine, and why it has to be that where nobody asked for one."""
    settings = combined(found.layers)
    if "engine" in settings:
        engine: str = settings["engine"].value
        if engine == "embedded" and found.target is None:
            raise PlanError(f"engine is embedded ({settings['engine'].source}) but the target could not be read")
        return engine, None
    if found.target is None or otherwise is not None:
        return otherwise or "vllm", None
    candidate = Candidate(found.target, found.drafter, settings, found.gpus)
    why = embedded.why_not(candidate)
    if why is not None:
        return "vllm", f"vLLM is needed: {why}"
    why = embedded.not_intended(candidate, folders, demo=DEMO in found.recipes)
    if why is not None:
        return "vllm", f"vLLM is taken: {why}"
    return "embedded", None


def _defaults(found: Discovery, folders: Mapping[str, str], engine: str, advice: list[Advice]) -> dict[str, Any]:
    """The last layer, in which every setting is."""
    settings = combined(found.layers)
    method = value(settings, "method")
    if engine == "embedded" and not settings.keys() & {"drafter", "method"} and value(settings, "draft_tokens") != 0:
        method = embedded.LOOKUP
    values = defaults.fixed(settings["target"].value, engine, method)
    values |= {"engine": engine, "gpus": None if found.gpus is None else str(found.gpus)}
    if "format" in settings:
        _check_format(settings["format"])
    elif found.target is not None:
        detected = chat_format(folders["target"])
        values["format"] = detected.name
        if detected.name is None and engine != "embedded":
            unknown = f"the model's language is not known, say --format: {detected.reason}"
            advice.append(Advice("warning", "format", unknown))
    if found.target is not None:
        candidate = Candidate(
            found.target, found.drafter, {"engine": Setting(engine, "default"), **settings}, found.gpus
        )
        sizes, said_of_them = defaults.sizes(candidate)
        values |= sizes
        advice += said_of_them
    tokens = combined([*found.layers, Layer("default", values)]).get("draft_tokens")
    if engine == "embedded" and tokens is not None and tokens.value:
        values["gate"] = "measured"
        # A drafter's or a recipe's number was found elsewhere; here it is measured. Somebody's own word is a limit.
        if not tokens.source.startswith(("command line", "config file")) and value(settings, "gate") != "off":
            values["max_draft_tokens"] = embedded.DRAFT_TOKENS
    if engine == "embedded" and value(settings, "chunked_prefill") is False:
        values["max_batched_tokens"] = embedded.whole_prompts(overlay([*found.layers, Layer("default", values)]))
    return values


def _check_format(setting: Setting[str]) -> None:
    from dovetail.formats import format  # brings every family, which a plan without a format has no use for

    try:
        format(setting.value)
    except DovetailError as error:
        raise PlanError(f"format is {setting.value!r} ({setting.source}): {error.message}") from error


def _check_values(settings: Mapping[str, Setting[Any]]) -> None:
    keys, extra = settings["api_key_file"], settings["engine_args"]
    if keys.value is not None and not Path(keys.value).is_file():
        raise PlanError(f"api_key_file ({keys.source}): there is no file {keys.value}")
    if extra.value is not None:
        try:
            extra_options.check(extra.value)
        except PlanError as error:
            raise PlanError(f"engine_args is {extra.value!r:.80} ({extra.source}): {error.message}") from error


def _fit(candidate: Candidate) -> Fit:
    layout, embedded_engine = memory.layout(candidate.settings), candidate.engine == "embedded"
    if embedded_engine:
        # "auto" is what it computes in, whatever the checkpoint is stored as.
        kinds = (candidate.value("kv_cache_dtype") or "auto", candidate.value("draft_kv_cache_dtype"))
        kv, draft_kv = (candidate.value("dtype") if kind == "auto" else kind for kind in kinds)
        layout = memory.Layout(kv_dtype=kv, draft_kv_dtype=draft_kv)
    each = None
    if candidate.gpus is not None and not embedded_engine:
        each = memory.budget(candidate.target, candidate.drafter, layout, candidate.gpus.gpu)
    weights, draft = candidate.target.weights, candidate.drafter.weights if candidate.drafter else None
    return Fit(
        parameters=weights.parameters,
        active=weights.active,
        weights=weights.bytes,
        weights_from=weights.source,
        drafter_weights=draft.bytes if draft else 0,
        cache_per_token=memory.per_token_of(candidate.target, candidate.drafter, layout),
        gpus=None if embedded_engine or candidate.gpus is None else str(candidate.gpus),
        gpus_used=0 if embedded_engine else layout.gpus,
        each=each,
    )
