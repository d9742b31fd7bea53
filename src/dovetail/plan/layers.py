"""Overlays mappings of settings, strongest first, and records the source of each value. Knows no setting by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

_T = TypeVar("_T", covariant=True)


class Setting(msgspec.Struct, Generic[_T], frozen=True):
    """A value and where it came from; in JSON ``{"value": …, "from": …}``."""

    value: _T
    source: str = msgspec.field(name="from")


class Layer(NamedTuple):
    """The settings of one source. An absent name leaves the setting to weaker layers; None sets it to none."""

    source: str
    values: Mapping[str, Any]


def overlay(layers: Iterable[Layer]) -> dict[str, Setting[Any]]:
    """Every setting of any layer, with the value of the first layer that has it; `layers` start with the strongest."""
    settings: dict[str, Setting[Any]] = {}
    for source, values in layers:
        for name, value in values.items():
            settings.setdefault(name, Setting(value, source))
    return settings


def value(settings: Mapping[str, Setting[Any]], name: str) -> Any:
    """The value of the setting `name`, None if no layer has one."""
    setting = settings.get(name)
    return None if setting is None else setting.value


def merged(name: str, layers: Iterable[Layer]) -> dict[str, Setting[Any]]:
    """Each member of the setting `name`, which is a mapping, with the value of the first layer that has the member."""
    return overlay(Layer(source, values[name]) for source, values in layers if values.get(name))
