"""Schemas of tools as they are found: what nobody can use in them (`"required": true`, a `$ref` to nowhere, a `pattern`
that is no regular expression) is left out, so that the rest can be enforced and checked.

What is left out only widens what is valid. So what would say more without it goes with it: `additionalProperties` with
`properties`, and `not`, `if`, `oneOf` and `unevaluated…` with anything that they rest on, by reference too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.conversation import TYPE_NAMES
from dovetail.grammar.kept import Kept
from dovetail.grammar.schemas import drafts
from dovetail.grammar.schemas.bounds import MAX_DEPTH, MAX_REFERENCES
from dovetail.grammar.schemas.check import is_regex
from dovetail.grammar.schemas.references import Place, References, pointer, spelled

_ROUNDS = 8  # what stands in something that was left out is seen only then
#: Keywords, names and parts of lists. What has more, or is out of bounds, stays as it is, for others to refuse.
_MOST = 10_000
_CACHED, _CACHED_CHARACTERS = 1_024, 8 * 2**20

_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
_LISTED = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_SINGLE = frozenset(
    ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else")
).union(_UNEVALUATED)
_REFERENCES = ("$ref", "$dynamicRef")
_VALUES = ("enum", "const", "default", "examples")
#: What would say more without a keyword beside it.
_DEPENDENT: Mapping[str, tuple[str, ...]] = {
    "properties": ("additionalProperties",),
    "patternProperties": ("additionalProperties",),
    "prefixItems": ("items",),
    "items": ("additionalItems",),
    "minContains": ("contains",),
}
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$schema")
)
#: What the grammar's library knows of regular expressions, and JSON Schema does not.
_DIALECT = re.compile(r"^\(\?[ims]+\)|(?<=\(\?)P(?=<)")

#: Why something is left out, as it goes on behind "it".
_NO_SCHEMA = "is no JSON Schema"
_NOWHERE = "refers to nothing in the schema"
_NO_REGEX = "is no regular expression"
_NO_OBJECT = "is not the type of arguments, object"
_RESTS = "rests on what is left out"

_Path = drafts.Path


class Mended(NamedTuple):
    """A schema, None where nothing of it can be used, and JSON pointers to what was left out of it, each with why (it
    "is no JSON Schema"). Annotations are not named."""

    schema: Mapping[str, Any] | None
    left_out: Mapping[str, str]


def mended(schema: Mapping[str, Any]) -> Mended:
    """The schema of a tool's arguments without what cannot be used in it; `schema` itself where that is nothing.

    The draft is that of `$schema`, else 2020-12, or an older one for what only that has. Types may have the names that
    other languages have for them. Takes a second at most, as what is too large is not looked into.
    """
    try:
        key = spelled(schema)
    except (ValueError, RecursionError):  # half a character, nested too deeply
        return Mended(schema, {})
    return _KEPT.get(key, len(key), lambda: _mended(schema)) or Mended(schema, {})


_KEPT: Kept[Mended | None] = Kept(_CACHED, _CACHED_CHARACTERS)


def _mended(schema: Mapping[str, Any]) -> Mended | None:
    """None: as it is."""
    if not _is_small(schema):
        return None
    try:
        found = _Mending(schema).done()
        return None if found.schema == schema else found
    except (ValueError, RecursionError):  # a value that is nested too deeply
        return None


def _is_small(schema: Any) -> bool:
    count, references = 0, set[str]()
    pending = [(schema, 0)]
    while pending:
        held, depth = pending.pop()
        count += len(held)
        if count > _MOST or depth > MAX_DEPTH:
            return False
        if isinstance(held, Mapping):
            references.update(it for key in _REFERENCES if isinstance(it := held.get(key), str))
            if len(references) > MAX_REFERENCES:
                return False
        inner = held if isinstance(held, list) else [value for key, value in held.items() if key not in _VALUES]
        pending += ((it, depth + 1) for it in inner if isinstance(it, Mapping | list))
    return True


class _Mending:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._whole: Any = _copied(schema)
        self._left_out: dict[str, str] = {}
        #: The schemas that say less than before.
        self._changed: set[_Path] = set()

    def done(self) -> Mended:
        held = _Held(self._whole)
        for place in held.places.values():
            if "type" in place.schema:
                place.schema["type"] = _type(place.schema["type"])
        for _ in range(_ROUNDS):
            faults = self._faults(held)
            if not faults:
                return Mended(self._whole, self._left_out)
            if () in faults:
                break
            for path, (why, is_schema) in faults.items():
                self._leave_out(path, why, is_schema)
            held = _Held(self._whole)
        return Mended(None, {"#": _NO_SCHEMA})

    def _faults(self, held: _Held) -> dict[_Path, tuple[str, bool]]:
        """Keywords that cannot be used, and schemas that are none, with why and whether it is such a one."""
        try:
            draft = drafts.named(self._whole)
        except ValueError:
            return {("$schema",): (_NO_SCHEMA, False)}
        found: dict[_Path, tuple[str, bool]] = {}
        count = 0
        for root in held.roots:
            paths = drafts.faults(root.schema, draft)
            count += len(paths)
            if count > _MOST:  # the same are found from many roots
                return {(): (_NO_SCHEMA, True)}
            for path in paths:
                at, is_schema = _place(path)
                found[root.path + at] = _NO_SCHEMA, is_schema
        for path, why in held.unusable():
            found.setdefault(path, (why, False))
        return found or {path: (_RESTS, False) for path in held.resting_on(self._changed)}

    def _leave_out(self, path: _Path, why: str, is_schema: bool) -> None:
        """A keyword goes, with what would say more without it; a schema behind a name or in a list becomes any."""
        *above, last = path
        held = self._whole
        for step in above:
            held = held[int(step)] if isinstance(held, list) else held.get(step)
            if not isinstance(held, dict | list):
                return  # it stood in what has gone
        for keyword in (last, *(() if is_schema else _DEPENDENT.get(last, ()))):
            if isinstance(held, list):
                held[int(keyword)] = True
            elif keyword not in held:
                continue
            elif is_schema:
                held[keyword] = True
            else:
                del held[keyword]
            if is_schema or keyword not in _ANNOTATIONS:
                self._left_out.setdefault(pointer((*above, keyword)), why if keyword == last else _RESTS)
                self._changed.add(path if is_schema else tuple(above))


class _Held:
    """The schemas in a schema, by their paths, those that are referred to included."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        references = References(whole)
        #: The whole, and what is referred to in places that no draft has schemas in.
        self.roots: list[Place] = [references.root]
        self.places: dict[_Path, Place] = {}
        self._dangling: list[_Path] = []
        #: By path, the schemas that hold a schema or refer to it.
        self._above: dict[_Path, list[_Path]] = {}
        referred: list[Place] = []
        known: dict[tuple[str, str], Place | None] = {}
        pending = [references.root]
        while pending:
            place = pending.pop()
            if place.path not in self.places and isinstance(place.schema, dict):
                self.places[place.path] = place
                inner = [references.below(place, *keys) for keys in _inside(place.schema)]
                for keyword in _REFERENCES:
                    if isinstance(reference := place.schema.get(keyword), str):
                        key = place.base, reference
                        if key not in known:
                            known[key] = references.resolved(place, reference)
                        if (target := known[key]) is None or not isinstance(target.schema, dict | bool):
                            self._dangling.append((*place.path, keyword))
                        else:
                            referred.append(target)
                            self._above.setdefault(target.path, []).append(place.path)
                for it in inner:
                    self._above.setdefault(it.path, []).append(place.path)
                pending += inner
            while not pending and referred:
                if (target := referred.pop()).path not in self.places and isinstance(target.schema, dict):
                    self.roots.append(target)
                    pending.append(target)

    def unusable(self) -> Iterator[tuple[_Path, str]]:
        """Keywords that no draft objects to, and why they cannot be used all the same."""
        kind = self.roots[0].schema.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            yield ("type",), _NO_OBJECT
        yield from ((path, _NOWHERE) for path in self._dangling)
        for path, place in self.places.items():
            if not _is_pattern(place.schema.get("pattern", "")):
                yield (*path, "pattern"), _NO_REGEX
            if isinstance(named := place.schema.get("patternProperties"), dict) and not all(map(_is_pattern, named)):
                yield (*path, "patternProperties"), _NO_REGEX

    def resting_on(self, changed: set[_Path]) -> Iterator[_Path]:
        """Keywords that may say more where these schemas say less."""
        touched: set[_Path] = set()
        pending = [*changed]
        while pending:
            path = pending.pop()
            if path not in touched:
                touched.add(path)
                pending += self._above.get(path, ())
        for path in sorted(touched & self.places.keys()):
            schema = self.places[path].schema
            for keys in _inside(schema):
                says_more = keys[0] in ("not", "if", "oneOf") or (keys[0] == "contains" and "maxContains" in schema)
                if says_more and (*path, *map(str, keys)) in touched:
                    yield (*path, str(keys[0]))
            yield from ((*path, keyword) for keyword in _UNEVALUATED if keyword in schema)


def _inside(schema: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """Where schemas are in a schema, as keys."""
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            yield from ((keyword, name) for name in value)
        elif keyword in _LISTED and isinstance(value, list):
            yield from ((keyword, i) for i in range(len(value)))
        elif keyword in _SINGLE:
            yield (keyword,)


def _place(path: _Path) -> tuple[_Path, bool]:
    """The keyword that a fault is part of, or the schema behind a name or in a list, and whether it is such a one."""
    at = 0
    while at < len(path):
        keyword, inner = path[at], path[at + 1 : at + 2]
        if inner and (keyword in _NAMED or (keyword in _LISTED and inner[0].isdecimal())):
            at += 2
        elif inner and keyword in _SINGLE:
            at += 1
        else:
            return path[: at + 1], False
    return path, True


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [*map(_copied, value)] if isinstance(value, list) else value


def _type(said: Any) -> Any:
    """A `type` in JSON Schema's words, where it is one."""
    if isinstance(said, list):
        return [*map(_type, said)]
    return TYPE_NAMES.get(said.lower(), said) if isinstance(said, str) else said


def _is_pattern(text: Any) -> bool:
    return not isinstance(text, str) or is_regex(text) or is_regex(_DIALECT.sub("", text))
