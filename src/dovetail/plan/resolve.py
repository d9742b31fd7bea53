"""Makes the plan: what was said, on the command line and elsewhere, becomes one checked value for every setting.

1. Collect layers, strongest first: command line, config file, recipe (when no model was named at all).
2. Read the drafter, if there is one: its own config is the next layer. 3. Read the target: what follows from it, and
fixed defaults, are the last. 4. Hold the settings against each other and refuse what cannot work.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dovetail.engine.config import TargetConfig, drafter_config, target_config
from dovetail.errors import CheckpointError, PlanError
from dovetail.formats import format
from dovetail.formats.base import Strict
from dovetail.plan import recipe
from dovetail.plan.checkpoint import check_whole, is_drafter, read_config, verifier
from dovetail.plan.layers import Layer, Setting, overlay
from dovetail.plan.options import MAX_DRAFT_TOKENS, check

_DEFAULT_DRAFT_TOKENS = 3


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what runs. `context` is in tokens; `threads` None leaves the number to the engine.

    `drafter`, `method` and `gate` are None when there is none; `draft_tokens` is then 0.
    """

    target: Setting[str]
    drafter: Setting[str | None]
    method: Setting[str | None]
    draft_tokens: Setting[int]
    gate: Setting[str | None]
    format: Setting[str]
    strict: Setting[Strict]
    engine: Setting[str]
    dtype: Setting[str]
    context: Setting[int]
    max_batch: Setting[int]
    threads: Setting[int | None]
    served_model_name: Setting[str]
    host: Setting[str]
    port: Setting[int]
    api_key_file: Setting[str | None]


def resolve(model: str | None, options: Mapping[str, Any], *, config: Path | None = None) -> Plan:
    """The plan for `model` (a target's folder, a drafter's, or None: the demo pair) under `options` and a config file.

    Raises `PlanError` for settings that are unknown, out of range or cannot work together, and `CheckpointError` for
    folders that are not what they should be. Reads small JSON files only.
    """
    said = dict(options) if model is None else {**options, "target": model}
    layers = [_read("command line", said, Path.cwd())]
    if config is not None:
        layers.append(_read("config file", _config_file(config), config.absolute().parent))
    settings = overlay(layers)
    if "target" not in settings and ("drafter" not in settings or settings["drafter"].value is None):
        layers.append(recipe.demo())
        settings = overlay(layers)
    engine = settings.get("engine")
    if engine is not None and engine.value != "embedded":
        raise PlanError(f"engine {engine.value!r} ({engine.source}): not yet; only 'embedded' can be used so far")
    drafter = settings.get("drafter")
    if drafter is not None and drafter.value is not None:
        layers.append(Layer("drafter", _from_drafter(drafter.value, settings.get("target"))))
        settings = overlay(layers)
    target = settings["target"].value
    shape = _target_config(target)
    check_whole(target, tokenizer=True)
    layers.append(Layer("default", _defaults(target, shape, settings)))
    settings = overlay(layers)
    settings["draft_tokens"] = _draft_tokens(settings, [layer.source for layer in layers])
    _check(settings, shape)
    return Plan(**settings)


def _read(source: str, values: Mapping[str, Any], folder: Path) -> Layer:
    """A layer of checked options, in which a drafter that was given as the model is the drafter."""
    checked = check(values, source, folder)
    if "target" in checked and is_drafter(checked["target"]):
        if checked.get("drafter", checked["target"]) != checked["target"]:
            raise PlanError(
                f"{source}: {checked['target']} is a drafter, and so is {checked['drafter']}: give the target's folder "
                "as the model, or one drafter alone"
            )
        checked["drafter"] = checked.pop("target")
    return Layer(source, checked)


def _config_file(path: Path) -> dict[str, Any]:
    try:
        content = msgspec.yaml.decode(path.read_bytes())
    except OSError as error:
        raise PlanError(f"config file {path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise PlanError(f"config file {path} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise PlanError(f"config file {path} must map settings to values, like `port: 8000`")
    return content


def _target_config(path: str) -> TargetConfig:
    return target_config(read_config(path), Path(path))


def _from_drafter(path: str, named_target: Setting[str] | None) -> dict[str, Any]:
    """What the drafter's own config settles, once it fits the named target, or else the one that it names itself."""
    raw = read_config(path)
    if raw.get("speculators_model_type") is None:
        raise PlanError(f"drafter {path}: its config.json is not in the speculators format (no speculators_model_type)")
    target = verifier(path, raw) if named_target is None else named_target.value
    shape = _target_config(target)
    try:
        config = drafter_config(raw, Path(path), shape)
    except CheckpointError as error:
        raise PlanError(f"{error.message}. Use a drafter made for {target}, or `--drafter none`") from error
    check_whole(path, tokenizer=False)
    values = {"target": target, "method": raw["speculators_model_type"], "draft_tokens": config.speculative_tokens}
    return {name: value for name, value in values.items() if value is not None}


def _defaults(target: str, shape: TargetConfig, settings: Mapping[str, Setting[Any]]) -> dict[str, Any]:
    # Also when the format is named: a name that no format has is refused here.
    named = settings.get("format")
    return {
        "drafter": None,
        "method": None,
        "draft_tokens": _DEFAULT_DRAFT_TOKENS if "method" in settings else 0,
        "gate": None,
        "format": format(target if named is None else named.value).name,
        "strict": "schema",
        "engine": "embedded",
        "dtype": "float32",
        "context": shape.max_position_embeddings,
        "max_batch": 16,
        "threads": None,
        "served_model_name": Path(target).name,
        "host": "127.0.0.1",
        "port": 8000,
        "api_key_file": None,
    }


def _draft_tokens(settings: Mapping[str, Setting[Any]], strength: list[str]) -> Setting[int]:
    """The draft length, 0 without a drafter: whoever ruled the drafter out also overrules a weaker length."""
    drafter, tokens = settings["drafter"], settings["draft_tokens"]
    if drafter.value is not None or not tokens.value:
        return tokens
    if strength.index(tokens.source) <= strength.index(drafter.source):
        raise PlanError(
            f"draft_tokens is {tokens.value} ({tokens.source}) but drafter is none ({drafter.source}): name a drafter, "
            "or leave draft_tokens out"
        )
    return Setting(0, drafter.source)


def _check(settings: Mapping[str, Setting[Any]], shape: TargetConfig) -> None:
    tokens, context, keys = settings["draft_tokens"], settings["context"], settings["api_key_file"]
    if not 0 <= tokens.value <= MAX_DRAFT_TOKENS:
        raise PlanError(
            f"draft_tokens is {tokens.value} ({tokens.source}), at most {MAX_DRAFT_TOKENS} can be drafted a step: say "
            "--draft-tokens"
        )
    if context.value > shape.max_position_embeddings:
        raise PlanError(
            f"context is {context.value} ({context.source}) but the target was made for "
            f"{shape.max_position_embeddings} tokens (max_position_embeddings): ask for no more than that"
        )
    if keys.value is not None and not Path(keys.value).is_file():
        raise PlanError(f"api_key_file ({keys.source}): there is no file {keys.value}")
