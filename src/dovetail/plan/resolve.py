"""Makes the plan: one checked value for every setting, with its source.

1. Read the user's settings, from the command line and a config file: the strongest layers.
2. Discover the target, the recipes that match it and the drafter; each adds a layer.
3. Choose the engine, if no layer does, and add the defaults, the weakest layer.
4. Check that everything fits together. What cannot work is refused; warnings, notes and advice are collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.checkpoints.files import has_tokenizer
from dovetail.checkpoints.gguf.folder import gguf_file
from dovetail.checkpoints.resolver import CheckpointResolver
from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.plan import defaults, drafting_precedence, embedded, engines, fit, llama_cpp, memory, pairing, parallel
from dovetail.plan.advice import advise
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.discovery import Discovery, discover
from dovetail.plan.drafting_precedence import combined
from dovetail.plan.emit import extra_options
from dovetail.plan.engines import chat_format
from dovetail.plan.layers import Layer, Setting, merged, overlay, value
from dovetail.plan.option import GROUPS
from dovetail.plan.options import BY_NAME, OPTIONS, validated
from dovetail.plan.outcome import Fit, Plan
from dovetail.plan.recipe import DEMO
from dovetail.plan.yaml_config import read_yaml

#: The source of the settings of one of several models.
SEVERAL = "file of models"


class UserSettings(NamedTuple):
    """Layers, strongest first, and a note for every setting under an older name."""

    layers: list[Layer]
    notes: list[str]


def read_user_settings(model: str | None, options: Mapping[str, Any], config: Path | None) -> UserSettings:
    """Check `options`, with `model` as the target, and the file `config`.

    Raises `PlanError` naming the source and the setting.
    """
    named = dict(options) if model is None else {**options, "target": model}
    values, notes = validated(named, "command line", Path.cwd())
    layers = [Layer("command line", values)]
    if config is not None:
        values, more = validated(_config_file(config), "config file", config.absolute().parent)
        layers.append(Layer("config file", values))
        notes += more
    return UserSettings(layers, notes)


def with_drafter_as_drafter(layer: Layer, checkpoints: CheckpointResolver) -> Layer:
    """The layer with its target as the drafter, if it is one. Raises `PlanError` if the layer sets another drafter."""
    source, values = layer
    target = values.get("target")
    if target is None or not checkpoints.is_drafter(target):
        return layer
    if "drafter" in values and values["drafter"] is None:
        raise PlanError(
            f"{source}: {target} is a drafter, but drafter is none: give the target as the model, or --draft-tokens 0"
        )
    if values.get("drafter", target) != target:
        raise PlanError(
            f"{source}: {target} is a drafter, and so is {values['drafter']}: give the target as the model, or "
            "only one drafter"
        )
    return Layer(source, {**{name: value for name, value in values.items() if name != "target"}, "drafter": target})


def _config_file(path: Path) -> dict[str, Any]:
    content = read_yaml(path, "config file")
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise PlanError(f"config file {path} must map settings to values, like `port: 8000`")
    return content


_ORDER = [option.name for group in GROUPS for option in OPTIONS if option.group == group]


def resolve(
    model: str | None,
    options: Mapping[str, Any],
    *,
    config: Path | None = None,
    recipe: str | None = None,
    engine: str | None = None,
    entry: Mapping[str, Any] | None = None,
) -> Plan:
    """Make the plan for `model` with the settings `options`.

    `model`: a target or a drafter, as a folder or a hub id; None: the demo pair. `config`: a file with more settings.
    `recipe`: the name or the file of the only recipe to use, "none" for no recipe, None for all that match. `engine`:
    the engine, if no layer sets one. `entry`: the settings of one of several models.
    Reads only small files, and downloads them for models on the hub.

    Raises `PlanError` for settings that are unknown, out of range or cannot work together, and `CheckpointError` for a
    checkpoint that is missing, incomplete or unreadable.
    """
    layers, notes = read_user_settings(model, options, config)
    if entry is not None:
        layers.insert(0, Layer(SEVERAL, entry))
    checkpoints = CheckpointResolver(value(overlay(layers), "revision"))
    discovery = discover([with_drafter_as_drafter(layer, checkpoints) for layer in layers], checkpoints, recipe)
    advice = [*(Advice("note", "", note) for note in notes), *discovery.advice]
    folders = _folders(discovery, checkpoints, advice)
    chosen, reason = _engine(discovery, folders, engine)
    layers = [*discovery.layers, Layer("default", _defaults(discovery, folders, chosen, advice))]
    settings, variables = combined(layers), merged("env", layers)
    if variables:
        sources = ", ".join(dict.fromkeys(variable.source for variable in variables.values()))
        settings["env"] = Setting({name: variable.value for name, variable in variables.items()}, sources)
    drafting_precedence.check(settings, discovery.drafter)
    _check_values(settings)
    if reason is not None:
        advice.append(Advice("note", "engine", reason))
    summary = None
    if discovery.target is not None:
        candidate = Candidate(discovery.target, discovery.drafter, settings, discovery.gpus)
        advice += fit.check(discovery.target, discovery.drafter, settings, discovery.gpus)
        advice += engines.check(candidate, folders)
        advice += advise(candidate, discovery.near, discovery.recipes)
        summary = _fit(candidate)
    return Plan(
        settings={name: settings[name] for name in _ORDER},
        variables=variables,
        target=discovery.target,
        drafter=discovery.drafter,
        gpus=discovery.gpus,
        fit=summary,
        recipes=discovery.recipes,
        advice=tuple(advice),
        folders=folders,
        reason=reason,
        compute=embedded.compute(settings) if chosen == "embedded" else None,
    )


def resolve_server(options: Mapping[str, Any], *, config: Path | None = None) -> Plan:
    """Make the plan of a server whose models a file has: the settings of the server alone.

    Raises `PlanError`, also for a setting of a model.
    """
    layers, notes = read_user_settings(None, options, config)
    for source, values in layers:
        for name in values:
            if not BY_NAME[name].of_server:
                raise PlanError(f"{source}: {name} belongs to a model: set it in the file that --models names")
    nothing = defaults.fixed("", "vllm", None) | {"target": None}
    settings = overlay([*layers, Layer("default", nothing)])
    _check_values(settings)
    return Plan(
        settings={name: settings[name] for name in _ORDER},
        variables={},
        target=None,
        drafter=None,
        gpus=None,
        fit=None,
        recipes=(),
        advice=tuple(Advice("note", "", note) for note in notes),
        folders={},
    )


def _folders(discovery: Discovery, checkpoints: CheckpointResolver, advice: list[Advice]) -> dict[str, str]:
    """The folders of the target, the drafter and the tokenizer on this machine, of those that could be read."""
    settings = combined(discovery.layers)
    folders = {}
    if discovery.target is not None:
        folders["target"] = checkpoints.target_folder(settings["target"].value)
        folders["tokenizer"] = folders["target"]
    if discovery.drafter is not None and discovery.drafter.config_format != "inside the target":
        folders["drafter"] = checkpoints.folder(discovery.drafter.path)
    tokenizer = settings.get("tokenizer")
    if tokenizer is not None and tokenizer.value is not None:
        try:
            folders["tokenizer"] = checkpoints.folder(tokenizer.value)
        except DovetailError as error:
            if discovery.target is not None:
                raise
            advice.append(Advice("warning", "tokenizer", f"{tokenizer.value} could not be read: {error.message}"))
        else:
            if not has_tokenizer(folders["tokenizer"]):
                raise CheckpointError(
                    f"tokenizer is {tokenizer.value} ({tokenizer.source}) but it has neither tokenizer.json nor "
                    "tiktoken.model"
                )
    return folders


def _engine(discovery: Discovery, folders: Mapping[str, str], default: str | None) -> tuple[str, str | None]:
    """The engine, and the reason for it if no layer sets one and it is vLLM or llama.cpp."""
    settings = combined(discovery.layers)
    if "engine" in settings:
        engine: str = settings["engine"].value
        if engine == "embedded" and discovery.target is None:
            raise PlanError(f"engine is embedded ({settings['engine'].source}) but the target could not be read")
        return engine, None
    if discovery.target is None or default is not None:
        return default or "vllm", None
    candidate = Candidate(discovery.target, discovery.drafter, settings, discovery.gpus)
    reason = embedded.why_not(candidate)
    if gguf_file(folders["target"]) is not None:
        return _engine_of_gguf(value(settings, "llama_server"), reason)
    if reason is not None:
        return "vllm", f"vLLM is needed: {reason}"
    reason = embedded.not_intended(candidate, folders, demo=DEMO in discovery.recipes)
    if reason is not None:
        return "vllm", f"vLLM is chosen: {reason}"
    return "embedded", None


def _engine_of_gguf(program: str | None, not_embedded: str | None) -> tuple[str, str]:
    """The engine for a GGUF file: llama.cpp where it is, because it computes with the file's own weights."""
    if llama_cpp.is_here(program):
        return (
            llama_cpp.NAME,
            "llama.cpp is chosen: it runs the GGUF file as it is. --engine embedded runs it in float32",
        )
    if not_embedded is None:
        less = "as it is, in less memory and time"
        return "embedded", f"the weights become float32: llama.cpp, which is not here, would run the GGUF file {less}"
    return llama_cpp.NAME, f"llama.cpp is needed: {not_embedded}"


