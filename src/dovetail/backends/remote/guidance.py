"""Writes grammars for vLLM's guidance backend, an llguidance with smaller limits and one end token.

vLLM 0.32 and 0.33 bring llguidance 1.7 and use its default limits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from dovetail.backends.remote.dialect import lark
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.errors import SchemaRefused
from dovetail.grammar import Choice, Concat, ControlToken, Grammar, JsonSchema, Maybe
from dovetail.grammar.schemas.keywords import ABOUT, ASSERTIONS
from dovetail.grammar.schemas.references import Place, References, placed, pointer

#: The most items in the `minItems` and `maxItems` of all lists together. llguidance 1.7.6 creates a rule for each
#: before it counts them: it fails at 100,000, and 10^8 exhaust the memory of the process that serves all requests.
MOST_ITEMS = 10_000
#: The most entries in one row of its parser, which holds 2,000: the ways in which an answer may continue at one place.
MOST_ENTRIES = 1_900
#: The entries of an optional property; of an object or list; and of one that is closed or has required properties.
_OPTIONAL, _CONTAINER, _CLOSED = 4, 7, 3

_CONTAINERS = ("object", "array")


def write(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """The grammar in Lark, followed by an optional end-of-turn token.

    vLLM tells llguidance only the tokenizer's own end token, but models have several. The end is optional, because
    llguidance 1.7.6 cannot roll back a required end token. Raises `InvalidRequest`, and `SchemaRefused` for a schema
    beyond llguidance's limits.
    """
    _check(grammar.schemas())
    ends = {f"[{token}]": token for token in vocabulary.eos_ids}
    whole = Concat((grammar.root, Maybe(Choice(tuple(map(ControlToken, ends))))))
    return lark(Grammar(whole), {**vocabulary.control, **ends})


def _check(schemas: Iterable[JsonSchema]) -> None:
    """Raise `SchemaRefused` for schemas that llguidance could not compile, or could not follow to the end."""
    items = 0.0
    for constrained in schemas:
        sizes: dict[tuple[str, ...], _Size] = {}
        shared: set[tuple[str, ...]] = {()}  # these become one rule each, however often they are referred to
        references = References(constrained.schema)
        for place, parts in _upwards(references):
            size = sizes[place.path] = _sized(place, parts, sizes, shared)
            if size.items > MOST_ITEMS:
                raise _refused(constrained, place, f"makes lists have more than {MOST_ITEMS:,} items in all")
            if size.most > MOST_ENTRIES:
                raise _refused(constrained, place, "has too many optional properties, over all choices together")
        items += sum(sizes[path].items for path in shared & sizes.keys())
        if items > MOST_ITEMS:
            raise _refused(constrained, references.root, f"makes lists have more than {MOST_ITEMS:,} items in all")


def _refused(constrained: JsonSchema, place: Place, why: str) -> SchemaRefused:
    where = placed(pointer(place.path), constrained.at)
    return SchemaRefused(
        f"{constrained.origin} cannot be enforced by vLLM's guidance backend: {where} {why}", param=constrained.origin
    )


class _Size(msgspec.Struct, frozen=True):
    """The size of a schema after llguidance has expanded it: it copies the siblings of a union into each alternative.

    `alternatives`: the number of copies. `entries`: parser entries where a value of this schema begins. `items`: the
    items of all lists. `inside`: entries where the values inside it begin, by key; None is for other keys and lists.
    """

    alternatives: int = 1
    entries: int = 0
    items: float = 0
    inside: Mapping[Hashable, int] = {}

    @property
    def most(self) -> int:
        named = max((entries for key, entries in self.inside.items() if key is not None), default=0)
        return max(self.entries, named + self.inside.get(None, 0))


class _Parts(NamedTuple):
    """The direct subschemas of a schema: in `allOf`, in unions, in its values by key, and the target of its `$ref`."""

    together: list[Place]
    unions: list[list[Place]]
    values: list[tuple[Hashable, Place]]
    target: Place | None


def _upwards(references: References) -> Iterator[tuple[Place, _Parts]]:
    """All subschemas in an order in which parts come before the whole, except in a recursion."""
    entered: set[tuple[str, ...]] = set()
    pending: list[tuple[Place, _Parts | None]] = [(references.root, None)]
    while pending:
        place, parts = pending.pop()
        if parts is not None:
            yield place, parts
        elif isinstance(place.schema, Mapping) and place.path not in entered:
            entered.add(place.path)
            parts = _Parts(
                _listed(references, place, "allOf"),
                [union for keyword in ("anyOf", "oneOf") if (union := _listed(references, place, keyword))],
                list(_values(references, place)),
                references.resolved(place, place.schema["$ref"]) if "$ref" in place.schema else None,
            )
            pending.append((place, parts))
            pending += ((it, None) for union in (parts.together, *parts.unions) for it in union)
            pending += ((it, None) for _, it in parts.values)
            if parts.target is not None:
                pending.append((parts.target, None))


def _sized(place: Place, parts: _Parts, sizes: Mapping[tuple[str, ...], _Size], shared: set[tuple[str, ...]]) -> _Size:
    nothing = _Size()  # the size of `true`, `false`, and of a recursive schema
    inside: dict[Hashable, int] = {}
    items = max(0, *(_number(place.schema.get(key)) for key in ("minItems", "maxItems")))
    for key, value in parts.values:
        if (size := sizes.get(value.path)) is not None:
            items += size.items
            if size.most:
                inside[key] = inside.get(key, 0) + size.most
    all_of = [_Size(1, _entries(place.schema), items, inside)]
    all_of += (sizes.get(it.path, nothing) for it in parts.together)
    all_of += (_any_of([sizes.get(it.path, nothing) for it in union]) for union in parts.unions)
    if parts.target is not None and (size := sizes.get(parts.target.path)) is not None:
        if ASSERTIONS & place.schema.keys() == {"$ref"}:  # without siblings the target is not copied
            shared.add(parts.target.path)
            size = msgspec.structs.replace(size, items=0)
        all_of.append(size)
    return _all_of(all_of)


def _any_of(sizes: list[_Size]) -> _Size:
    inside: dict[Hashable, int] = {}
    for size in sizes:
        for key, entries in size.inside.items():
            inside[key] = inside.get(key, 0) + entries
    return _Size(
        min(sum(size.alternatives for size in sizes), MOST_ITEMS),
        sum(size.entries for size in sizes),
        sum(size.items for size in sizes),
        inside,
    )


def _all_of(sizes: list[_Size]) -> _Size:
    """The size of the merged schemas: every combination of their alternatives. Counts stop at the limits."""
    whole, *others = sizes
    for size in others:
        left, right = size.alternatives, whole.alternatives
        inside = {key: entries * left for key, entries in whole.inside.items()}
        for key, entries in size.inside.items():
            inside[key] = inside.get(key, 0) + entries * right
        whole = _Size(
            min(left * right, MOST_ITEMS),
            whole.entries * left + size.entries * right,
            whole.items * left + size.items * right,
            inside,
        )
    return whole


def _entries(schema: Mapping[str, Any]) -> int:
    """The parser entries where an object or a list of this schema begins; 0 for a schema of neither."""
    kinds = schema.get("type")
    named = kinds if isinstance(kinds, list) else [kinds]
    if not any(kind in named or (kinds is None and not schema.keys().isdisjoint(ABOUT[kind])) for kind in _CONTAINERS):
        return 0
    names, required = schema.get("properties"), schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    optional = len(names.keys() - needed) if isinstance(names, Mapping) else 0
    closed = needed or schema.get("additionalProperties") is False
    return _OPTIONAL * optional + (_CLOSED if closed else _CONTAINER)


def _listed(references: References, place: Place, keyword: str) -> list[Place]:
    value = place.schema.get(keyword)
    return [references.below(place, keyword, i) for i in range(len(value))] if isinstance(value, list) else []


def _values(references: References, place: Place) -> Iterator[tuple[Hashable, Place]]:
    """The schemas of the values in an object or a list, each with its key."""
    for keyword in ("properties", "patternProperties"):
        for name in value if isinstance(value := place.schema.get(keyword), Mapping) else ():
            yield name if keyword == "properties" else None, references.below(place, keyword, name)
    for keyword in ("additionalProperties", "additionalItems", "items"):
        if isinstance(place.schema.get(keyword), Mapping):
            yield None, references.below(place, keyword)
    for keyword in ("prefixItems", "items"):
        yield from enumerate(_listed(references, place, keyword))


def _number(value: Any) -> float:
    return min(value, MOST_ITEMS + 1) if isinstance(value, int | float) else 0
