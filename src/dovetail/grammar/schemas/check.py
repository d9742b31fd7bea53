"""The check after: whether a call's arguments validate against its tool's schema, whatever let the model write them.

JSON Schema 2020-12, or the draft that `$schema` names, formats included; in a schema that names none, words of older
drafts are read as these mean them. References to other documents are never fetched.

Schemas come from clients and arguments from models, so the time is bounded: regexes are linear, or give up; and where a
schema may look at one value many times over (references in the branches of a choice), the looks are counted first.
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
from dovetail.grammar.kept import Kept
from dovetail.grammar.nodes import JsonSchema
from dovetail.grammar.schemas import bounds, drafts
from dovetail.grammar.schemas.keywords import BY_NAME, VALUES
from dovetail.grammar.schemas.looks import Looks
from dovetail.grammar.schemas.references import Place, References, pointer, spelled

Kind = Literal["invalid_json", "schema_mismatch", "unchecked_arguments"]
#: What each kind of fault says: the words are stable, as those of `reading.defects` are.
KINDS: Mapping[Kind, str] = {
    "invalid_json": "arguments, or content with a response_format, that are no JSON",
    "schema_mismatch": "arguments that the tool's schema does not allow, or content that the response_format does not",
    "unchecked_arguments": "what cannot be checked in bounded time: nested too deeply, numbers too long, or a schema "
    "that would have to look at it too many times over",
}

_CACHED, _CACHED_CHARACTERS = 512, 8 * 2**20
_LONGEST_DETAIL = 300
_DEEPEST = 200  # levels of arguments
_DIGITS = 400  # of a number
#: Of a regex that is linear, and of one that is larger, or looks around or back, which may turn back so often; bytes.
_REGEX_SIZE, _LARGEST_SIZE, _TURNS = 2**22, 2**26, 3_000
_CACHE_SIZE = 2**21
#: Microseconds: of the library, which lets no other thread run meanwhile, for one check; up to which it says where the
#: fault is; and up to which nothing is counted, so that an event loop can wait for it.
_MOST, _EXPLAINED, _QUICK = 5_000, 100, 1_000
_LONGEST_EXPLAINED = 20_000  # characters; where a fault is takes longer to find than that there is one

_IDENTIFIER = re.compile(r"[^\s#<>\"{}|\\^`]+#?")


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with arguments. `detail` names places by JSON pointer and holds no values."""

    kind: Kind
    detail: str


class Checker:
    """One schema, ready to check. Raises `SchemaRefused`, naming `origin` and a JSON pointer, for what is none."""

    def __init__(self, schema: Any, origin: str) -> None:
        self._schema = schema
        self._validator, self._turning = _validator(schema, origin)
        self._looks = Looks(drafts.newest(schema), turning=self._turning)

    def is_quick(self, arguments: str) -> bool:
        """Whether to wait for `fault` takes less than about a millisecond. Else it is for a thread."""
        return self._looks.weight * len(arguments) <= _QUICK

    def fault(self, arguments: str) -> Fault | None:
        """What is wrong with `arguments`, as JSON text; None: nothing."""
        try:
            value = json.loads(arguments, parse_int=_integer, parse_float=_float, parse_constant=_no_constant)
            if _UNPAIRED.search(arguments):
                json.dumps(value, ensure_ascii=False).encode()
        except (RecursionError, _TooLong) as error:
            return Fault("unchecked_arguments", str(error) if isinstance(error, _TooLong) else "nested too deeply")
        except ValueError as error:
            told = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            return Fault("invalid_json", told)
        if arguments.count("[") + arguments.count("{") > _DEEPEST and _deeper(value, _DEEPEST):
            return Fault("unchecked_arguments", f"nested deeper than {_DEEPEST} levels")
        cost = 0.0
        if not self.is_quick(arguments):
            cost = self._looks.at(value, _MOST)
            if cost > _MOST:
                return Fault("unchecked_arguments", "the schema would have to look at them too many times over")
        if self._validator.is_valid(value):
            return None
        # A regex that gave up has not said no.
        if not self._turning and (cost > _EXPLAINED or len(arguments) > _LONGEST_EXPLAINED):
            return Fault("schema_mismatch", "")
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded):
                return Fault("unchecked_arguments", "a regex would take too long")
            return Fault("schema_mismatch", _told(error, self._schema))
        return None


def is_regex(text: Any) -> bool:
    """Whether it is one that a schema may have: ECMA-262's, as the library reads it."""
    try:
        return isinstance(text, str) and _REGEX.is_valid(text)
    except UnicodeEncodeError:  # half a character
        return False


def is_identifier(name: str) -> bool:
    """Whether it is an `$id` that the library takes."""
    if not _IDENTIFIER.fullmatch(name):
        return False
    try:
        jsonschema_rs.Draft202012Validator({"$id": name}, offline=True)
    except (ValueError, jsonschema_rs.ValidationError):
        return False
    return True


