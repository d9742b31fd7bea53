"""Which part of a schema it is that the library refuses: it says what is wrong, but not where.

Every part is tried by itself, with the schema's definitions, and then without each of its keywords. That takes a
compile each, so it ends where it has come to when its time is up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import llguidance

from dovetail.grammar import lark_schema
from dovetail.grammar.schemas.references import pointer

_SECONDS = 0.5
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = ("properties", "patternProperties", *_DEFINITIONS)
_LISTS = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
_ONE = ("items", "additionalProperties", "additionalItems")
#: What is said of a part whose references lead out of it.
_LEADS_OUT = ("Pointer", "Anchor", "Resource", "Failed to resolve")

_Path = tuple[str, ...]


def find(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """The JSON pointer of what the library refuses, and why; None if it takes the schema."""
    why = _complaint(schema)
    if why is None:
        return None
    until = time.monotonic() + _SECONDS
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    path: _Path = ()
    part, seen = schema, {path}
    while time.monotonic() < until:
        for place, inner in _inside(schema, path, part):
            if not isinstance(inner, Mapping):  # no schema at all
                return _told(place), why
            said = _complaint({**definitions, **inner}) if place not in seen else None
            if said is not None and (why.startswith(_LEADS_OUT) or not said.startswith(_LEADS_OUT)):
                seen.add(place)
                path, part, why = place, inner, said
                break
            if time.monotonic() > until:
                break
        else:
            path += _keyword({**definitions, **part}, part, until)
            break
    return _told(path), why


def _told(path: _Path) -> str:
    told = pointer(tuple(key[:80] for key in path))
    return told if len(told) <= 300 else f"{told[:150]}...{told[-147:]}"


def first_line(error: str) -> str:
    """What the library says, without where in the grammar."""
    said, _, rest = error.partition("\n")
    said = said.split("JSON schema: ")[-1]
    if said.endswith("regex parse error:"):
        detail = [line.removeprefix("error: ") for line in rest.split("\n") if line.startswith("error: ")]
        said = " ".join((said, *detail[:1]))
    return said


def _complaint(schema: Mapping[str, Any]) -> str | None:
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: %json {lark_schema.once(schema)[0].text}")
    error = llguidance.LLMatcher.validate_grammar(grammar)
    return first_line(error) if error else None


def _keyword(schema: Mapping[str, Any], part: Mapping[str, Any], until: float) -> _Path:
    """The keyword of `part` without which `schema` is fine, if there is one."""
    for keyword in part:
        if time.monotonic() > until:
            break
        if keyword not in _DEFINITIONS and _complaint({k: v for k, v in schema.items() if k != keyword}) is None:
            return (keyword,)
    return ()


def _inside(schema: Mapping[str, Any], path: _Path, part: Mapping[str, Any]) -> Iterator[tuple[_Path, Any]]:
    """What stands for a schema right in `part`, which is at `path` of `schema`, and what that refers to, each with its
    path. None of it is true or false."""
    if (referred := _referred(schema, part.get("$ref"))) is not None:
        yield referred
    for keyword, held in part.items():
        inner: Iterable[tuple[_Path, Any]] = ()
        if keyword in _BY_NAME and isinstance(held, Mapping):
            inner = (((keyword, name), it) for name, it in held.items())
        elif keyword in _LISTS and isinstance(held, list):
            inner = (((keyword, str(i)), it) for i, it in enumerate(held))
        elif keyword in _ONE:
            inner = (((keyword,), held),)
        yield from (((*path, *step), it) for step, it in inner if not isinstance(it, bool))


def _referred(schema: Mapping[str, Any], target: Any) -> tuple[_Path, Mapping[str, Any]] | None:
    """What a plain reference within the schema leads to."""
    if not isinstance(target, str) or not target.startswith("#/"):
        return None
    keys = tuple(key.replace("~1", "/").replace("~0", "~") for key in target.split("/")[1:])
    found: Any = schema
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return (keys, found) if isinstance(found, Mapping) else None
