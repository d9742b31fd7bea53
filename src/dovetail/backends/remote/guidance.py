"""Grammars for vLLM's guidance backend, which is llguidance: another version than ours, with less room, and one end.

vLLM 0.32 brings llguidance 1.7.6 and vLLM 0.33 brings 1.9.1; both give it its own limits.
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

#: Of all lists together: 1.7.6 makes as many rules before it counts them. With 100,000 it fails, and for 10^8 it takes
#: more memory than there is, in the process that answers everybody.
MOST_ITEMS = 10_000
#: In one row of its parser, which has room for 2,000: all that could go on at one place of an answer.
MOST_ENTRIES = 1_900
#: Of a property that need not be there; and of an object or list, which has fewer if it is closed or has to hold one.
_OPTIONAL, _HOLDING, _CLOSED = 4, 7, 3

_HOLDERS = ("object", "array")


def write(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """The grammar in Lark, with the end of the turn behind it: vLLM tells llguidance of the tokenizer's own end and no
    other, and models have several. Raises `InvalidRequest`, and `SchemaRefused` for what it cannot take.

    Ends are optional, though an answer has one: 1.7.6 cannot roll the tokenizer's own back where it has to come.
    """
    _check(grammar.schemas())
    ends = {f"[{token}]": token for token in vocabulary.eos_ids}
    whole = Concat((grammar.root, Maybe(Choice(tuple(map(ControlToken, ends))))))
    return lark(Grammar(whole), {**vocabulary.control, **ends})


def _check(schemas: Iterable[JsonSchema]) -> None:
    """Raise `SchemaRefused` for what it would die of, or could begin and not go on with."""
    items = 0.0
    for held in schemas:
        sizes: dict[tuple[str, ...], _Size] = {}
        shared: set[tuple[str, ...]] = {()}  # a rule each, whoever refers to it
        references = References(held.schema)
        for place, parts in _upwards(references):
            size = sizes[place.path] = _sized(place, parts, sizes, shared)
            if size.items > MOST_ITEMS:
                raise _refused(held, place, f"is where lists get to have more than {MOST_ITEMS:,} items")
            if size.most > MOST_ENTRIES:
                raise _refused(held, place, "has too many properties that are not required, in all choices together")
        items += sum(sizes[path].items for path in shared & sizes.keys())
        if items > MOST_ITEMS:
            raise _refused(held, references.root, f"is where lists get to have more than {MOST_ITEMS:,} items")


def _refused(held: JsonSchema, place: Place, why: str) -> SchemaRefused:
    told = placed(pointer(place.path), held.at)
    return SchemaRefused(
        f"{held.origin} cannot be enforced by vLLM's guidance backend: {told} {why}", param=held.origin
    )


class _Size(msgspec.Struct, frozen=True):
    """A schema as the library multiplies it out: what stands beside a union it copies into each `alternatives` of it.

    `entries` in the row where a value begins to be of this schema; `inside` is what is in the rows of what it holds, by
    key, None for that of other keys and of lists. `items` are those of all lists.
    """

    alternatives: int = 1
    entries: int = 0
    items: float = 0
    inside: Mapping[Hashable, int] = {}

    @property
    def most(self) -> int:
        named = max((held for key, held in self.inside.items() if key is not None), default=0)
        return max(self.entries, named + self.inside.get(None, 0))


class _Parts(NamedTuple):
    """The schemas in one, and the one that it refers to."""

    together: list[Place]
    unions: list[list[Place]]
    held: list[tuple[Hashable, Place]]
    target: Place | None


def _upwards(references: References) -> Iterator[tuple[Place, _Parts]]:
    """All schemas, each behind its parts, unless it stands in these."""
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
                list(_held(references, place)),
                references.resolved(place, place.schema["$ref"]) if "$ref" in place.schema else None,
            )
            pending.append((place, parts))
            pending += ((it, None) for union in (parts.together, *parts.unions) for it in union)
            pending += ((it, None) for _, it in parts.held)
            if parts.target is not None:
                pending.append((parts.target, None))


def _sized(place: Place, parts: _Parts, sizes: Mapping[tuple[str, ...], _Size], shared: set[tuple[str, ...]]) -> _Size:
    nothing = _Size()  # `true`, `false`, and what it is in itself
    inside: dict[Hashable, int] = {}
    items = max(0, *(_number(place.schema.get(key)) for key in ("minItems", "maxItems")))
    for key, held in parts.held:
        if (size := sizes.get(held.path)) is not None:
            items += size.items
            if size.most:
                inside[key] = inside.get(key, 0) + size.most
    both = [_Size(1, _entries(place.schema), items, inside)]
    both += (sizes.get(it.path, nothing) for it in parts.together)
    both += (_either([sizes.get(it.path, nothing) for it in union]) for union in parts.unions)
    if parts.target is not None and (size := sizes.get(parts.target.path)) is not None:
        if ASSERTIONS & place.schema.keys() == {"$ref"}:  # nothing is merged with it
            shared.add(parts.target.path)
            size = msgspec.structs.replace(size, items=0)
        both.append(size)
    return _both(both)


def _either(sizes: list[_Size]) -> _Size:
    inside: dict[Hashable, int] = {}
    for size in sizes:
        for key, held in size.inside.items():
            inside[key] = inside.get(key, 0) + held
    return _Size(
        min(sum(size.alternatives for size in sizes), MOST_ITEMS),
        sum(size.entries for size in sizes),
        sum(size.items for size in sizes),
        inside,
    )


def _both(sizes: list[_Size]) -> _Size:
    """As one, of all pairs of their alternatives. What is beyond the bounds is so in any number."""
    whole, *others = sizes
    for size in others:
        left, right = size.alternatives, whole.alternatives
        inside = {key: held * left for key, held in whole.inside.items()}
        for key, held in size.inside.items():
            inside[key] = inside.get(key, 0) + held * right
        whole = _Size(
            min(left * right, MOST_ITEMS),
            whole.entries * left + size.entries * right,
            whole.items * left + size.items * right,
            inside,
        )
    return whole


def _entries(schema: Mapping[str, Any]) -> int:
    """In the row where one begins that is an object or a list by this schema's own words."""
    kinds = schema.get("type")
    named = kinds if isinstance(kinds, list) else [kinds]
    if not any(kind in named or (kinds is None and not schema.keys().isdisjoint(ABOUT[kind])) for kind in _HOLDERS):
        return 0
    names, required = schema.get("properties"), schema.get("required")
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    optional = len(names.keys() - needed) if isinstance(names, Mapping) else 0
    closed = needed or schema.get("additionalProperties") is False
    return _OPTIONAL * optional + (_CLOSED if closed else _HOLDING)


def _listed(references: References, place: Place, keyword: str) -> list[Place]:
    value = place.schema.get(keyword)
    return [references.below(place, keyword, i) for i in range(len(value))] if isinstance(value, list) else []


def _held(references: References, place: Place) -> Iterator[tuple[Hashable, Place]]:
    """The schemas of what a value holds, each by its key."""
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
