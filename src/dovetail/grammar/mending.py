"""Schemas as tools in the wild have them: what is not JSON Schema in them (`"required": true`, `"type": "any"`) is left
out, so that the rest can be enforced. What is left out only widens what is valid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from dovetail.grammar.references import pointer

_ROUNDS = 8  # what stands in something that was left out is seen only then
_MOST = 1_000  # places
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_LISTED = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
#: But for `not` and `if`, which what is left out of them would make say more.
_SINGLE = frozenset(("items", "additionalProperties", "then", "else", "contains", "propertyNames"))
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly")
)
_NEWEST = "https://json-schema.org/draft/2020-12/schema"
_KNOWN_DRAFT = re.compile(r"https?://json-schema\.org/(draft/(2019-09|2020-12)|draft-0[467])/schema#?")
#: What a schema of a draft has to be, the newest first.
_DRAFTS = tuple(
    validator({"$ref": draft}, offline=True)
    for validator, draft in (
        (jsonschema_rs.Draft202012Validator, _NEWEST),
        (jsonschema_rs.Draft7Validator, "http://json-schema.org/draft-07/schema#"),
        (jsonschema_rs.Draft4Validator, "http://json-schema.org/draft-04/schema#"),
    )
)

_Path = tuple[str | int, ...]


def mended(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """`schema` without what is not well formed in it, and JSON pointers to that, but for annotations.

    It is given back as it is where it is well formed by a draft, and where it cannot be mended.
    """
    lost: list[str] = []
    whole: Any = schema
    if not _KNOWN_DRAFT.fullmatch(str(schema.get("$schema", _NEWEST))):
        whole = _without(schema, ("$schema",))
    try:
        for _ in range(_ROUNDS):
            if any(draft.is_valid(whole) for draft in _DRAFTS):
                return whole, tuple(lost)
            faults = min((_faults(draft, whole) for draft in _DRAFTS), key=len)
            if () in faults or len(faults) > _MOST:
                break
            for path in faults:
                place = _place(path)
                if place[-1] not in _ANNOTATIONS:
                    lost.append(pointer(tuple(map(str, place))))
                whole = _without(whole, place)
    except (ValueError, RecursionError):  # nested too deeply for the library, half a character
        pass
    return schema, ()


def _faults(draft: Any, schema: Any) -> list[_Path]:
    return list(dict.fromkeys(tuple(error.instance_path) for error in draft.iter_errors(schema)))


def _place(path: _Path) -> _Path:
    """The keyword or the schema that a fault is part of."""
    at = 0
    while at < len(path):
        inner = path[at + 1 : at + 2]
        if (path[at] in _NAMED and inner) or (path[at] in _LISTED and inner and isinstance(inner[0], int)):
            at += 2
        elif path[at] in _SINGLE:
            at += 1
        else:
            return path[: at + 1]
    return path


def _without(schema: Any, path: _Path) -> Any:
    """A keyword is left out; a schema in a list or behind a name becomes one of anything."""
    if not path or not isinstance(schema, Mapping | list):
        return schema
    step, rest = path[0], path[1:]
    if isinstance(schema, list):
        return [(_without(it, rest) if rest else True) if i == step else it for i, it in enumerate(schema)]
    if step not in schema:
        return schema
    if not rest:
        return {key: value for key, value in schema.items() if key != step}
    if step in _NAMED and len(rest) == 1:
        return {**schema, step: {**schema[step], rest[0]: True}}
    return {**schema, step: _without(schema[step], rest)}
