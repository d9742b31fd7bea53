"""A call without any markup: the whole answer is its JSON, perhaps in a code fence.

    {"name": "get_weather", "arguments": {"city": "Paris"}}

Small models write that. It is a call only if it names one of the tools and its arguments fit the tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dovetail.reading.parameters import members
from dovetail.reading.values import ParameterTypes, types_of

_SPACE: Final = r"\s{0,16}"
_KEYS: Final = ("name", "arguments", "parameters")
_FENCE: Final = "```"
_OPEN_FENCE: Final = rf"```(?:json)?[ \t]{{0,16}}\r?\n{_SPACE}"
_BEGUN_KEYS: Final = "|".join(key[:end] for key in _KEYS for end in range(len(key), 0, -1))
#: The beginning of an answer up to the first key of the object; every beginning of that.
BEGIN: Final = re.compile(rf'{_SPACE}(?P<fence>{_OPEN_FENCE})?(?P<object>\{{{_SPACE}"(?:{"|".join(_KEYS)})")')
MAY_BEGIN: Final = re.compile(
    rf"{_SPACE}(?:`{{1,2}}|```(?:j(?:s(?:o)?)?)?|```(?:json)?[ \t]{{0,16}}\r?|(?:{_OPEN_FENCE})?"
    rf'(?:\{{{_SPACE}(?:"(?:{_BEGUN_KEYS})?)?)?)'
)
#: The name, among the text of the object.
NAME: Final = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


class BareCall(NamedTuple):
    name: str
    arguments: str


def bare_call(text: str, tools: Mapping[str, Any]) -> BareCall | None:
    """The call that `text`, a JSON object, is; None for other objects."""
    try:
        parts = {key: value for key, value, _ in members(text)}
    except (ValueError, RecursionError):
        return None
    name = parts.pop("name", "")
    if len(parts) != 1 or name not in tools:
        return None
    ((key, arguments),) = parts.items()
    if key not in ("arguments", "parameters") or not fits(arguments, tools[name]):
        return None
    return BareCall(name, arguments)


def fits(arguments: str, schema: Any) -> bool:
    """Whether `arguments` is a JSON object with the members that `schema` requires and allows, of the types it allows.

    `schema` may be anything; what makes no sense in it is ignored.
    """
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    types = ParameterTypes(schema)
    declared = isinstance(schema, Mapping) and isinstance(schema.get("properties"), Mapping)
    known = not declared or all(types.declares(key) for key in value)
    return types.required <= value.keys() and known and all(types_of(item) & types[key] for key, item in value.items())
