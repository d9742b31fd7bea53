"""What people say of a plan, on the command line and in a config file: checked settings, each under who said it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.checkpoints.resolver import CheckpointResolver
from dovetail.errors import PlanError
from dovetail.plan.layers import Layer
from dovetail.plan.options import validated
from dovetail.plan.yaml_config import read_yaml


class Said(NamedTuple):
    """Layers, strongest first, and a note for every setting that was said by a name that is not today's."""

    layers: list[Layer]
    notes: list[str]


def said(model: str | None, options: Mapping[str, Any], config: Path | None) -> Said:
    """`options` (with `model` among them) and the file `config`. Raises `PlanError` naming who said what is wrong."""
    named = dict(options) if model is None else {**options, "target": model}
    values, notes = validated(named, "command line", Path.cwd())
    layers = [Layer("command line", values)]
    if config is not None:
        values, more = validated(_config_file(config), "config file", config.absolute().parent)
        layers.append(Layer("config file", values))
        notes += more
    return Said(layers, notes)


def drafters_apart(layer: Layer, checkpoints: CheckpointResolver) -> Layer:
    """The layer in which a drafter that was given as the model is the drafter. Raises `PlanError` where it has two."""
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
            f"{source}: {target} is a drafter, and so is {values['drafter']}: give the target as the model, or one "
            "drafter alone"
        )
    return Layer(source, {**{name: value for name, value in values.items() if name != "target"}, "drafter": target})


def _config_file(path: Path) -> dict[str, Any]:
    content = read_yaml(path, "config file")
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise PlanError(f"config file {path} must map settings to values, like `port: 8000`")
    return content
