"""Reads the settings that the user gives, on the command line and in a config file, as the strongest layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.checkpoints.resolver import CheckpointResolver
from dovetail.errors import PlanError
from dovetail.plan.layers import Layer
from dovetail.plan.options import validated
from dovetail.plan.yaml_config import read_yaml


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
