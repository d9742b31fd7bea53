"""An upper bound of what it costs to validate a value, so that a check can be refused before it starts.

A validator visits one value several times: once for each schema that applies to it. A schema whose two branches refer
to the same definition doubles the visits with each level, so a small schema and small arguments may take hours.

The bound comes from the schema's branches and the value's size. For each level of the value (the root, what is in it,
and so on) it takes the schemas that may apply to one value of that level, and multiplies their cost with the number of
values on the level. Costs are in visits. One visit takes the validator about 20 ns (jsonschema-rs 0.58, one core).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.grammar.schemas.keywords import REFERENCES, listed
from dovetail.grammar.schemas.references import Path, Place, References
from dovetail.grammar.schemas.regexes import written_out

#: More than any bound.
UNBOUNDED = 10**9
#: Visits per microsecond.
PER_MICROSECOND = 50

#: A regex, for each text, and for each character and each state of its automaton. A regex that may backtrack gives up
#: after some thousand steps.
_REGEX, _REGEX_CHARACTER = 2.5, 0.25
_BACKTRACKING, _BACKTRACKING_CHARACTER = 2_500, 5
_FORMAT_CHARACTER = 0.125
#: Formats that the validator takes apart, for each text.
_FORMATS = {"email": 5, "hostname": 5, "idn-email": 50, "idn-hostname": 50}
#: One value in an object or list of `enum` or `const`; one value of another type in a mixed `enum`.
_NESTED_CONSTANT, _CONSTANT = 5, 0.5
#: A name that is looked up; a value below `uniqueItems`, which is compared; a schema that is asked about a key for
#: `unevaluatedProperties`.
_NAME, _UNIQUE, _ASKED = 0.5, 2.5, 0.5
#: `multipleOf` an integer, a fraction, and a fraction so small that the quotient has hundreds of digits.
_INTEGER, _FRACTION, _TINY_FRACTION = 10, 50, 1_000
#: Steps, each of which reads a schema or adds up one: for the bound of a value, and for the bound of a character. If
#: there are more, there is no bound.
_MAX_STEPS, _MAX_STEPS_OF_CHARACTER = 25_000, 4_000
#: Schemas that apply to one value. A schema that refers to itself for the same value has more.
_MAX_APPLIED = 5_000
#: Levels that are tried for the cost of a character. A schema that goes deeper refers to itself.
_MAX_LEVELS = 30

_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{[0-9]+(?:,[0-9]*)?\}|.", re.DOTALL)
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_DEPENDENT = ("dependentSchemas", "dependencies")
_EVERY_VALUE = ("additionalProperties", "unevaluatedProperties")
_EVERY_ITEM = ("items", "additionalItems", "unevaluatedItems", "contains")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class _Cost(NamedTuple):
    """Visits for each value, for each text (keys are texts) more, and for each character of a text more. `inherited` is
    for each value too, and for the values on all lower levels."""

    value: float = 0.0
    text: float = 0.0
    character: float = 0.0
    inherited: float = 0.0

    def plus(self, other: _Cost) -> _Cost:
        value, text, character, inherited = other
        return _Cost(self[0] + value, self[1] + text, self[2] + character, self[3] + inherited)

    def most(self, other: _Cost) -> _Cost:
        return _Cost(*map(max, self, other)) if other != _NOTHING else self


_NOTHING = _Cost()


class _Applied:
    """All schemas that apply to one value: their cost, and the schemas for what is in the value."""

    def __init__(self) -> None:
        self.cost = _Cost()
        #: For each key and value of an object, and each item of a list.
        self.inner = _Cost()
        self.keys: list[Place] = []
        #: By the name of the value or the number of the item; None: for every one.
        self.values: dict[str | None, list[Place]] = {}
        self.items: dict[int | None, list[Place]] = {}


class _Unbounded(Exception):
    pass


class ValidationCost:
    """The bound for one schema. `backtracking`: whether the validator's regexes may backtrack."""

    def __init__(self, schema: Any, *, backtracking: bool) -> None:
        self._references = References(schema)
        self._backtracking = backtracking
        self._applied: dict[Path, _Applied] = {}
        self._costs: dict[tuple[Path, int], _Cost] = {}
        self._targets: dict[tuple[str, str], list[Place]] = {}  # by URI and reference; empty if it is dangling
        self._remaining = 0
        #: Visits for each character of JSON; `UNBOUNDED` if the schema refers to itself, or is very large.
        self.per_character = self._per_character()

    def of(self, value: Any, limit: float) -> float:
        """The visits that validating `value` takes at most. Counting may stop when there are more than `limit`."""
        self._remaining = _MAX_STEPS
        visits, depth, level = 0.0, 0, [value]
        keys: list[str] = []
        while level and visits <= limit:
            texts = [*keys, *(each for each in level if isinstance(each, str))]
            values = len(level) + sum(_long(each) for each in level if isinstance(each, int))
            try:
                cost = self._cost(self._references.root, depth)
            except _Unbounded:
                return UNBOUNDED
            visits += (cost.value + cost.inherited) * values
            visits += cost.text * len(texts) + cost.character * sum(map(len, texts))
            keys = [key for each in level if isinstance(each, dict) for key in each]
            level, depth = [inner for each in level for inner in _inner(each)], depth + 1
        return visits

    def _per_character(self) -> float:
        self._remaining = _MAX_STEPS_OF_CHARACTER
        largest = _Cost()
        try:
            for depth in range(_MAX_LEVELS):
                cost = self._cost(self._references.root, depth)
                largest = largest.most(cost)
                if depth and not (cost.value or cost.text or cost.character):
                    return sum(largest)
        except _Unbounded:
            pass
        return UNBOUNDED

    def _cost(self, place: Place, depth: int) -> _Cost:
        """The most that one value costs which is `depth` levels below a value that the schema at `place` applies to."""
        self._spend(1)
        key = place.path, depth
        if key not in self._costs:
            if place.path not in self._applied:
                self._applied[place.path] = self._schemas(place)
            applied = self._applied[place.path]
            self._costs[key] = applied.cost._replace(inherited=0.0) if depth == 0 else self._inside(applied, depth - 1)
        return self._costs[key]

    def _inside(self, applied: _Applied, depth: int) -> _Cost:
        """As `_cost`, where `depth` counts from what is directly in the value."""
        keys = self._sum(applied.keys, depth)
        most = _Cost(text=keys.value + keys.text, character=keys.character)
        for children in (applied.values, applied.items):
            named = (self._sum(places, depth) for name, places in children.items() if name is not None)
            every = self._sum(children.get(None, ()), depth)
            most = most.most(every.plus(functools.reduce(_Cost.most, named, _NOTHING)))
        if depth == 0:
            most = most.plus(applied.inner)
        return most._replace(inherited=most.inherited + applied.cost.inherited)

    def _sum(self, places: Iterable[Place], depth: int) -> _Cost:
        return functools.reduce(_Cost.plus, (self._cost(place, depth) for place in places), _NOTHING)

    def _schemas(self, place: Place) -> _Applied:
        applied = _Applied()
        count, asked = 0, False
        pending = [place]
        while pending:
            place = pending.pop()
            count += 1
            if isinstance(place.schema, Mapping):
                pending += self._add(applied, place)
                asked = asked or "unevaluatedProperties" in place.schema
            if count > _MAX_APPLIED:
                raise _Unbounded
            self._spend(1)
        if asked:
            applied.inner = applied.inner.plus(_Cost(value=count * _ASKED))
        return applied

    def _spend(self, steps: int) -> None:
        self._remaining -= steps
        if self._remaining < 0:
            raise _Unbounded

    def _add(self, applied: _Applied, place: Place) -> list[Place]:
        """Add one schema to those that apply to a value. Returns the schemas in it that apply to the same value."""
        schema, below = place.schema, self._references.below
        same: list[Place] = []
        applied.cost = applied.cost.plus(self._own(schema))
        for keyword, value in schema.items():
            if isinstance(value, Mapping | list):
                self._spend(len(value))
            if keyword in REFERENCES:
                same += self._target(place, value)
            elif keyword in _SAME_VALUE and isinstance(value, Mapping):
                same.append(below(place, keyword))
            elif keyword in _SAME_VALUE and isinstance(value, list):
                same += (below(place, keyword, i) for i in range(len(value)))
            elif keyword in _DEPENDENT and isinstance(value, Mapping):
                same += (below(place, keyword, name) for name in value)
            elif keyword == "properties" and isinstance(value, Mapping):
                applied.inner = applied.inner.plus(_Cost(value=_NAME))
                for name in value:
                    applied.values.setdefault(name, []).append(below(place, keyword, name))
            elif keyword == "patternProperties" and isinstance(value, Mapping):
                applied.inner = functools.reduce(_Cost.plus, map(self._regex, value), applied.inner)
                applied.values.setdefault(None, []).extend(below(place, keyword, name) for name in value)
            elif keyword in ("prefixItems", "items") and isinstance(value, list):
                for i in range(len(value)):
                    applied.items.setdefault(i, []).append(below(place, keyword, i))
            elif keyword == "propertyNames":
                applied.keys.append(below(place, keyword))
            elif keyword in _EVERY_VALUE:
                applied.values.setdefault(None, []).append(below(place, keyword))
            elif keyword in _EVERY_ITEM:
                applied.items.setdefault(None, []).append(below(place, keyword))
        # The validator applies these once more to find out what they evaluate.
        return same * 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else same

    def _target(self, place: Place, reference: Any) -> list[Place]:
        if not isinstance(reference, str):
            return []
        key = place.base, reference
        if key not in self._targets:
            target = self._references.resolved(place, reference)
            self._targets[key] = [target] if target is not None else []
        return self._targets[key]

    def _own(self, schema: Mapping[str, Any]) -> _Cost:
        """The cost of the keywords that contain no schemas."""
        cost = _Cost(value=1 + _constants(schema), inherited=_UNIQUE if schema.get("uniqueItems") is True else 0.0)
        if "pattern" in schema:
            cost = cost.plus(self._regex(schema["pattern"]))
        if isinstance(name := schema.get("format"), str):
            cost = cost.plus(_Cost(text=_FORMATS.get(name, 0), character=_FORMAT_CHARACTER))
        return cost

    def _regex(self, regex: Any) -> _Cost:
        cost = _Cost(text=_REGEX, character=width(regex) * _REGEX_CHARACTER)
        return cost.plus(_Cost(text=_BACKTRACKING, character=_BACKTRACKING_CHARACTER)) if self._backtracking else cost


