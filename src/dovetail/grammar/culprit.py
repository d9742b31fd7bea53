"""Finds the part of a schema that llguidance refuses. The library says what is wrong, but not where.

Each part is compiled alone, together with the definitions, and then without each of its keywords. Every step is a
compile, so the search stops after half a second with the innermost part that it has reached.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dovetail.grammar import lark_schema
from dovetail.grammar.schemas.references import Path, shortened_pointer, steps

_SECONDS = 0.5
_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = ("properties", "patternProperties", *_DEFINITIONS)
_LISTS = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "additionalItems")
#: How the library's complaint begins about a part whose references lead out of it.
_DANGLING = ("Pointer", "Anchor", "Resource", "Failed to resolve")


def find(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """The JSON pointer of what the library refuses, and why; None if it accepts the schema."""
    reason = _complaint(schema)
    if reason is None:
        return None
    until = time.monotonic() + _SECONDS
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    path: Path = ()
    part, seen = schema, {path}
    while time.monotonic() < until:
        for place, inner in _parts(schema, path, part):
            if not isinstance(inner, Mapping):  # not a schema at all
                return shortened_pointer(place), reason
            complaint = _complaint({**definitions, **inner}) if place not in seen else None
            if complaint is not None and (reason.startswith(_DANGLING) or not complaint.startswith(_DANGLING)):
                seen.add(place)
                path, part, reason = place, inner, complaint
                break
            if time.monotonic() > until:
                break
        else:
            path += _keyword({**definitions, **part}, part, until)
            break
    return shortened_pointer(path), reason


def first_line(error: str) -> str:
    """The library's complaint, without the place in the grammar."""
    line, _, rest = error.partition("\n")
    line = line.split("JSON schema: ")[-1]
    if line.endswith("regex parse error:"):
        detail = [each.removeprefix("error: ") for each in rest.split("\n") if each.startswith("error: ")]
        line = " ".join((line, *detail[:1]))
    return line


def _complaint(schema: Mapping[str, Any]) -> str | None:
    error = lark_schema.complaint(lark_schema.spell_once(schema).schema)
    return first_line(error) if error else None


def _keyword(schema: Mapping[str, Any], part: Mapping[str, Any], until: float) -> Path:
    """The keyword of `part` without which the library accepts `schema`, if there is one."""
    for keyword in part:
        if time.monotonic() > until:
            break
        if keyword not in _DEFINITIONS and _complaint({k: v for k, v in schema.items() if k != keyword}) is None:
            return (keyword,)
    return ()


def _parts(schema: Mapping[str, Any], path: Path, part: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The schemas directly in `part`, which is at `path` of `schema`, and the target of its `$ref`, each with its path.
    Schemas that are true or false are left out."""
    if (target := _target(schema, part.get("$ref"))) is not None:
        yield target
    for keyword, value in part.items():
        inner: Iterable[tuple[Path, Any]] = ()
        if keyword in _BY_NAME and isinstance(value, Mapping):
            inner = (((keyword, name), each) for name, each in value.items())
        elif keyword in _LISTS and isinstance(value, list):
            inner = (((keyword, str(i)), each) for i, each in enumerate(value))
        elif keyword in _SINGLE:
            inner = (((keyword,), value),)
        yield from (((*path, *keys), each) for keys, each in inner if not isinstance(each, bool))


def _target(schema: Mapping[str, Any], reference: Any) -> tuple[Path, Mapping[str, Any]] | None:
    """The path and the schema that a plain pointer within the schema leads to."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    keys = steps(reference)
    target: Any = schema
    for key in keys:
        target = target.get(key) if isinstance(target, Mapping) else None
    return (keys, target) if isinstance(target, Mapping) else None
