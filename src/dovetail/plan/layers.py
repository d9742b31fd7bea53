"""Lays mappings of settings over one another and remembers where each value came from. Knows no setting by name."""

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
    """What one source says. A name that is absent was not said; a None was said, and means none."""

    source: str
    values: Mapping[str, Any]


def overlay(layers: Iterable[Layer]) -> dict[str, Setting[Any]]:
    """Every setting that any layer has, as the first layer that has it says; `layers` go from strongest to weakest."""
    settings: dict[str, Setting[Any]] = {}
    for source, values in layers:
        for name, value in values.items():
            settings.setdefault(name, Setting(value, source))
    return settings


def value(settings: Mapping[str, Setting[Any]], name: str) -> Any:
    """The value of a setting, None where nobody said one."""
    setting = settings.get(name)
    return None if setting is None else setting.value


def merged(name: str, layers: Iterable[Layer]) -> dict[str, Setting[Any]]:
    """Of a setting that is a mapping, each member as the first layer that has it says."""
    return overlay(Layer(source, values[name]) for source, values in layers if values.get(name))
