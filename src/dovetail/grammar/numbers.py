"""JSON numbers as regexes with a bound on their digits, as white space has one: else a model may write digits until its
context is full.

39 digits are the longest 128-bit integer. Of a float64, `json.dumps` and `JSON.stringify` write at most 22 digits
before and after the point, and three of an exponent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_DIGITS, MOST_EXPONENT_DIGITS = 39, 3
INTEGER = f"-?(?:0|[1-9][0-9]{{0,{MOST_DIGITS - 1}}})"
NUMBER = rf"{INTEGER}(?:\.[0-9]{{1,{MOST_DIGITS}}})?(?:[eE][+\-]?[0-9]{{1,{MOST_EXPONENT_DIGITS}}})?"
_BY_TYPE = {"integer": INTEGER, "number": NUMBER, "boolean": "true|false", "null": "null"}


def between(least: int, most: int) -> str:
    """The integers from `least` to `most`, which are at least 0, without a bound that a grammar has to count."""
    low, high = str(least), str(most)
    ranges = []
    while len(low) < len(high):
        ranges.append(_of_length(low, "9" * len(low)))
        low = "1" + "0" * len(low)
    return "|".join((*ranges, _of_length(low, high)))


def _of_length(low: str, high: str) -> str:
    """The numbers of as many digits as `low` and `high` have, from the one to the other."""
    if not low:
        return ""
    if low[0] == high[0]:
        return low[0] + _of_length(low[1:], high[1:])
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    options = []
    if low[1:].strip("0"):
        options.append(low[0] + _of_length(low[1:], "9" * rest))
        first += 1
    if high[1:].strip("9"):
        options.append(high[0] + _of_length("0" * rest, high[1:]))
        last -= 1
    if first <= last:
        options.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"(?:{'|'.join(options)})"


def of_schema(schema: Any) -> str | None:
    """The values of a spelled schema that only names types, numbers among them; None for any other schema.

    The grammar libraries write the numbers of other schemas, and have no bound for them.
    """
    types = _types(schema)
    if types is None or {"integer", "number"}.isdisjoint(types):
        return None
    return "|".join(_BY_TYPE[each] for each in dict.fromkeys(types) if each != "integer" or "number" not in types)


def _types(schema: Any) -> list[str] | None:
    """The types of a schema that says nothing else, or whose `anyOf` has only such schemas."""
    if not isinstance(schema, Mapping):
        return None
    match {key: value for key, value in schema.items() if key != "x-guidance"}:
        case {"type": str() as one, **rest} if not rest and one in _BY_TYPE:
            return [one]
        case {"type": list() as several, **rest} if not rest and all(each in _BY_TYPE for each in several):
            return several
        case {"anyOf": list() as branches, **rest} if not rest:
            types = [_types(branch) for branch in branches]
            return None if None in types else [each for some in types if some for each in some]
    return None
