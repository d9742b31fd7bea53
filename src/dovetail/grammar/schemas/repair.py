"""Repairs the schemas that clients send for tools, so that the usable part of each can be enforced and checked.

Keywords that nobody can use (`"required": true`, a `$ref` to nowhere, a `pattern` that is not a regular expression) are
removed and listed. A removal may only allow more values. Keywords that would allow fewer values without the removed one
are therefore removed too: `additionalProperties` beside `properties`; and `not`, `if`, `oneOf` and `unevaluated...` if
a schema that they use has changed, even through a reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.conversation import TYPE_NAMES
from dovetail.grammar.cache import Cache
from dovetail.grammar.schemas import drafts
from dovetail.grammar.schemas.bounds import MAX_DEPTH, MAX_REFERENCES
from dovetail.grammar.schemas.check import is_identifier, is_regex
from dovetail.grammar.schemas.keywords import BY_NAME, REFERENCES, VALUES
from dovetail.grammar.schemas.references import Path, Place, References, encoded, pointer

_MAX_ROUNDS = 8  # a removal may bring up new faults, in what refers to the removed part
#: Size counts keywords, names and items, once for each time that they are read. A schema that is larger, or that comes
#: when the request's budget is spent, stays as it is, and may be refused when it is compiled.
_MAX_SIZE, _MAX_SIZE_OF_REQUEST = 10_000, 60_000
_MIN_SIZE = 20  # that a schema counts
_CACHED, _CACHED_BYTES = 1_024, 8 * 2**20

_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_SINGLE = frozenset(
    ("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else")
).union(_UNEVALUATED)
_WITH_SCHEMAS = BY_NAME | _LISTS | _SINGLE
#: By keyword, the keywords that would allow fewer values without it.
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
#: Parts of regular expressions that the grammar's library knows, and JSON Schema does not.
_DIALECT = re.compile(r"^\(\?[ims]+\)|(?<=\(\?)P(?=<)")

#: Reasons. The sentence begins with "it".
_NOT_A_SCHEMA = "is no JSON Schema"
_DANGLING = "refers to nothing in the schema"
_NOT_A_REGEX = "is no regular expression"
_NOT_A_URI = "is no URI"
_NOT_AN_OBJECT = "is not the type of arguments, object"
_DEPENDS = "depends on a part that is left out"


class RepairedSchema(NamedTuple):
    """A schema, and the JSON pointers of what was removed from it, each with the reason ("is no JSON Schema").

    `schema` is None if nothing of it is usable. Removed annotations are not listed.
    """

    schema: Mapping[str, Any] | None
    left_out: Mapping[str, str]


class Budget:
    """How much of one request's schemas may still be read for repairs."""

    def __init__(self) -> None:
        self._remaining = _MAX_SIZE_OF_REQUEST

    def spend(self, cost: int) -> None:
        self._remaining -= cost

    @property
    def is_spent(self) -> bool:
        return self._remaining <= 0


def repaired(schema: Mapping[str, Any], budget: Budget | None = None) -> RepairedSchema:
    """The schema of a tool's arguments without its unusable parts; `schema` itself if all of it is usable.

    The draft is the one that `$schema` names, or else 2020-12 with the words of older drafts. Types may have the names
    that programming languages have for them. All schemas that share a `budget` take one second at most: a schema that
    is too large, or that comes when the budget is spent, is not read.
    """
    budget = budget or Budget()
    if budget.is_spent:
        return RepairedSchema(schema, {})
    try:
        key = encoded(schema)
    except (ValueError, RecursionError):  # half a surrogate pair, or nested too deeply
        return RepairedSchema(schema, {})
    result, cost = _REPAIRED.get(key, len(key), lambda: _repaired(schema))
    budget.spend(cost)
    return result or RepairedSchema(schema, {})


_REPAIRED: Cache[tuple[RepairedSchema | None, int]] = Cache(_CACHED, _CACHED_BYTES)


def _repaired(schema: Mapping[str, Any]) -> tuple[RepairedSchema | None, int]:
    """The repaired schema, or None if it stays as it is; and the size that was read."""
    is_small, size = _measured(schema)
    cost = max(size, _MIN_SIZE)
    if not is_small:
        return None, cost
    try:
        repair = _Repair(schema)
        result = repair.run()
    except (ValueError, RecursionError):  # a value is nested too deeply
        return None, cost
    return result if repair.has_changed else None, cost * repair.rounds


def _measured(schema: Any) -> tuple[bool, int]:
    """Whether a schema is small enough to be read, and its size."""
    size, references = 0, set[str]()
    pending = [(schema, 0, False)]
    while pending:
        value, depth, by_name = pending.pop()
        size += len(value)
        if size > _MAX_SIZE or depth > MAX_DEPTH:
            return False, size
        if isinstance(value, Mapping) and not by_name:
            references.update(each for key in REFERENCES if isinstance(each := value.get(key), str))
            if len(references) > MAX_REFERENCES:
                return False, size
            inner = [(each, key in BY_NAME) for key, each in value.items() if key not in VALUES]
        else:
            inner = [(each, False) for each in (value if isinstance(value, list) else value.values())]
        pending += ((each, depth + 1, named) for each, named in inner if isinstance(each, Mapping | list))
    return True, size


