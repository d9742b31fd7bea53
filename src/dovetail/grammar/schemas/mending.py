"""Schemas as tools in the wild have them: what is not JSON Schema in them (`"required": true`, `"type": "any"`) is left
out, so that the rest can be enforced. What is left out only widens what is valid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from dovetail.grammar.kept import Kept
from dovetail.grammar.schemas.references import pointer, spelled

_ROUNDS = 8  # what stands in something that was left out is seen only then
_MOST = 200  # places
_CACHED, _CACHED_CHARACTERS = 256, 4 * 2**20
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_LISTED = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
#: But for `not` and `if`, which what is left out of them would make say more.
_SINGLE = frozenset(("items", "additionalProperties", "then", "else", "contains", "propertyNames"))
#: What would say more without a keyword beside it.
_DEPENDENT: Mapping[str | int, tuple[str, ...]] = {
    "properties": ("additionalProperties", "unevaluatedProperties"),
    "patternProperties": ("additionalProperties", "unevaluatedProperties"),
    "prefixItems": ("items", "unevaluatedItems"),
    "items": ("unevaluatedItems",),
    "contains": ("minContains", "maxContains"),
    "minContains": ("contains", "maxContains"),
}
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$schema")
)
#: What schemas of older drafts say in another way than 2020-12.
READ_OTHERWISE = frozenset(("items", "exclusiveMinimum", "exclusiveMaximum"))
_DRAFT = re.compile(r"https?://json-schema\.org/(draft/2019-09|draft/2020-12|draft-0[467])/schema#?")
#: What a schema of a draft has to be.
_DRAFTS = {
    draft: validator({"$ref": f"{'https' if '/' in draft else 'http'}://json-schema.org/{draft}/schema"}, offline=True)
    for draft, validator in (
        ("draft/2020-12", jsonschema_rs.Draft202012Validator),
        ("draft/2019-09", jsonschema_rs.Draft201909Validator),
        ("draft-07", jsonschema_rs.Draft7Validator),
        ("draft-06", jsonschema_rs.Draft6Validator),
        ("draft-04", jsonschema_rs.Draft4Validator),
    )
}

_Path = tuple[str | int, ...]
_Mended = tuple[Mapping[str, Any], tuple[str, ...]]


def mended(schema: Mapping[str, Any]) -> _Mended:
    """`schema` without what is not well formed in it, and JSON pointers to that, but for annotations.

    The draft is that of `$schema`, else 2020-12, or an older one for what only that has. It is given back as it is
    where it is well formed, and where it cannot be mended.
    """
    try:
        if not _faults(schema):
            return schema, ()
        key = spelled(schema)
        return _KEPT.get(key, len(key), lambda: _mended(schema))
    except (ValueError, RecursionError):  # nested too deeply for the library, half a character
        return schema, ()


_KEPT: Kept[_Mended] = Kept(_CACHED, _CACHED_CHARACTERS)


def _mended(schema: Mapping[str, Any]) -> _Mended:
    whole: Any = schema
    lost: dict[str, None] = {}
    for _ in range(_ROUNDS):
        faults = _faults(whole)
        if () in faults or len(faults) > _MOST:
            break
        if not faults:
            return whole, tuple(lost)
        for path in faults:
            place, is_schema = _place(path)
            for keyword in (place[-1], *(() if is_schema else _DEPENDENT.get(place[-1], ()))):
                if _is_at(whole, at := (*place[:-1], keyword)):
                    whole = _without(whole, at, is_schema)
                    if is_schema or keyword not in _ANNOTATIONS:
                        lost[pointer(tuple(map(str, at)))] = None
    return schema, ()


def _faults(schema: Any) -> list[_Path]:
    """Where a schema is none, as paths; one more than `_MOST` at the most."""
    named = schema.get("$schema") if isinstance(schema, Mapping) else None
    if named is not None:
        known = _DRAFT.fullmatch(named) if isinstance(named, str) else None
        return [("$schema",)] if known is None else _faults_in(known[1], schema)
    faults = _faults_in("draft/2020-12", schema)
    if any(READ_OTHERWISE.intersection(path[-1:]) for path in faults):
        for draft in ("draft-07", "draft-04"):
            older = set(_faults_in(draft, schema))
            faults = [path for path in faults if path in older or not READ_OTHERWISE.intersection(path[-1:])]
    return faults


def _faults_in(draft: str, schema: Any) -> list[_Path]:
    found: dict[_Path, None] = {}
    for error in _DRAFTS[draft].iter_errors(schema):
        found[tuple(error.instance_path)] = None
        if len(found) > _MOST:
            break
    return list(found)


def _place(path: _Path) -> tuple[_Path, bool]:
    """The keyword that a fault is part of, or the schema behind a name or in a list, and whether it is such a one."""
    at = 0
    while at < len(path):
        inner = path[at + 1 : at + 2]
        if path[at] == "oneOf":  # with less said by one of them, what fits one may fit two
            return path[: at + 1], False
        if inner and (path[at] in _NAMED or (path[at] in _LISTED and isinstance(inner[0], int))):
            at += 2
        elif path[at] in _SINGLE and inner:
            at += 1
        else:
            return path[: at + 1], False
    return path, True


def _is_at(held: Any, path: _Path) -> bool:
    for step in path:
        if not (step in held if isinstance(held, Mapping) else isinstance(held, list) and step in range(len(held))):
            return False
        held = held[step]
    return True


def _without(held: Any, path: _Path, is_schema: bool) -> Any:
    """A keyword is left out; a schema behind a name or in a list becomes one of anything."""
    step, rest = path[0], path[1:]
    if not rest and not is_schema:
        return {key: value for key, value in held.items() if key != step}
    inner = _without(held[step], rest, is_schema) if rest else True
    if isinstance(held, list):
        return [inner if i == step else it for i, it in enumerate(held)]
    return {**held, step: inner}
