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
from dovetail.grammar.schemas.check import is_identifier, is_regex
from dovetail.grammar.schemas.keywords import BY_NAME, VALUES
from dovetail.grammar.schemas.references import Place, References, pointer, spelled

_ROUNDS = 8  # what stands in something that was left out is seen only then
#: Keywords, names and parts of lists, of one schema and of all in a request, which count as often as they are looked
#: at. What has more, or is out of bounds, stays as it is, for others to refuse.
_MOST, _MOST_IN_ALL = 10_000, 60_000
_LEAST = 20  # that a schema counts
_CACHED, _CACHED_CHARACTERS = 1_024, 8 * 2**20

_LISTED = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_SINGLE = frozenset(
    ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else")
).union(_UNEVALUATED)
_HOLDING = BY_NAME | _LISTED | _SINGLE
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
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
_NO_URI = "is no URI"
_NO_OBJECT = "is not the type of arguments, object"
_RESTS = "rests on what is left out"

_Path = drafts.Path


class Mended(NamedTuple):
    """A schema, None where nothing of it can be used, and JSON pointers to what was left out of it, each with why (it
    "is no JSON Schema"). Annotations are not named."""

    schema: Mapping[str, Any] | None
    left_out: Mapping[str, str]


class Budget:
    """How much of a request's schemas is still looked into."""

    def __init__(self) -> None:
        self._left = _MOST_IN_ALL

    def spend(self, cost: int) -> None:
        self._left -= cost

    @property
    def is_spent(self) -> bool:
        return self._left <= 0


def mended(schema: Mapping[str, Any], budget: Budget | None = None) -> Mended:
    """The schema of a tool's arguments without what cannot be used in it; `schema` itself where that is nothing.

    The draft is that of `$schema`, else 2020-12, with what older ones say in other words. Types may have the names that
    other languages have for them. Takes a second at most, for all that have one `budget`: what is too large, and what
    comes when that is spent, is not looked into.
    """
    budget = budget or Budget()
    if budget.is_spent:
        return Mended(schema, {})
    try:
        key = spelled(schema)
    except (ValueError, RecursionError):  # half a character, nested too deeply
        return Mended(schema, {})
    found, cost = _KEPT.get(key, len(key), lambda: _mended(schema))
    budget.spend(cost)
    return found or Mended(schema, {})


_KEPT: Kept[tuple[Mended | None, int]] = Kept(_CACHED, _CACHED_CHARACTERS)


def _mended(schema: Mapping[str, Any]) -> tuple[Mended | None, int]:
    """None: as it is. And how much was looked at."""
    is_small, size = _measured(schema)
    cost = max(size, _LEAST)
    if not is_small:
        return None, cost
    try:
        mending = _Mending(schema)
        found = mending.done()
    except (ValueError, RecursionError):  # a value that is nested too deeply
        return None, cost
    return found if mending.changed else None, cost * mending.rounds


def _measured(schema: Any) -> tuple[bool, int]:
    """Whether it may be looked into, and its size."""
    count, references = 0, set[str]()
    pending = [(schema, 0, False)]
    while pending:
        held, depth, by_name = pending.pop()
        count += len(held)
        if count > _MOST or depth > MAX_DEPTH:
            return False, count
        if isinstance(held, Mapping) and not by_name:
            references.update(it for key in _REFERENCES if isinstance(it := held.get(key), str))
            if len(references) > MAX_REFERENCES:
                return False, count
            inner = [(it, key in BY_NAME) for key, it in held.items() if key not in VALUES]
        else:
            inner = [(it, False) for it in (held if isinstance(held, list) else held.values())]
        pending += ((it, depth + 1, named) for it, named in inner if isinstance(it, Mapping | list))
    return True, count


class _Mending:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._whole: Any = _copied(schema)
        self._left_out: dict[str, str] = {}
        #: The schemas that say less than before.
        self._widened: set[_Path] = set()
        #: Whether anything is not as it was, and how often all was looked at.
        self.changed, self.rounds = False, 0

    def done(self) -> Mended:
        held = _Held(self._whole)
        for place in held.places.values():
            if "type" in place.schema and (said := _type(place.schema["type"])) != place.schema["type"]:
                place.schema["type"], self.changed = said, True
        for _ in range(_ROUNDS):
            self.rounds += 1
            faults = self._faults(held)
            if not faults:
                return Mended(self._whole, self._left_out)
            if () in faults:
                break
            for path, (why, is_schema) in faults.items():
                self._leave_out(path, why, is_schema)
            held = _Held(self._whole)
        self.changed = True
        return Mended(None, {"#": _NO_SCHEMA})

    def _faults(self, held: _Held) -> dict[_Path, tuple[str, bool]]:
        """Keywords that cannot be used, and schemas that are none, with why and whether it is such a one."""
        try:
            draft = drafts.named(self._whole)
        except ValueError:
            return {("$schema",): (_NO_SCHEMA, False)}
        found: dict[_Path, tuple[str, bool]] = {}
        for place in held.places.values():
            for below, is_schema in _wrong(place.schema, draft):
                found[place.path + below] = _NO_SCHEMA, is_schema
        for path, why in held.unusable():
            found.setdefault(path, (why, False))
        return found or {path: (_RESTS, False) for path in held.resting_on(self._widened)}

    def _leave_out(self, path: _Path, why: str, is_schema: bool) -> None:
        """A keyword goes, with what would say more without it; a schema behind a name or in a list becomes any."""
        *above, last = path
        held = self._whole
        for step in above:
            held = held[int(step)] if isinstance(held, list) else held.get(step)
            if not isinstance(held, dict | list):
                return  # it stood in what has gone
        self.changed = True
        for keyword in (last, *(() if is_schema else _DEPENDENT.get(last, ()))):
            if isinstance(held, list):
                held[int(keyword)] = self._any
            elif keyword not in held:
                continue
            elif is_schema:
                held[keyword] = self._any
            else:
                del held[keyword]
            if is_schema or keyword not in _ANNOTATIONS:
                self._left_out.setdefault(pointer((*above, keyword)), why if keyword == last else _RESTS)
                self._widened.add(path if is_schema else tuple(above))

    @property
    def _any(self) -> Any:
        return _any(drafts.named(self._whole))


