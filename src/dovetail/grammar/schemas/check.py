"""The check after a call: whether its arguments are valid for the schema of its tool, whatever the grammar allowed.

Schemas are JSON Schema 2020-12, or the draft that `$schema` names, with formats. A schema that names no draft may use
the words of older drafts. References to other documents are never fetched.

Clients write the schemas and models write the arguments, so the time of a check is bounded. Regexes are linear or give
up, and `ValidationCost` bounds the cost of a check before it starts.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jsonschema_rs
import msgspec

from dovetail.errors import SchemaRefused
from dovetail.grammar.cache import Cache
from dovetail.grammar.nodes import JsonSchema
from dovetail.grammar.schemas import bounds, drafts, regexes
from dovetail.grammar.schemas.keywords import BY_NAME, VALUES, listed
from dovetail.grammar.schemas.references import Path, Place, References, encoded, placed, pointer
from dovetail.grammar.schemas.validation_cost import PER_MICROSECOND, ValidationCost

Kind = Literal["invalid_json", "schema_mismatch", "unchecked_arguments"]
#: The meaning of each kind of fault. The names are stable, as in `reading.defects`.
KINDS: Mapping[Kind, str] = {
    "invalid_json": "arguments, or content with a response_format, that are no JSON",
    "schema_mismatch": "arguments that the tool's schema does not allow, or content that the response_format does not",
    "unchecked_arguments": "what cannot be checked in bounded time: nested too deeply, numbers too long, or a schema "
    "that would have to look at it too many times over",
}

_CACHED, _CACHED_BYTES = 512, 64 * 2**20
_MAX_DETAIL = 300  # characters
_MAX_LEVELS = 200  # of the arguments
_MAX_DIGITS = 400  # of a number
#: Bytes of a compiled regex: of a linear one, and of one that may backtrack, because it is larger or looks around or
#: back. The third number is how often it may backtrack.
_REGEX_SIZE, _BACKTRACKING_REGEX_SIZE, _MAX_BACKTRACKS = 2**22, 2**26, 3_000
_REGEX_CACHE_SIZE = 2**21
#: Microseconds of validation, which lets no other thread run: the most for one check; the most for a check that also
#: finds the place of the fault; the most for a check in an event loop.
_MAX_TIME, _MAX_EXPLAINED_TIME, _MAX_QUICK_TIME = 5_000, 100, 1_000
_MAX_EXPLAINED = 20_000  # characters; to find the place of a fault takes longer than to find that there is one

_IDENTIFIER = re.compile(r"[^\s#<>\"{}|\\^`]+#?")


class Fault(msgspec.Struct, frozen=True):
    """A fault of arguments. `detail` names places by JSON pointer, and contains no values of the arguments."""

    kind: Kind
    detail: str


class Checker:
    """Checks arguments against one schema, which is at the JSON pointer `at` of the field `origin`.

    Raises `SchemaRefused`, with `origin` and a JSON pointer, for an invalid schema, and for one whose regexes have more
    than `max_regex_size` transitions. `regex_size` is how many they have.
    """

    def __init__(self, schema: Any, origin: str, at: str = "#", max_regex_size: int = regexes.MAX_SIZE) -> None:
        self._schema = schema
        translated = _translated(drafts.newest(schema))
        self.regex_size = regexes.total_size(translated)
        if self.regex_size > max_regex_size:
            raise _too_large(origin)
        self._validator, self._backtracks = _validator(schema, translated, origin, at)
        self._cost = ValidationCost(drafts.newest(schema), backtracking=self._backtracks)

    def is_quick(self, arguments: str) -> bool:
        """Whether `fault` takes less than about a millisecond. If it does not, call it in a thread."""
        return self._cost.per_character * len(arguments) <= _MAX_QUICK_TIME * PER_MICROSECOND

    def fault(self, arguments: str) -> Fault | None:
        """The fault of `arguments`, a JSON text; None if they are valid."""
        try:
            value = json.loads(arguments, parse_int=_integer, parse_float=_float, parse_constant=_no_constant)
            if _UNPAIRED.search(arguments):
                json.dumps(value, ensure_ascii=False).encode()
        except (RecursionError, _TooLong) as error:
            return Fault("unchecked_arguments", str(error) if isinstance(error, _TooLong) else "nested too deeply")
        except ValueError as error:
            place = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            return Fault("invalid_json", place)
        if arguments.count("[") + arguments.count("{") > _MAX_LEVELS and _is_deeper(value, _MAX_LEVELS):
            return Fault("unchecked_arguments", f"nested deeper than {_MAX_LEVELS} levels")
        cost = 0.0
        if not self.is_quick(arguments):
            cost = self._cost.of(value, _MAX_TIME * PER_MICROSECOND) / PER_MICROSECOND
            if cost > _MAX_TIME:
                return Fault("unchecked_arguments", "the schema would visit their values too many times")
        if self._validator.is_valid(value):
            return None
        # If a regex gave up, the arguments may be valid.
        if not self._backtracks and (cost > _MAX_EXPLAINED_TIME or len(arguments) > _MAX_EXPLAINED):
            return Fault("schema_mismatch", "")
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded):
                return Fault("unchecked_arguments", "a regex would take too long")
            return Fault("schema_mismatch", _mismatch(error, self._schema))
        return None


def is_regex(text: Any) -> bool:
    """Whether `text` is a regex that a schema may have: one of ECMA-262, as the validator reads it."""
    try:
        return isinstance(text, str) and _REGEX.is_valid(text)
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def is_identifier(name: str) -> bool:
    """Whether the validator accepts `name` as an `$id`."""
    if not _IDENTIFIER.fullmatch(name):
        return False
    try:
        jsonschema_rs.Draft202012Validator({"$id": name}, offline=True)
    except (ValueError, jsonschema_rs.ValidationError):
        return False
    return True


_REGEX = jsonschema_rs.Draft202012Validator({"format": "regex"}, validate_formats=True, offline=True)

_CHECKERS: Cache[Checker] = Cache(_CACHED, _CACHED_BYTES)


class RegexBudget:
    """How large the regexes of one request may still be, in transitions."""

    def __init__(self) -> None:
        self.remaining = regexes.MAX_SIZE


def checker(schema: Any, origin: str, budget: RegexBudget | None = None) -> Checker:
    """The checker of a schema, from a cache.

    Raises `SchemaRefused` for a schema that is invalid, out of `bounds`, or whose regexes exceed the `budget`. A cached
    one spends as much of it, so that a request is treated alike whatever came before.
    """
    budget = budget or RegexBudget()

    def make() -> Checker:
        bounds.check([JsonSchema(schema, origin)])
        return Checker(schema, origin, max_regex_size=budget.remaining)

    key = encoded(schema)
    size = len(key) + regexes.BYTES * regexes.total_size(schema)
    made = _CHECKERS.get((key, origin), size, make)
    if made.regex_size > budget.remaining:
        raise _too_large(origin)
    budget.remaining -= made.regex_size
    return made


def _too_large(origin: str) -> SchemaRefused:
    why = "its patterns and the patterns of the schemas before it are too large together"
    return SchemaRefused(f"{origin} cannot be enforced: {why}", param=origin)


def _validator(schema: Any, translated: Any, origin: str, at: str) -> tuple[Any, bool]:
    """The library's validator, and whether its regexes may backtrack."""
    if isinstance(schema, Mapping) and isinstance(name := schema.get("$id"), str) and not is_identifier(name):
        translated = {keyword: value for keyword, value in translated.items() if keyword != "$id"}
    names_draft = isinstance(schema, Mapping) and "$schema" in schema
    make: Any = jsonschema_rs.validator_for if names_draft else jsonschema_rs.Draft202012Validator
    linear = jsonschema_rs.RegexOptions(_REGEX_SIZE, _REGEX_CACHE_SIZE)
    backtracking = jsonschema_rs.FancyRegexOptions(_MAX_BACKTRACKS, _BACKTRACKING_REGEX_SIZE, _REGEX_CACHE_SIZE)
    first: jsonschema_rs.ValidationError | None = None
    for may_backtrack, options in ((False, linear), (True, backtracking)):
        try:
            return make(translated, validate_formats=True, offline=True, pattern_options=options), may_backtrack
        except jsonschema_rs.ValidationError as error:
            first = first or error
        except (ValueError, TypeError, RecursionError) as error:
            raise SchemaRefused(f"{origin} cannot be enforced: {at}: {error}"[:500], param=origin) from error
    assert first is not None
    raise SchemaRefused(f"{origin} cannot be enforced: {_refused(schema, first, at)}", param=origin) from first


