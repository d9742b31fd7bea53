"""Valid and invalid values for a schema, judged by a validator (2020-12, with formats)."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

_DEEPEST = 5
_ENDLESS = 30  # a value that has to hold another one of its kind, and that another, is not made
_STRINGS = (
    "x",
    "abc",
    "Two words",
    'a "quote"',
    "a\nline",
    "é漢",
    "",
    "0",
    "a1",
    "A-1",
    "longer than most of them are",
)
_OTHERS: tuple[Any, ...] = ("x", 3, -1, 2.5, True, None, [], {}, ["x"], {"other": 1}, 10**9)
_FORMATS = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:00:00Z",
    "email": "a@b.example",
    "ipv4": "10.0.0.1",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}


def instances(schema: Any, count: int, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Up to `count` valid and up to `count` invalid values for `schema`, with keys in the declared order."""
    rng = random.Random(seed)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    by_validity: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    for _ in range(6 * count):
        value = _made(schema, schema, rng, 0)
        for one in (value, _changed(value, rng), _changed(value, rng)):
            kind = by_validity[validator.is_valid(one)]
            if len(kind) < count:
                kind.setdefault(json.dumps(one), one)
        if min(map(len, by_validity.values())) == count:
            break
    return list(by_validity[True].values()), list(by_validity[False].values())


def _made(schema: Any, root: Any, rng: random.Random, depth: int) -> Any:
    """A value that is probably valid."""
    if not isinstance(schema, Mapping) or depth > _ENDLESS:
        return rng.choice(("x", 1, True, None))
    if isinstance(target := schema.get("$ref"), str):
        return _made(_found(root, target), root, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            branch = _branch(schema[key], rng, depth)
            rest = {name: it for name, it in schema.items() if name != key}
            if isinstance(branch, Mapping):
                return _made({**rest, **branch}, root, rng, depth)
            return _made(rest, root, rng, depth)
    if schema.get("allOf"):
        merged: dict[str, Any] = {key: it for key, it in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            merged |= part if isinstance(part, Mapping) else {}
        return _made(merged, root, rng, depth)
    kinds = schema.get("type", "object" if "properties" in schema else ["string", "integer", "boolean"])
    kind = kinds if isinstance(kinds, str) else _branch(kinds, rng, depth)
    return _of_type(kind, schema, root, rng, depth)


def _branch(branches: Any, rng: random.Random, depth: int) -> Any:
    """One of the branches. On deep levels a branch without inner values, so that recursive schemas end."""
    if depth < _DEEPEST:
        return rng.choice(branches)
    plain = [it for it in branches if it in ("null", "string", "integer", "boolean") or (_type_of(it) in _PLAIN)]
    return rng.choice(plain or list(branches))


_PLAIN = ("null", "string", "integer", "number", "boolean")


def _type_of(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, Mapping) else None


def _of_type(kind: str, schema: Mapping[str, Any], root: Any, rng: random.Random, depth: int) -> Any:
    match kind:
        case "object":
            required = schema.get("required", ())
            declared = schema.get("properties", {})
            value = {
                key: _made(it, root, rng, depth + 1)
                for key, it in declared.items()
                if key in required or (depth < _DEEPEST and rng.random() < 0.6)
            }
            others = schema.get("additionalProperties", True)
            value |= {key: _made(others, root, rng, depth + 1) for key in required if key not in declared}
            if others is not False and depth < _DEEPEST and rng.random() < 0.2:
                value["other"] = _made(others, root, rng, depth + 1)
            return value
        case "array":
            least = schema.get("minItems", 0)
            most = max(least, min(schema.get("maxItems", least + 3), least + 3))
            count = least if depth >= _DEEPEST else rng.randint(least, most)
            first = schema.get("prefixItems", [])
            rest = schema.get("items", True)
            return [_made(first[i] if i < len(first) else rest, root, rng, depth + 1) for i in range(count)]
        case "string":
            return _string(schema, rng)
        case "integer" | "number":
            least, most = schema.get("minimum", -5), schema.get("maximum", max(10, schema.get("minimum", 0) + 10))
            picked = [least, most, (least + most) / 2, rng.uniform(least, most) if least < most else least]
            number = float(rng.choice(picked))
            return int(number) if kind == "integer" or number == int(number) else round(number, 3)
        case "boolean":
            return rng.random() < 0.5
    return None


def _string(schema: Mapping[str, Any], rng: random.Random) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    least, most = min(schema.get("minLength", 0), 10_000), schema.get("maxLength", 40)
    strings = [text.ljust(least, "x")[:most] for text in _STRINGS]
    pattern = schema.get("pattern")
    fitting = [text for text in strings if not isinstance(pattern, str) or re.search(pattern, text)]
    return rng.choice(fitting or strings)


def _found(root: Any, pointer: str) -> Any:
    """The schema at a JSON pointer; one that allows everything if there is none."""
    place = root
    for step in pointer.lstrip("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list):
            place = place[int(step)]
        elif isinstance(place, Mapping):
            place = place.get(step, True)
    return place


def _changed(value: Any, rng: random.Random) -> Any:
    """A copy of the value with one change."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places or rng.random() < 0.1:
        return rng.choice(_OTHERS)
    parent, key = rng.choice(places)
    match rng.randrange(4):
        case 0 if isinstance(parent, dict):
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent["undeclared"] = rng.choice(_OTHERS)
        case 2 if isinstance(parent, list):
            parent.append(copy.deepcopy(rng.choice((parent[key], *_OTHERS))))
        case 3 if isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] += rng.choice((-1, 1, 100, -1000))
        case 3 if isinstance(parent[key], str):
            parent[key] = rng.choice(("", parent[key] * 9, parent[key][:1], parent[key] + "!"))
        case _:
            parent[key] = rng.choice(_OTHERS)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