def _defaults(discovery: Discovery, folders: Mapping[str, str], engine: str, advice: list[Advice]) -> dict[str, Any]:
    """The values of the weakest layer, which has every setting."""
    settings = combined(discovery.layers)
    method = value(settings, "method")
    if engine == "embedded" and not settings.keys() & {"drafter", "method"} and value(settings, "draft_tokens") != 0:
        method = embedded.LOOKUP
    values = defaults.fixed(settings["target"].value, engine, method)
    values |= {"engine": engine, "gpus": None if discovery.gpus is None else str(discovery.gpus)}
    if "format" in settings:
        _check_format(settings["format"], folders.get("target"))
    elif discovery.target is not None:
        detected = chat_format(folders["target"], generic_tools=value(settings, "generic_tools") is not False)
        values["format"] = detected.name
        if detected.template:
            why = f"the format is {detected.name}: {detected.reason}"
            advice.append(Advice("note" if detected.reads_calls else "warning", "format", why))
        if detected.name is None and engine != "embedded":
            unknown = f"the model's format is unknown, set --format: {detected.reason}"
            advice.append(Advice("warning", "format", unknown))
    if discovery.target is not None:
        candidate = Candidate(
            discovery.target, discovery.drafter, {"engine": Setting(engine, "default"), **settings}, discovery.gpus
        )
        sizes, said_of_them = defaults.sizes(candidate)
        values |= sizes
        advice += said_of_them
    settings = combined([*discovery.layers, Layer("default", values)])
    tokens = settings.get("draft_tokens")
    if engine == "embedded" and tokens is not None and tokens.value:
        values["gate"] = "measured"
        # The user's number is a limit. A drafter's or a recipe's number is not: it is from another machine.
        if not tokens.source.startswith(("command line", "config file", SEVERAL)) and value(settings, "gate") != "off":
            values["max_draft_tokens"] = embedded.DRAFT_TOKENS
    if discovery.target is not None and values.get("gate") != "measured":
        values["speculate_below_context"] = pairing.trained_limit(
            Candidate(discovery.target, discovery.drafter, settings, discovery.gpus)
        )
    if engine == "embedded" and value(settings, "chunked_prefill") is False:
        values["max_batched_tokens"] = embedded.whole_prompts(overlay([*discovery.layers, Layer("default", values)]))
    return values