def _translated(schema: Any) -> Any:
    """The schema with patterns that the validator can check, and cheaply.

    Patterns that JSON Schema does not have but Python's `re` does, such as `(?i)`, are left out; the grammar may
    enforce them. A class that is repeated becomes a length (`regexes.counted`).
    """
    if isinstance(schema, list):
        return [_translated(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, Mapping):
            copy[key] = {name: _translated(inner) for name, inner in value.items()}
        else:
            copy[key] = value if key in VALUES else _translated(value)
    if isinstance(copy.get("pattern"), str):
        _translate_pattern(copy)
    return copy


def _translate_pattern(keywords: dict[str, Any]) -> None:
    pattern = keywords["pattern"]
    if not is_regex(pattern):
        with contextlib.suppress(re.error):
            re.compile(pattern)
            del keywords["pattern"]
    elif (counted := regexes.counted(pattern)) is not None:
        repeated, least, most = counted
        lengths = {"minLength": least} if most is None else {"minLength": least, "maxLength": most}
        # At the end, because references may name the others by their places.
        keywords["allOf"] = [*listed(keywords, "allOf"), {"pattern": repeated, **lengths}]
        del keywords["pattern"]


def _refused(schema: Any, error: jsonschema_rs.ValidationError, at: str) -> str:
    path = drafts.as_sent(schema, tuple(map(str, error.instance_path)))
    if not path:
        unknown = isinstance(schema, Mapping) and "meta-schema" in error.message
        path = ("$schema",) if unknown else next((place.path for place in _dangling(References(schema))), ())
    message = error.message if len(error.message) <= 200 else f"{error.message[:200]}..."
    return f"{_short(placed(pointer(path), at))}: {message}"


def _dangling(references: References) -> Iterator[Place]:
    """Every `$ref` that leads to nothing in the schema."""
    pending = [references.root]
    while pending:
        place = pending.pop()
        if isinstance(place.schema, Mapping):
            if "$ref" in place.schema and references.resolved(place, place.schema["$ref"]) is None:
                yield references.below(place, "$ref")
            pending += (references.below(place, key) for key in place.schema if key not in VALUES)
        elif isinstance(place.schema, list):
            pending += (references.below(place, i) for i in range(len(place.schema)))


def _mismatch(error: jsonschema_rs.ValidationError, schema: Any) -> str:
    """The place of the invalid value, and of the keyword of `schema` that it does not satisfy."""
    where = pointer(tuple(map(str, error.instance_path)))[1:] or "the arguments"
    path = drafts.as_sent(schema, _untranslated(schema, tuple(map(str, error.schema_path))))
    return f"{_short(where)} against {_short(pointer(path))}"


def _untranslated(schema: Any, path: Path) -> Path:
    """The path of the pattern that `_translate_pattern` made the part at `path` of, or else `path`."""
    part = drafts.newest(schema)
    for i, step in enumerate(path):
        if isinstance(part, list):
            part = part[int(step)] if int(step) < len(part) else None
        elif isinstance(part, Mapping):
            if step == "allOf" and "pattern" in part and int(path[i + 1]) == len(listed(part, "allOf")):
                return (*path[:i], "pattern")
            part = part.get(step)
    return path


def _short(text: str) -> str:
    half = _MAX_DETAIL // 4
    return text if len(text) <= 2 * half + 3 else f"{text[:half]}...{text[-half:]}"


#: What matches may contain half a surrogate pair.
_UNPAIRED = re.compile(r"(?i)\\ud[89a-f]")


class _TooLong(Exception):
    pass


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _TooLong(f"a number of more than {_MAX_DIGITS} digits")
    return int(digits)


def _float(digits: str) -> float:
    """A number beyond a double becomes the largest double, because the validator does not accept infinity."""
    number = float(digits)
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