class _Repair:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._whole: Any = _copied(schema)
        self._left_out: dict[str, str] = {}
        #: The schemas that allow more values than before.
        self._widened: set[Path] = set()
        self.has_changed, self.rounds = False, 0

    def run(self) -> RepairedSchema:
        """Remove faults until there are none. Nothing is usable if the root is at fault, or there are too many
        rounds."""
        parts = _Parts(self._whole)
        for place in parts.places.values():
            declared = place.schema.get("type")
            if "type" in place.schema and (kind := _type(declared)) != declared:
                place.schema["type"], self.has_changed = kind, True
        for _ in range(_MAX_ROUNDS):
            self.rounds += 1
            faults = self._faults(parts)
            if not faults:
                return RepairedSchema(self._whole, self._left_out)
            if () in faults:
                break
            for path, (reason, is_schema) in faults.items():
                self._leave_out(path, reason, is_schema)
            parts = _Parts(self._whole)
        self.has_changed = True
        return RepairedSchema(None, {"#": _NOT_A_SCHEMA})

    def _faults(self, parts: _Parts) -> dict[Path, tuple[str, bool]]:
        """Unusable keywords and schemas by path, each with the reason and whether it is a schema."""
        try:
            draft = drafts.named(self._whole)
        except ValueError:
            return {("$schema",): (_NOT_A_SCHEMA, False)}
        faults: dict[Path, tuple[str, bool]] = {}
        for place in parts.places.values():
            for below, is_schema in _invalid(place.schema, draft):
                faults[place.path + below] = _NOT_A_SCHEMA, is_schema
        for path, reason in parts.unusable():
            faults.setdefault(path, (reason, False))
        return faults or {path: (_DEPENDS, False) for path in parts.depending_on(self._widened)}

    def _leave_out(self, path: Path, reason: str, is_schema: bool) -> None:
        """Remove a keyword and those that would allow fewer values without it. A schema under a name or in a list
        becomes one that allows everything."""
        *above, last = path
        parent = self._whole
        for step in above:
            parent = parent[int(step)] if isinstance(parent, list) else parent.get(step)
            if not isinstance(parent, dict | list):
                return  # a part around it has been removed
        self.has_changed = True
        for keyword in (last, *(() if is_schema else _DEPENDENT.get(last, ()))):
            if isinstance(parent, list):
                parent[int(keyword)] = self._anything
            elif keyword not in parent:
                continue
            elif is_schema:
                parent[keyword] = self._anything
            else:
                del parent[keyword]
            if is_schema or keyword not in _ANNOTATIONS:
                self._left_out.setdefault(pointer((*above, keyword)), reason if keyword == last else _DEPENDS)
                self._widened.add(path if is_schema else tuple(above))

    @property
    def _anything(self) -> Any:
        return _anything(drafts.named(self._whole))