def _constants(schema: Mapping[str, Any]) -> float:
    """The visits for the constants, names and numbers in a schema."""
    visits = 0.0
    values = listed(schema, "enum")
    if {type(value) for value in values} not in ({str}, {int}):  # these are looked up in a table
        visits += len(values) * _CONSTANT
    nested = (value for value in (*values, schema.get("const")) if isinstance(value, dict | list))
    visits += sum(map(_nodes, nested)) * _NESTED_CONSTANT
    by_name = [value for key in (*_DEPENDENT, "dependentRequired") if isinstance(value := schema.get(key), Mapping)]
    lists = (listed(schema, "required"), *(each for value in by_name for each in value.values()))
    visits += sum(map(len, (*by_name, *(each for each in lists if isinstance(each, list))))) * _NAME
    divisor = schema.get("multipleOf")
    if isinstance(divisor, int):
        visits += _INTEGER
    elif isinstance(divisor, float):
        visits += _FRACTION if divisor > 1e-9 else _TINY_FRACTION
    numbers = (*(schema.get(name) for name in (*_BOUNDS, "const")), *values)
    return visits + sum(_long(number) for number in numbers if isinstance(number, int))


def _long(number: int) -> float:
    """The extra visits for an integer of more than 64 bits, which the validator reads again for each visit."""
    bits = number.bit_length()
    return bits / 3 if bits > 63 else 0.0


def _inner(value: Any) -> Iterator[Any]:
    """The values of an object, or the items of a list."""
    yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _nodes(value: Any) -> int:
    """The number of values in a value, with itself."""
    return 1 + sum(map(_nodes, _inner(value)))


def width(regex: Any) -> int:
    """The number of states that the automaton of a regex may be in at once, at most: its pieces, with repetitions
    written out. The first repetition of a regex that begins with `^` counts once, because the text before it decides
    its state."""
    pieces = _PIECE.findall(regex) if isinstance(regex, str) else []
    if pieces[:1] == ["^"] and not {"(", "|"}.intersection(pieces):
        first = next((i for i, piece in enumerate(pieces) if piece in "*+?" or piece[0] == "{"), len(pieces))
        pieces = [".", *pieces[first + 1 :]]
    return written_out(pieces, lambda piece: 1)