class _Held:
    """The schemas in a schema, by their paths, those that are referred to included."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        references = References(whole)
        #: The whole, and what is referred to in places that no draft has schemas in.
        self.roots: list[Place] = [references.root]
        self.places: dict[_Path, Place] = {}
        self._dangling: list[_Path] = []
        #: Where references stand, each with the URI that it starts from.
        self._referring: list[tuple[_Path, str]] = []
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
                        self._referring.append(((*place.path, keyword), place.base))
                        target = known[key]
                        if target is None or not _can_be_referred_to(target, reference):
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
        top = self.roots[0].base
        yield from ((path, _NOWHERE) for path in self._dangling)
        for path, place in self.places.items():
            for keyword in _REFERENCES:
                if not isinstance(place.schema.get(keyword, ""), str):
                    yield (*path, keyword), _NO_SCHEMA
            # The root's own stands for nothing here.
            if path and isinstance(name := place.schema.get("$id"), str) and not is_identifier(name):
                yield (*path, "$id"), _NO_URI
                # What starts from it would be about something else without it.
                yield from ((at, _RESTS) for at, base in self._referring if base == place.base != top)
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
        if keyword in BY_NAME and isinstance(value, dict):
            yield from ((keyword, name) for name in value)
        elif keyword in _LISTED and isinstance(value, list):
            yield from ((keyword, i) for i in range(len(value)))
        elif keyword in _SINGLE:
            yield (keyword,)


def _wrong(schema: Mapping[str, Any], draft: str | None) -> list[tuple[_Path, bool]]:
    """Keywords of one schema that a draft has not (None: 2020-12, with what older ones say in other words), and what
    stands for a schema behind a name or in a list and is none (True). Schemas in it are not looked into.
    """
    found: list[tuple[_Path, bool]] = []
    anything = _any(draft)
    alone: dict[str, Any] = {}
    for keyword, value in schema.items():
        alone[keyword] = value
        if keyword in BY_NAME and isinstance(value, dict):
            alone[keyword] = {}
            for name, held in value.items():
                is_list = keyword == "dependencies" and isinstance(held, list)
                alone[keyword][name] = held if is_list else anything
                if not is_list and not _is_schema(held, draft):
                    found.append(((keyword, name), True))
        elif keyword in _LISTED and isinstance(value, list):
            alone[keyword] = [anything] * len(value)
            found += (((keyword, str(i)), True) for i, held in enumerate(value) if not _is_schema(held, draft))
        elif keyword in _SINGLE and isinstance(value, dict):
            alone[keyword] = anything
    if not _is_of(alone, draft):
        # Draft 4's `exclusiveMinimum` is a word about the bound beside it.
        beside = {"exclusiveMinimum": {"minimum": 0}, "exclusiveMaximum": {"maximum": 0}}
        wrong = [key for key, value in alone.items() if not _is_of({**beside.get(key, {}), key: value}, draft)]
        if not wrong and draft is None and not isinstance(alone.get("additionalItems", True), bool | dict):
            wrong = ["additionalItems"]  # which says nothing without a tuple beside it
        found += [((keyword,), False) for keyword in wrong] or [((), True)]
    return found


def _any(draft: str | None) -> Any:
    """The schema that takes anything."""
    return {} if draft == drafts.OLDEST else True


def _is_schema(held: Any, draft: str | None) -> bool:
    return isinstance(held, dict) or (isinstance(held, bool) and draft != drafts.OLDEST)


def _is_of(schema: Mapping[str, Any], draft: str | None) -> bool:
    if draft is None:
        drafts.in_newest_words(schema := {**schema})
    return drafts.is_of(schema, draft or drafts.NEWEST)


def _can_be_referred_to(target: Place, reference: str) -> bool:
    document = reference.partition("#")[0]
    is_uri = not document or is_identifier(document)
    return is_uri and isinstance(target.schema, dict | bool) and not _is_value(target.path)


def _is_value(path: _Path) -> bool:
    """Whether it is in what a keyword holds for a value."""
    at = 0
    while at < len(path):
        keyword = path[at]
        if keyword in VALUES:
            return True
        if keyword not in _HOLDING:
            return False
        inner = path[at + 1 : at + 2]
        at += 2 if keyword in BY_NAME or (keyword in _LISTED and inner and inner[0].isdecimal()) else 1
    return False


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
