"""How many times a validator looks at the values in a value, so that a check can be bounded before it begins.

A schema in which two branches of a choice refer to the same definition makes a validator look at one value twice, at
what is in it four times, and so on: a small schema and small arguments can take hours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.grammar.schemas.references import Place, References

MANY = 10**9

#: What a place in a regex costs for each character, and what one that turns back does for each text, in looks.
_PLACE, _TURN = 1 / 200, 500
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{[0-9]+(?:,[0-9]*)?\}|.", re.DOTALL)

#: A schema in a schema: keyword, name or number if it holds several, place.
_Inner = tuple[str, Any, Place]

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "dependencies")
_IN_PLACE = (*_REFERENCES, "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_OF_KEYS = ("patternProperties", "additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")
#: No schemas, or none that hold where they stand.
_PASSED = ("const", "enum", "default", "examples", "example", "$defs", "definitions")


#: Comparing a value with an object or a list of an `enum`; with others it takes no time.
_COMPARISON = 0.1


class Looks:
    """The looks at values that one schema takes, of a microsecond each. `turning`: its regexes may turn back, some
    thousand times each."""

    def __init__(self, schema: Any, *, turning: bool) -> None:
        self._references = References(schema)
        self._turning = turning
        self._found: dict[tuple[str, ...], tuple[float, float, float, list[_Inner]]] = {}
        #: How many schemas there are when every reference is written out, times what a character of a text costs the
        #: dearest of their regexes; `MANY` where a schema comes back to itself.
        self.weight = self._schemas()
        self.weight *= max((1.0, *(each + character for _, each, character, _ in self._found.values())))

    def at(self, value: Any, limit: int) -> float:
        """How many a validator takes that stops nowhere early, counted as far as `limit`."""
        count, pending = 0.0, [(self._references.root, value)]
        while pending and count <= limit:
            place, value = pending.pop()
            own, each, character, inner = self._read(place)
            count += 1 + own
            if each or character:
                texts = (value,) if isinstance(value, str) else value if isinstance(value, Mapping) else ()
                count += sum(each + len(text) * character for text in texts)
            pending += _looked_at(inner, value)
        return count

    def _schemas(self) -> float:
        known: dict[tuple[str, ...], float] = {}
        entered: set[tuple[str, ...]] = set()
        pending = [(self._references.root, False)]
        while pending:
            place, done = pending.pop()
            own, *_, inner = self._read(place)
            if done:
                # What a schema costs by itself, it may cost for every few characters.
                known[place.path] = min(MANY, 1 + 100 * own + sum(known.get(it.path, MANY) for _, _, it in inner))
            elif place.path not in entered:
                entered.add(place.path)
                pending.append((place, True))
                pending += ((it, False) for _, _, it in inner)
        return known[()]

    def _read(self, place: Place) -> tuple[float, float, float, list[_Inner]]:
        """What a schema costs for each value, its regexes for each text and each character, and the schemas in it."""
        if place.path not in self._found:
            schema = place.schema if isinstance(place.schema, Mapping) else {}
            held = schema.get("patternProperties")
            regexes = [
                *(held if isinstance(held, Mapping) else ()),
                *([schema["pattern"]] if "pattern" in schema else []),
            ]
            turning = len(regexes) if self._turning else 0
            each, character = turning * _TURN, turning * _TURN / 100 + sum(map(width, regexes)) * _PLACE
            values = schema.get("enum")
            own = sum(isinstance(it, dict | list) for it in values) * _COMPARISON if isinstance(values, list) else 0.0
            self._found[place.path] = own, each, character, list(_inner(self._references, place))
        return self._found[place.path]


def width(regex: Any) -> int:
    """In how many of its places a regex can be at once, at most: repetitions are so many places."""
    held = [[0, 0]]  # of each open group, what is behind and the last piece, which a repetition multiplies
    for piece in _PIECE.findall(regex) if isinstance(regex, str) else ():
        if piece == "(":
            held.append([0, 0])
        elif piece == ")" and len(held) > 1:
            inner = sum(held.pop())
            held[-1] = [sum(held[-1]), inner]
        elif len(piece) > 1 and piece[0] == "{":
            held[-1][1] *= max(1, *map(int, re.findall("[0-9]{1,6}", piece)))
        elif piece not in "*+?|^$":
            held[-1] = [sum(held[-1]), 1]
    return sum(map(sum, held))


def _looked_at(held: list[_Inner], value: Any) -> Iterator[tuple[Place, Any]]:
    for keyword, key, inner in held:
        if keyword in _IN_PLACE:
            yield inner, value
        elif isinstance(value, Mapping):
            if keyword in _OF_KEYS:
                yield from ((inner, it) for it in value.values())
            elif keyword == "propertyNames":
                yield from ((inner, name) for name in value)
            elif keyword == "properties" and key in value:
                yield inner, value[key]
        elif isinstance(value, list):
            if keyword in _OF_ITEMS and key is None:
                yield from ((inner, it) for it in value)
            elif keyword in ("prefixItems", "items") and isinstance(key, int) and key < len(value):
                yield inner, value[key]


def _inner(references: References, place: Place) -> Iterator[_Inner]:
    """The schemas in a schema. Those that hold of the same value come twice where `unevaluated…` looks again."""
    schema = place.schema
    if not isinstance(schema, Mapping):
        return
    again = 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1
    for keyword, value in schema.items():
        if keyword in _PASSED:
            continue
        times = again if keyword in _IN_PLACE else 1
        if keyword in _REFERENCES:
            target = references.resolved(place, value)
            yield from [(keyword, None, target)] * times if target is not None else ()
        elif keyword in _BY_NAME and isinstance(value, Mapping):
            for name in value:
                yield from [(keyword, name, references.below(place, keyword, name))] * times
        elif isinstance(value, list):
            for i in range(len(value)):
                yield from [(keyword, i, references.below(place, keyword, i))] * times
        elif isinstance(value, Mapping):
            yield from [(keyword, None, references.below(place, keyword))] * times