def _check_format(setting: Setting[str], folder: str | None) -> None:
    """Check that there is such a format, and that it can write prompts for the target in `folder`.

    A folder without a tokenizer cannot be served, and is planned by its config alone.
    """
    from dovetail.formats import registry  # imports every family, which a plan without a format does not need

    try:
        if folder is None or not has_tokenizer(Path(folder)):
            registry.format(setting.value)
        else:
            registry.served_format(setting.value, Path(folder))
    except DovetailError as error:
        raise PlanError(f"format is {setting.value!r} ({setting.source}): {error.message}") from error


def _check_values(settings: Mapping[str, Setting[Any]]) -> None:
    extra = settings["engine_args"]
    for name in ("api_key_file", "api_keys", "record_key_file"):
        keys = settings[name]
        if keys.value is not None and not Path(keys.value).is_file():
            raise PlanError(f"{name} ({keys.source}): there is no file {keys.value}")
    if extra.value is not None:
        try:
            extra_options.check(extra.value, llama_cpp.NAME if settings["engine"].value == llama_cpp.NAME else "vllm")
        except PlanError as error:
            raise PlanError(f"engine_args is {extra.value!r:.80} ({extra.source}): {error.message}") from error


def _fit(candidate: Candidate) -> Fit:
    layout, embedded_engine = memory.layout(candidate.settings), candidate.engine == "embedded"
    if embedded_engine:
        # "auto" is the data type of computation, whatever the checkpoint is stored as.
        kinds = (candidate.value("kv_cache_dtype") or "auto", embedded.draft_cache(candidate))
        kv, draft_kv = (candidate.value("dtype") if kind == "auto" else kind for kind in kinds)
        layout = memory.Layout(kv_dtype=kv, draft_kv_dtype=draft_kv)
    elif candidate.engine == llama_cpp.NAME:
        layout = memory.Layout(kv_dtype=llama_cpp.cache_type(candidate))
    per_token = memory.per_token_of(candidate.target, candidate.drafter, layout)
    if embedded_engine and parallel.embedded_sizes(candidate).tensor > 1 and per_token is not None:
        # On the first rank, which has the drafter.
        per_token += embedded.rank_cache_bytes(candidate)
        per_token -= memory.per_token_of(candidate.target, None, layout) or 0
    each = None
    divided = candidate.engine not in ("embedded", llama_cpp.NAME)
    if candidate.gpus is not None and divided:
        each = memory.budget(candidate.target, candidate.drafter, layout, candidate.gpus.gpu)
    weights, draft = candidate.target.weights, candidate.drafter.weights if candidate.drafter else None
    return Fit(
        parameters=weights.parameters,
        active=weights.active,
        weights=weights.bytes,
        weights_from=weights.source,
        drafter_weights=draft.bytes if draft else 0,
        cache_per_token=per_token,
        gpus=str(candidate.gpus) if divided and candidate.gpus is not None else None,
        gpus_used=layout.gpus if divided else 0,
        each=each,
    )