_REGEX = jsonschema_rs.Draft202012Validator({"format": "regex"}, validate_formats=True, offline=True)

_CHECKERS: Kept[Checker] = Kept(_CACHED, _CACHED_CHARACTERS)


def checker(schema: Any, origin: str) -> Checker:
    """The checker of a schema, made once. Raises `SchemaRefused` for what is none, or out of `bounds`."""

    def make() -> Checker:
        bounds.check([JsonSchema(schema, origin)])
        return Checker(schema, origin)

    key = spelled(schema)
    return _CHECKERS.get((key, origin), len(key), make)


def _validator(schema: Any, origin: str) -> tuple[Any, bool]:
    """The library's validator, and whether it has regexes that are not linear."""
    if isinstance(schema, Mapping) and isinstance(name := schema.get("$id"), str) and not is_identifier(name):
        schema = {keyword: value for keyword, value in schema.items() if keyword != "$id"}
    names_draft = isinstance(schema, Mapping) and "$schema" in schema
    make: Any = jsonschema_rs.validator_for if names_draft else jsonschema_rs.Draft202012Validator
    linear = jsonschema_rs.RegexOptions(_REGEX_SIZE, _CACHE_SIZE)
    turning = jsonschema_rs.FancyRegexOptions(_TURNS, _LARGEST_SIZE, _CACHE_SIZE)
    first: jsonschema_rs.ValidationError | None = None
    said = _without_dialects(drafts.newest(schema))
    for may_turn, regexes in ((False, linear), (True, turning)):
        try:
            return make(said, validate_formats=True, offline=True, pattern_options=regexes), may_turn
        except jsonschema_rs.ValidationError as error:
            first = first or error
        except (ValueError, TypeError, RecursionError) as error:
            raise SchemaRefused(f"{origin} cannot be enforced: {error}"[:500], param=origin) from error
    assert first is not None
    raise SchemaRefused(f"{origin} cannot be enforced: {_refused(schema, first)}", param=origin) from first


def _without_dialects(schema: Any) -> Any:
    """Without patterns in Python's or Rust's own words, such as `(?i)`, which JSON Schema does not have: a grammar may
    know them, and only it can tell."""
    if isinstance(schema, list):
        return [_without_dialects(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, Mapping):
            kept[key] = {name: _without_dialects(inner) for name, inner in value.items()}
        else:
            kept[key] = value if key in VALUES else _without_dialects(value)
    if isinstance(kept.get("pattern"), str) and not is_regex(kept["pattern"]):
        with contextlib.suppress(re.error):
            re.compile(kept["pattern"])
            del kept["pattern"]
    return kept


def _refused(schema: Any, error: jsonschema_rs.ValidationError) -> str:
    path = drafts.as_sent(schema, tuple(map(str, error.instance_path)))
    if not path:
        unknown = isinstance(schema, Mapping) and "meta-schema" in error.message
        path = ("$schema",) if unknown else next((place.path for place in _dangling(References(schema))), ())
    message = error.message if len(error.message) <= 200 else f"{error.message[:200]}..."
    return f"{_short(pointer(path))}: {message}"


def _dangling(references: References) -> Iterator[Place]:
    """Every `$ref` that refers to nothing in the schema."""
    pending = [references.root]
    while pending:
        place = pending.pop()
        if isinstance(place.schema, Mapping):
            if "$ref" in place.schema and references.resolved(place, place.schema["$ref"]) is None:
                yield references.below(place, "$ref")
            pending += (references.below(place, key) for key in place.schema if key not in VALUES)
        elif isinstance(place.schema, list):
            pending += (references.below(place, i) for i in range(len(place.schema)))


def _told(error: jsonschema_rs.ValidationError, schema: Any) -> str:
    """Where a value is wrong, and which keyword of `schema` says so."""
    where = "".join(f"/{_step(step)}" for step in error.instance_path) or "the arguments"
    path = drafts.as_sent(schema, tuple(map(str, error.schema_path)))
    return f"{_short(where)} against {_short(pointer(path))}"


def _step(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _short(text: str) -> str:
    half = _LONGEST_DETAIL // 4
    return text if len(text) <= 2 * half + 3 else f"{text[:half]}...{text[-half:]}"


#: Half a surrogate pair may be in what matches.
_UNPAIRED = re.compile(r"(?i)\\ud[89a-f]")


class _TooLong(Exception):
    pass


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise _TooLong(f"a number of more than {_DIGITS} digits")
    return int(digits)


def _float(digits: str) -> float:
    """What is beyond a double is the largest that there is, and not infinite, which is no number to the library."""
    number = float(digits)
    return number if math.isfinite(number) else math.copysign(sys.float_info.max, number)


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for held in level
            if isinstance(held, dict | list)
            for inner in (held.values() if isinstance(held, dict) else held)
        ]
        if not level:
            return False
    return True
