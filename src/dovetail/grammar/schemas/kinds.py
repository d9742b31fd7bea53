"""The types of JSON Schema, of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def kind_of(value: Any) -> str:
    """The type of a value, as JSON has it: every number is a "number"."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
    return "object" if isinstance(value, Mapping) else "array"