class _Parts:
    """All schemas in a schema, by path, with the targets of references."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        references = References(whole)
        self._root = references.root
        self.places: dict[Path, Place] = {}
        self._dangling: list[Path] = []
        #: The paths of references, each with the URI that it is relative to.
        self._referring: list[tuple[Path, str]] = []
        #: By path, the schemas that contain a schema or refer to it.
        self._users: dict[Path, list[Path]] = {}
        targets: dict[tuple[str, str], Place | None] = {}
        pending, referred = [references.root], list[Place]()
        while pending or referred:
            place = (pending or referred).pop()
            if place.path in self.places or not isinstance(place.schema, dict):
                continue
            self.places[place.path] = place
            for keyword in REFERENCES:
                if not isinstance(reference := place.schema.get(keyword), str):
                    continue
                key = place.base, reference
                if key not in targets:
                    targets[key] = references.resolved(place, reference)
                self._referring.append(((*place.path, keyword), place.base))
                target = targets[key]
                if target is None or not _is_referable(target, reference):
                    self._dangling.append((*place.path, keyword))
                else:
                    referred.append(target)
                    self._users.setdefault(target.path, []).append(place.path)
            for inner in (references.below(place, *keys) for keys in _inner(place.schema)):
                self._users.setdefault(inner.path, []).append(place.path)
                pending.append(inner)

    def unusable(self) -> Iterator[tuple[Path, str]]:
        """Keywords that are valid and still unusable, each with the reason."""
        kind = self._root.schema.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            yield ("type",), _NOT_AN_OBJECT
        yield from ((path, _DANGLING) for path in self._dangling)
        for path, place in self.places.items():
            for keyword in REFERENCES:
                if not isinstance(place.schema.get(keyword, ""), str):
                    yield (*path, keyword), _NOT_A_SCHEMA
            # The root's own `$id` does not matter: nothing here is loaded by a URI.
            if path and isinstance(name := place.schema.get("$id"), str) and not is_identifier(name):
                yield (*path, "$id"), _NOT_A_URI
                # Without the `$id`, references that are relative to it would mean something else.
                relative = (at for at, base in self._referring if base == place.base != self._root.base)
                yield from ((at, _DEPENDS) for at in relative)
            if not _is_pattern(place.schema.get("pattern", "")):
                yield (*path, "pattern"), _NOT_A_REGEX
            patterns = place.schema.get("patternProperties")
            if isinstance(patterns, dict) and not all(map(_is_pattern, patterns)):
                yield (*path, "patternProperties"), _NOT_A_REGEX

    def depending_on(self, widened: set[Path]) -> Iterator[Path]:
        """Keywords that may allow fewer values now that the schemas in `widened` allow more."""
        affected: set[Path] = set()
        pending = [*widened]
        while pending:
            path = pending.pop()
            if path not in affected:
                affected.add(path)
                pending += self._users.get(path, ())
        for path in sorted(affected & self.places.keys()):
            schema = self.places[path].schema
            for keys in _inner(schema):
                narrows = keys[0] in ("not", "if", "oneOf") or (keys[0] == "contains" and "maxContains" in schema)
                if narrows and (*path, *map(str, keys)) in affected:
                    yield (*path, str(keys[0]))
            yield from ((*path, keyword) for keyword in _UNEVALUATED if keyword in schema)


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """The keys under which `schema` contains schemas."""
    for keyword, value in schema.items():
        if keyword in BY_NAME and isinstance(value, dict):
            yield from ((keyword, name) for name in value)
        elif keyword in _LISTS and isinstance(value, list):
            yield from ((keyword, i) for i in range(len(value)))
        elif keyword in _SINGLE:
            yield (keyword,)


def _invalid(schema: Mapping[str, Any], draft: str | None) -> list[tuple[Path, bool]]:
    """The keywords of one schema that are not valid in a draft (None: 2020-12 with the words of older drafts), with
    False; and the non-schemas under a name or in a list, with True. Inner schemas are not checked."""
    faults: list[tuple[Path, bool]] = []
    anything = _anything(draft)
    alone: dict[str, Any] = {}  # the schema, with inner schemas that allow everything
    for keyword, value in schema.items():
        alone[keyword] = value
        if keyword in BY_NAME and isinstance(value, dict):
            alone[keyword] = {}
            for name, inner in value.items():
                is_list = keyword == "dependencies" and isinstance(inner, list)
                alone[keyword][name] = inner if is_list else anything
                if not is_list and not _is_schema(inner, draft):
                    faults.append(((keyword, name), True))
        elif keyword in _LISTS and isinstance(value, list):
            alone[keyword] = [anything] * len(value)
            faults += (((keyword, str(i)), True) for i, inner in enumerate(value) if not _is_schema(inner, draft))
        elif keyword in _SINGLE and isinstance(value, dict):
            alone[keyword] = anything
    if not _is_of(alone, draft):
        # In draft 4, `exclusiveMinimum` needs a `minimum` beside it.
        beside = {"exclusiveMinimum": {"minimum": 0}, "exclusiveMaximum": {"maximum": 0}}
        wrong = [key for key, value in alone.items() if not _is_of({**beside.get(key, {}), key: value}, draft)]
        if not wrong and draft is None and not isinstance(alone.get("additionalItems", True), bool | dict):
            wrong = ["additionalItems"]  # it is ignored unless `items` is a list
        faults += [((keyword,), False) for keyword in wrong] or [((), True)]
    return faults


def _anything(draft: str | None) -> Any:
    """The schema that allows everything."""
    return {} if draft == drafts.OLDEST else True


def _is_schema(value: Any, draft: str | None) -> bool:
    return isinstance(value, dict) or (isinstance(value, bool) and draft != drafts.OLDEST)


def _is_of(schema: Mapping[str, Any], draft: str | None) -> bool:
    if draft is None:
        drafts.in_newest_words(schema := {**schema})
    return drafts.is_of(schema, draft or drafts.NEWEST)


def _is_referable(target: Place, reference: str) -> bool:
    """Whether a reference leads to a schema, by a URI that the validator accepts."""
    document = reference.partition("#")[0]
    is_uri = not document or is_identifier(document)
    return is_uri and isinstance(target.schema, dict | bool) and not _is_data(target.path)


def _is_data(path: Path) -> bool:
    """Whether a path leads into the value of a keyword that contains data, such as `enum`."""
    at = 0
    while at < len(path):
        keyword = path[at]
        if keyword in VALUES:
            return True
        if keyword not in _WITH_SCHEMAS:
            return False
        inner = path[at + 1 : at + 2]
        at += 2 if keyword in BY_NAME or (keyword in _LISTS and inner and inner[0].isdecimal()) else 1
    return False


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [*map(_copied, value)] if isinstance(value, list) else value


def _type(declared: Any) -> Any:
    """A `type` with JSON Schema's names, where it has names from programming languages."""
    if isinstance(declared, list):
        return [*map(_type, declared)]
    return TYPE_NAMES.get(declared.lower(), declared) if isinstance(declared, str) else declared


def _is_pattern(text: Any) -> bool:
    return not isinstance(text, str) or is_regex(text) or is_regex(_DIALECT.sub("", text))
