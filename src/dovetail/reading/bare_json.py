"""A call without any markup: the whole answer is its JSON, perhaps in a code fence.

    {"name": "get_weather", "arguments": {"city": "Paris"}}

Small models write that, or a list of such objects. It is a call only if it names one of the tools and its arguments fit
the tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dovetail.reading.arguments import JsonArguments, beginnings
from dovetail.reading.parameters import members
from dovetail.reading.values import ParameterTypes, types_of

_SPACE: Final = r"\s{0,16}"
_KEYS: Final = ("name", "function", "arguments", "parameters")
_FENCE: Final = "```"
_OPEN_FENCE: Final = rf"```(?:json)?[ \t]{{0,16}}\r?\n{_SPACE}"
_MARK: Final = "[\"']"
#: OpenAI's first member, which says nothing.
_TYPE: Final = (_MARK, *"type", _MARK, _SPACE, ":", _SPACE, _MARK, *"function", _MARK, _SPACE, ",", _SPACE)
_BEGUN: Final = "|".join(beginnings((r"\{", _SPACE, *first, _MARK, *key)) for first in ((), _TYPE) for key in _KEYS)
#: The beginning of an answer up to the first key of the object; every beginning of that.
BEGIN: Final = re.compile(
    rf"{_SPACE}(?P<fence>{_OPEN_FENCE})?(?P<list>\[{_SPACE})?"
    rf"(?P<object>\{{{_SPACE}(?:{''.join(_TYPE)})?{_MARK}(?:{'|'.join(_KEYS)}){_MARK})"
)
MAY_BEGIN: Final = re.compile(
    rf"{_SPACE}(?:`{{1,2}}|```(?:j(?:s(?:o)?)?)?|```(?:json)?[ \t]{{0,16}}\r?"
    rf"|(?:{_OPEN_FENCE})?(?:\[{_SPACE})?(?:{_BEGUN}))"
)
#: The name, among the text of the object.
NAME: Final = re.compile(r"""["'](?:name|function)["']\s*:\s*(["'])([^"'\\]*)\1""")
#: The next object of a list, and every beginning of that.
NEXT: Final = re.compile(rf"{_SPACE},{_SPACE}(?=\{{)")
MAY_BE_NEXT: Final = re.compile(rf"{_SPACE}(?:,{_SPACE})?")


class BareCall(NamedTuple):
    name: str
    arguments: str
    #: The kinds of faults in the arguments that were mended.
    mended: tuple[str, ...] = ()


def bare_call(text: str, tools: Mapping[str, Any]) -> BareCall | None:
    """The call that `text`, a JSON object, is; None for other objects."""
    try:
        parts = {key: value for key, value, _ in members(text)}
        if parts.get("type") == "function":
            del parts["type"]
        if parts.keys() == {"function"}:
            parts = {key: value for key, value, _ in members(parts["function"])}
    except (ValueError, RecursionError):
        return None
    name = parts.pop("name", "") or parts.pop("function", "")
    if len(parts) != 1 or name not in tools:
        return None
    ((key, written),) = parts.items()
    if key not in ("arguments", "parameters"):
        return None
    mended: list[str] = []
    arguments = JsonArguments(ParameterTypes(tools[name]), mended.append)
    fragment, rest = arguments.feed(written)
    fragment += arguments.flush()
    if rest.strip() or not arguments.valid() or not fits(fragment, tools[name]):
        return None
    return BareCall(name, fragment, tuple(mended))


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
