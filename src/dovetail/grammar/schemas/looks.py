"""How long a validator looks at the values in a value, so that a check can be bounded before it begins.

A schema in which two branches of a choice refer to the same definition makes a validator look at one value twice, at
what is in it four times, and so on: a small schema and small arguments can take hours.

What a look costs was measured with jsonschema-rs 0.58, one core, and rounded up; everything is in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.grammar.schemas.references import Place, References

MANY = 10**9

_LOOK = 1 / 20
#: A place in a regex, for each character; one that turns back, for each text; a text's format, for each character.
_PLACE, _TURN, _SPELLING = 1 / 200, 50, 1 / 400
#: Formats whose texts are taken apart, for each text.
_DEAR_FORMATS = {"email": 0.1, "hostname": 0.1, "idn-email": 1.0, "idn-hostname": 1.0}
#: Comparing with an object or a list of an `enum` or `const`, for each value in it; with a value that is neither.
_COMPARISON, _SMALL_COMPARISON = 0.1, 1 / 100
#: A name that is looked for in an object; a key that `unevaluatedProperties` asks about; an item that is compared with
#: others.
_NAME, _MARK, _ITEM = 1 / 40, 1 / 100, 1 / 20
#: Dividing by a fraction, by one so small that there are numbers of hundreds of digits, and by an integer.
_FRACTION, _TINY, _INTEGER = 1.0, 20.0, 0.2
#: Schemas of which a weight is made. Where there are more, only those that get values are read.
_MOST_WEIGHED = 4_000
#: Counting itself, each time that a schema is handed values: it has to end soon too.
_STEP = 1 / 4
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{[0-9]+(?:,[0-9]*)?\}|.", re.DOTALL)

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_BY_NAME = ("dependentSchemas", "dependencies")
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_OF_VALUES = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
#: All keywords that say something here.
_COUNTED = {
    *(*_REFERENCES, *_BY_NAME, *_IN_PLACE, *_OF_VALUES, *_OF_ITEMS, "properties", "patternProperties", "propertyNames"),
    *("prefixItems", "pattern", "format", "uniqueItems", "enum", "const", "required", "dependentRequired"),
    *("multipleOf", *_BOUNDS),
}


class _Read(NamedTuple):
    """One schema: what it costs for each value, each text and each character, and the schemas in it, by what they hold
    for."""

    own: float
    text: float
    character: float
    unique: bool
    #: Whether every schema that holds of the same value is asked which of its keys it knows.
    marks: bool
    here: list[Place]
    keys: list[Place]
    values: list[Place]
    items: list[Place]
    named: dict[str, Place]
    #: What holds of the value itself where it has the key.
    dependent: list[dict[str, Place]]
    numbered: list[list[Place]]

    @property
    def inner(self) -> Iterator[Place]:
        yield from (*self.here, *self.keys, *self.values, *self.items)
        for by_name in (self.named, *self.dependent):
            yield from by_name.values()
        for places in self.numbered:
            yield from places


#: Of the many that have no keyword that is counted here.
_NOTHING = _Read(0.0, 0.0, 0.0, False, False, [], [], [], [], {}, [], [])


class Looks:
    """What looking at values costs with one schema. `turning`: its regexes may turn back, some thousand times each."""

    def __init__(self, schema: Any, *, turning: bool) -> None:
        self._references = References(schema)
        self._turning = turning
        self._found: dict[tuple[str, ...], _Read] = {}
        #: At most, for a character of JSON; `MANY` where a schema comes back to itself, or holds very many.
        self.weight = self._weight()

    def at(self, value: Any, limit: float) -> float:
        """For a validator that stops nowhere early, counted as far as `limit`; `MANY` where it would not end.

        A schema is handed its values all together, and they are counted before.
        """
        cost, steps = _LOOK, 0
        pending = [(self._references.root, [value], 0, False)]
        while pending:
            place, values, chain, marked = pending.pop()
            read = self._read(place)
            if chain >= len(self._found):  # then one of them came again with the same values
                return MANY
            cost += _cost(read, values)
            if marked:
                cost += sum(len(it) for it in values if isinstance(it, dict)) * _MARK
            for inner, held, left in _below(read, values) if cost <= limit else ():
                steps += 1
                cost += len(held) * _LOOK
                if steps * _STEP > limit:
                    return MANY
                if cost > limit:
                    break
                further = (0, False) if left else (chain + 1, marked or read.marks)
                pending.append((inner, held, *further))
            if cost > limit:
                return cost
        return cost

    def _weight(self) -> float:
        known: dict[tuple[str, ...], float] = {}
        entered: set[tuple[str, ...]] = set()
        pending = [(self._references.root, False)]
        while pending:
            place, done = pending.pop()
            read = self._read(place)
            if done:
                # No value is shorter than a character and a comma.
                own = (_LOOK + read.own + read.text) / 2 + read.character + read.unique * _ITEM / 2
                known[place.path] = min(MANY, own + sum(known.get(it.path, MANY) for it in read.inner))
            elif place.path not in entered:
                entered.add(place.path)
                pending.append((place, True))
                pending += ((it, False) for it in read.inner)
                if len(entered) + len(pending) > _MOST_WEIGHED:
                    return MANY
        return known[()]

    def _read(self, place: Place) -> _Read:
        if place.path not in self._found:
            schema = place.schema if isinstance(place.schema, Mapping) else {}
            if _COUNTED.isdisjoint(schema):
                return self._found.setdefault(place.path, _NOTHING)
            held = schema.get("patternProperties")
            regexes = [
                *(held if isinstance(held, Mapping) else ()),
                *([schema["pattern"]] if "pattern" in schema else []),
            ]
            turning = len(regexes) if self._turning else 0
            text = turning * _TURN + len(regexes) * _LOOK
            character = turning * _TURN / 500 + sum(map(width, regexes)) * _PLACE
            if isinstance(name := schema.get("format"), str):
                text, character = text + _DEAR_FORMATS.get(name, 0.0), character + _SPELLING
            unique, marks = schema.get("uniqueItems") is True, "unevaluatedProperties" in schema
            read = _Read(_own(schema), text, character, unique, marks, [], [], [], [], {}, [], [])
            _enter(read, self._references, place)
            self._found[place.path] = read
        return self._found[place.path]


def _cost(read: _Read, values: list[Any]) -> float:
    """What one schema costs for these values, without the schemas in it."""
    cost = len(values) * read.own + sum(_long(it) for it in values if isinstance(it, int))
    if read.text or read.character:
        cost += sum(read.text + len(it) * read.character for it in values if isinstance(it, str))
    if read.text:
        cost += sum(read.text + len(key) * read.character for it in values if isinstance(it, dict) for key in it)
    if read.unique:
        cost += sum(_nodes(it) for it in values if isinstance(it, list)) * _ITEM
    if read.named:  # looked for, and not there: what is, is looked at
        held = [it for it in values if isinstance(it, dict)]
        cost += sum(min(len(read.named), len(it)) - len(read.named.keys() & it.keys()) for it in held) * _NAME
    return cost


def _below(read: _Read, values: list[Any]) -> Iterator[tuple[Place, list[Any], bool]]:
    """The schemas in one schema, the values that each is handed, and whether they are in these: else they are these."""
    yield from ((inner, values, False) for inner in read.here)
    held = [it for it in values if isinstance(it, dict)]
    if held and read.keys:
        keys = [key for it in held for key in it]
        yield from ((inner, keys, True) for inner in read.keys)
    if held and read.values:
        each = [value for it in held for value in it.values()]
        yield from ((inner, each, True) for inner in read.values)
    for by_name, left in (*((names, False) for names in read.dependent), (read.named, True)):
        found: dict[str, list[Any]] = {}
        for it in held if by_name else ():
            # Either may be very many, and the other few.
            for key in by_name if len(by_name) < len(it) else it:
                if key in by_name and key in it:
                    found.setdefault(key, []).append(it[key] if left else it)
        yield from ((by_name[key], some, left) for key, some in found.items())
    lists = [it for it in values if isinstance(it, list)]
    if lists and read.items:
        each = [item for it in lists for item in it]
        yield from ((inner, each, True) for inner in read.items)
    for places in read.numbered:
        longer = lists
        for i, inner in enumerate(places):
            if not (longer := [it for it in longer if len(it) > i]):
                break
            yield inner, [it[i] for it in longer], True


def _own(schema: Mapping[str, Any]) -> float:
    """What the keywords cost that hold no schemas and no regexes."""
    cost = 0.0
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    if {type(value) for value in values} not in ({str}, {int}):  # which are looked up
        cost += len(values) * _SMALL_COMPARISON
    held = (value for value in (*values, schema.get("const")) if isinstance(value, dict | list))
    cost += sum(map(_nodes, held)) * _COMPARISON
    names = [schema.get("required"), *_lists(schema.get("dependentRequired")), *_lists(schema.get("dependencies"))]
    cost += sum(len(each) for each in names if isinstance(each, list)) * _NAME
    by_name = (schema.get(name) for name in _BY_NAME)
    cost += sum(len(each) for each in by_name if isinstance(each, Mapping)) * _NAME
    divisor = schema.get("multipleOf")
    if isinstance(divisor, int):
        cost += _INTEGER
    elif isinstance(divisor, float):
        cost += _FRACTION if divisor > 1e-9 else _TINY
    bounds = (divisor, *(schema.get(name) for name in (*_BOUNDS, "const")))
    return cost + sum(_long(bound) for bound in (*bounds, *values) if isinstance(bound, int))


def _long(number: int) -> float:
    """What it costs that an integer is one of more than 64 bits: it is read anew, digit by digit."""
    bits = number.bit_length()
    return 0.5 + (bits / 470) ** 2 if bits > 63 else 0.0


def _lists(held: Any) -> Iterator[Any]:
    yield from held.values() if isinstance(held, Mapping) else ()


def _nodes(value: Any) -> int:
    """How many values there are in a value, itself one of them."""
    count, pending = 0, [value]
    while pending:
        held = pending.pop()
        count += 1
        if isinstance(held, dict | list):
            pending += held.values() if isinstance(held, dict) else held
    return count


def width(regex: Any) -> int:
    """In how many of its places a regex can be at once, at most: repetitions are so many places, but for the first from
    a text's beginning, where the text behind says which it is."""
    pieces = _PIECE.findall(regex) if isinstance(regex, str) else []
    if pieces[:1] == ["^"] and not {"(", "|"}.intersection(pieces):
        first = next((i for i, piece in enumerate(pieces) if piece in "*+?" or piece[0] == "{"), len(pieces))
        pieces = [".", *pieces[first + 1 :]]
    held = [[0, 0]]  # of each open group, what is behind and the last piece, which a repetition multiplies
    for piece in pieces:
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


