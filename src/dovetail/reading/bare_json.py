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

#: The beginning of an answer up to the first key of the object.
BEGIN: Final = re.compile(
    r"[ \t\r\n]{0,16}(?:```(?:json)?[ \t]{0,16}\r?\n\s{0,16})?\{\s{0,16}\"(?:name|arguments|parameters)\""
)
#: Every beginning of that.
MAY_BEGIN: Final = re.compile(
    r"[ \t\r\n]{0,16}(?:`{1,3}|```j(?:s(?:o(?:n[ \t]{0,16}\r?)?)?)?|```(?:json)?[ \t]{0,16}(?:\r?\n\s{0,16})?)?"
    r"(?:\{\s{0,16}(?:\"(?:n|na|nam|name|a|ar|arg|argu|argum|argume|argumen|argument|arguments"
    r"|p|pa|par|para|param|parame|paramet|paramete|parameter|parameters)?)?)?"
)
#: What may follow the object.
END: Final = re.compile(r"[ \t\r\n]*(?:```[ \t\r\n]*)?")
_FENCE: Final = "```"


class BareCall(NamedTuple):
    name: str
    arguments: str


def bare_call(text: str, tools: Mapping[str, Any]) -> BareCall | None:
    """The call that `text`, a whole answer, is; None if it is none."""
    inside = text.strip().removeprefix(_FENCE).removeprefix("json").removesuffix(_FENCE)
    try:
        parts = {key: value for key, value, _ in members(inside)}
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
    required = schema.get("required") if isinstance(schema, Mapping) else None
    has_all = all(key in value for key in required) if isinstance(required, list) else True
    declared = isinstance(schema, Mapping) and isinstance(schema.get("properties"), Mapping)
    known = not declared or all(types.declares(key) for key in value)
    return has_all and known and all(types_of(item) & types[key] for key, item in value.items())