def _enter(read: _Read, references: References, place: Place) -> None:
    """The schemas in a schema. Those that hold of the same value come twice where `unevaluated…` looks again."""
    schema = place.schema
    if not isinstance(schema, Mapping):
        return
    again = 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1
    for keyword, value in schema.items():
        if keyword in _REFERENCES:
            target = references.resolved(place, value)
            read.here.extend([target] * again if target is not None else ())
        elif keyword in _IN_PLACE and isinstance(value, Mapping | list):
            found = [(i,) for i in range(len(value))] if isinstance(value, list) else [()]
            read.here.extend([references.below(place, keyword, *key) for key in found] * again)
        elif keyword in _BY_NAME and isinstance(value, Mapping):
            read.dependent.extend([{name: references.below(place, keyword, name) for name in value}] * again)
        elif keyword == "properties" and isinstance(value, Mapping):
            read.named.update((name, references.below(place, keyword, name)) for name in value)
        elif keyword == "patternProperties" and isinstance(value, Mapping):
            read.values.extend(references.below(place, keyword, name) for name in value)
        elif keyword in ("prefixItems", "items") and isinstance(value, list):
            read.numbered.append([references.below(place, keyword, i) for i in range(len(value))])
        elif isinstance(value, Mapping) and (places := _places(read, keyword)) is not None:
            places.append(references.below(place, keyword))


def _places(read: _Read, keyword: str) -> list[Place] | None:
    """Those of the same kind as the one schema that `keyword` holds; None: it holds none."""
    if keyword == "propertyNames":
        return read.keys
    return read.values if keyword in _OF_VALUES else read.items if keyword in _OF_ITEMS else None
