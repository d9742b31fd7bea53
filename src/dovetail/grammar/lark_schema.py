"""JSON Schemas in the dialect of llguidance's Lark (`%json`), as llguidance 1.9 implements it.

The spelled schema has only keywords that the library implements. Keywords that it cannot enforce are dropped and
listed. `tests/grammar/test_lark_schema.py` checks the list: whatever is not in it is enforced.

Some keywords mean more to JSON Schema than to the library, so they get another wording:
- The library takes `"\\u0061"` for another key than "a". Other keys of an open object are therefore a pattern.
- The library's dates have no leap years, its times have leap seconds in every minute, and its hosts and addresses may
  have any length. A pattern beside each of these formats says the rest. A leap second cannot be written at all.
- The library reads the keywords before and after an `allOf` separately. Keywords that depend on each other are
  therefore written side by side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import llguidance

from dovetail.grammar.cache import Cache
from dovetail.grammar.patterns import other_texts
from dovetail.grammar.schemas.check import is_regex
from dovetail.grammar.schemas.keywords import ABOUT, TYPE_OF, asserts, listed, may_be
from dovetail.grammar.schemas.references import Place, encoded
from dovetail.grammar.schemas.walk import SchemaWalk, SpelledSchema

_CACHED, _CACHED_BYTES = 1024, 16 * 2**20
#: Doubles hold every integer up to here. Beyond, the library rounds, or recurses without end (-2**63).
_LARGEST, _SMALLEST = 2**53, 1e-20
_MAX_LENGTH = 2**32 - 1

_BY_NAME = ("properties", "patternProperties")
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
#: Assertions that the library does not have.
_ABSENT = frozenset(
    "not if uniqueItems contains propertyNames dependentRequired dependentSchemas dependencies unevaluatedProperties "
    "unevaluatedItems $dynamicRef $recursiveRef".split()
)
#: Keywords whose schemas the library merges with what is beside them.
_APPLICATORS = ("allOf", "anyOf", "$ref")
#: Keywords about the values in a value.
_CHILDREN = frozenset((*_BY_NAME, "additionalProperties", "items", "prefixItems"))
#: Keywords that depend on each other.
_GROUPS = (("properties", "patternProperties", "additionalProperties"), ("prefixItems", "items"))
#: Characters that a JSON string may spell in two ways which the library knows.
TWO_SPELLINGS = re.compile(r"[\x00-\x1f\x7f]")

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = rf"^(?:[0-9]{{4}}-(?:0[13-9]|1[0-2])|[0-9]{{4}}-02-(?:[01][0-9]|2[0-8])|{_LEAP}-02-29)"
#: By format, the keywords that say what the library does not know about it.
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "date": {"pattern": _DAY},
    "time": {"pattern": "^.{6}[0-5]"},
    "date-time": {"pattern": f"{_DAY}.*[Tt].{{6}}[0-5]"},
    "duration": {},
    "email": {"pattern": r"^[^@]{1,64}@[^.]{1,63}(?:\.[^.]{1,63})*$", "maxLength": 254},  # RFC 5321, 4.5.3.1
    "hostname": {"maxLength": 253},
    "ipv4": {},
    "ipv6": {},
    "uri": {},
    "uuid": {},
}

#: White space as pretty printers write it. Without a bound, a model may write white space until its context is full.
WHITE_SPACE = r"[ \t]{1,4}|\r?\n[ \t]{0,32}"
OPTIONS = {"whitespace_pattern": WHITE_SPACE}
_SPELLED: Cache[SpelledSchema] = Cache(_CACHED, _CACHED_BYTES)
_ACCEPTED: Cache[bool] = Cache(_CACHED, _CACHED_BYTES)


def spell(schema: Any) -> SpelledSchema:
    """The schema for llguidance. What is not a schema stays as it is, so that compiling refuses it.

    Raises `RecursionError` for a schema that is nested deeper than `bounds` allows.
    """
    key = encoded(schema)
    return _SPELLED.get(key, len(key), lambda: _spell(schema))


def _spell(schema: Any) -> SpelledSchema:
    walk = _LarkWalk(schema)
    whole = walk.whole()
    if whole is True:
        whole = {}
    if isinstance(whole, dict):
        whole["x-guidance"] = OPTIONS
    return SpelledSchema(whole, tuple(walk.unenforced))


class _LarkWalk(SchemaWalk):
    def whole(self) -> Any:
        self.walk()
        if not isinstance(self.root, dict):
            return self.root
        if self.definitions:
            self.root["$defs"] = self.definitions
            self._forbid_infinite()
        merged, keyed = self._merged()
        self._close(keyed)
        if merged and not self.has_dangling:
            self._drop_unmergeable(merged)
        return self.root

    # -- one schema ---------------------------------------------------------------------------------------------------

    def spell(self, place: Place) -> Any:
        if not isinstance(place.schema, Mapping):
            return place.schema
        keywords = self.keywords(place.schema)
        spelled: dict[str, Any] = {}
        for keyword, value in keywords.items():
            if keyword in _ABSENT:
                self._absent(place, keyword)
            elif keyword == "$ref":
                spelled[keyword] = self.reference(place)
            elif keyword in _CHILDREN or keyword in _APPLICATORS:
                spelled[keyword] = self.below(place, keyword)
            elif keyword == "oneOf":
                self._one_of(place, spelled)
            elif keyword in ("const", "enum"):
                self._keep(place, keyword, value, spelled, enforced=_are_exact(value))
            elif keyword in ABOUT["number"]:
                enforced = not isinstance(value, int | float) or _is_exact(value)
                self._keep(place, keyword, value, spelled, enforced=enforced)
            elif keyword in _LENGTHS:
                length = int(value) if isinstance(value, float) and value.is_integer() else value
                enforced = not isinstance(length, int) or length <= _MAX_LENGTH
                self._keep(place, keyword, length, spelled, enforced=enforced)
            elif keyword == "pattern":  # what is not a regex is refused when it is compiled
                enforced = not is_regex(value) or _is_accepted({"type": "string", "pattern": value})
                self._keep(place, keyword, value, spelled, enforced=enforced)
            elif keyword in ("type", "required"):
                spelled[keyword] = value
        self._format(place, spelled)
        self._text(place, spelled)
        self._keys(place, spelled)
        if "oneOf" in spelled:  # beside an `anyOf`
            spelled["allOf"] = [*listed(spelled, "allOf"), {"anyOf": spelled.pop("oneOf")}]
        _group(spelled)
        self.spelled.append((spelled, place))
        return spelled

    def _keep(self, place: Place, keyword: str, value: Any, spelled: dict[str, Any], *, enforced: bool) -> None:
        if enforced:
            spelled[keyword] = value
        else:
            self.drop(place, keyword)

    def _absent(self, place: Place, keyword: str) -> None:
        schema = place.schema
        if asserts(schema, keyword) and (keyword not in TYPE_OF or may_be(schema, TYPE_OF[keyword])):
            self.drop(place, keyword, *(("minContains", "maxContains") if keyword == "contains" else ()))

    def _one_of(self, place: Place, spelled: dict[str, Any]) -> None:
        """A `oneOf` becomes an `anyOf`, which means the same where no value fits two branches."""
        branches = self.below(place, "oneOf")
        if not self.is_any_of(place):
            self.drop(place, "oneOf")
        spelled["oneOf" if "anyOf" in place.schema else "anyOf"] = branches

    def _format(self, place: Place, spelled: dict[str, Any]) -> None:
        name = place.schema.get("format")
        if not isinstance(name, str) or not may_be(place.schema, "string"):
            return
        if name not in _FORMATS:
            self.drop(place, "format")
            return
        spelled["format"] = name
        if name == "hostname":  # the library does not check labels with two hyphens, such as `xn--`
            self.drop(place, "format")
        for keyword, value in _FORMATS[name].items():
            if keyword == "maxLength":
                spelled[keyword] = min(value, spelled.get(keyword, value))
            elif keyword in place.schema:
                self.drop(place, "format")
            else:
                spelled[keyword] = value

    def _text(self, place: Place, spelled: dict[str, Any]) -> None:
        """Some patterns, formats and lengths are accepted alone and refused together. Drop as few of them as needed."""
        for keyword in ("format", "pattern", "maxLength", "minLength"):
            text = {each: spelled[each] for each in ABOUT["string"] if each in spelled}
            if len(text) < 2 or not is_regex(text.get("pattern", "")) or _is_accepted({"type": "string", **text}):
                return
            if spelled.pop(keyword, None) is not None:
                self.drop(place, keyword)

    def _keys(self, place: Place, spelled: dict[str, Any]) -> None:
        """Check the keywords about the keys of an object: patterns, and counts."""
        patterns, declared = spelled.get("patternProperties"), spelled.get("properties", {})
        if (
            isinstance(patterns, dict)
            and all(map(is_regex, patterns))
            and not _is_accepted({"patternProperties": {name: {} for name in patterns}})
        ):
            # Without the patterns, `additionalProperties` would apply to the keys that match them.
            del spelled["patternProperties"]
            self.drop(place, "patternProperties")
            if spelled.pop("additionalProperties", True) is not True:
                self.drop(place, "additionalProperties")
        required = {name for name in listed(spelled, "required") if isinstance(name, str)}
        least = spelled.get("minProperties", 0)
        if isinstance(declared, dict) and not declared.keys() <= required:  # the library then cannot count the keys
            if isinstance(least, int) and least > len(required):
                self.drop(place, "minProperties")
            self.drop(place, "maxProperties")
            spelled.pop("minProperties", None)
            spelled.pop("maxProperties", None)
        elif isinstance(least, int) and least > len(required) + 1:
            self.drop(place, "minProperties")  # the same key may come twice

    # -- the whole schema ---------------------------------------------------------------------------------------------

    def _forbid_infinite(self) -> None:
        """Forbid schemas without a finite value: the library would let a model begin such a value."""
        finite = self.finite()
        for spelled, _ in self.spelled:
            for keyword in (*_CHILDREN, "anyOf"):
                value = spelled.get(keyword)
                if keyword in _BY_NAME and isinstance(value, dict):
                    spelled[keyword] = {name: each if each in finite else False for name, each in value.items()}
                elif isinstance(value, list):
                    spelled[keyword] = [each if each in finite else False for each in value]
                elif isinstance(value, dict) and value not in finite:
                    spelled[keyword] = False

    def _close(self, keyed: set[int]) -> None:
        """Say which other keys an open object may have: every key that is not declared, in one spelling.

        Where the library merges objects, it ignores the patterns of one when it applies the `additionalProperties` of
        another. `keyed` are the ids of these objects.
        """
        merged = [spelled for spelled, _ in self.spelled if id(spelled) in keyed]
        patterns_merge = any("patternProperties" in spelled for spelled in merged)
        others_merge = any(spelled.get("additionalProperties", True) not in (True, {}) for spelled in merged)
        for spelled, place in self.spelled:
            declared, others = spelled.get("properties"), spelled.get("additionalProperties", True)
            if (patterns_merge or others_merge) and id(spelled) in keyed:
                self.drop(place, *(("properties",) if others is not False else ()), "patternProperties")
                if patterns_merge:
                    self.drop(place, "additionalProperties")
            elif others is False:
                pass
            elif "patternProperties" in spelled:
                self.drop(place, *(("properties",) if declared else ()), "patternProperties")
            elif isinstance(declared, dict) and declared:
                # A pattern of all keys suffices for `true`, because the library then leaves out the declared ones.
                keys = "" if others in (True, {}) else other_texts(declared)
                if keys is not None:
                    spelled["patternProperties"], spelled["additionalProperties"] = {keys: others}, False
                    _group(spelled)
                if keys is None or any(map(TWO_SPELLINGS.search, declared)):
                    self.drop(place, "properties")

    def _drop_unmergeable(self, merged: set[int]) -> None:
        """If the library cannot merge some schemas (overlapping patterns, references that lead back to themselves),
        drop what makes it merge: first `allOf`, `anyOf` and `$ref` of every merged schema, and then all its
        keywords."""
        for keywords in (_APPLICATORS, None):
            if _accepts(self.root):
                return
            for spelled, place in self.spelled:
                if id(spelled) in merged:
                    for keyword in keywords or [*spelled]:
                        if keyword != "$defs" and spelled.pop(keyword, None) is not None:
                            self.drop(place, keyword, *(("oneOf",) if keyword in ("anyOf", "allOf") else ()))

    def _merged(self) -> tuple[set[int], set[int]]:
        """The ids of the spelled schemas that the library merges with others, and of those whose keys or items may be
        merged. Schemas are merged if they apply to the same value."""
        merged: set[int] = set()
        keyed: set[int] = set()
        seen: set[tuple[int, bool, bool]] = set()
        pending: list[tuple[Any, bool, bool]] = [(self.root, False, False)]
        while pending:
            spelled, here, keys = pending.pop()
            if not isinstance(spelled, dict) or (id(spelled), here, keys) in seen:
                continue
            seen.add((id(spelled), here, keys))
            groups = self._applied(spelled)
            here = here or len(groups) + any(keyword not in (*_APPLICATORS, "$defs") for keyword in spelled) > 1
            if here:
                merged.add(id(spelled))
            applied = sum(any(map(self._has_children, group)) for group in groups)
            keys = keys or applied + (not _CHILDREN.isdisjoint(spelled)) > 1
            if keys:
                keyed.add(id(spelled))
            pending += ((each, here, keys) for group in groups for each in group)
            overlap = "patternProperties" in spelled and not {"properties", "required"}.isdisjoint(spelled)
            pending += ((each, overlap, keys or overlap) for each in _children(spelled))
        return merged, keyed

    def _applied(self, spelled: Mapping[str, Any]) -> list[list[Any]]:
        """The schemas that apply to the same value as `spelled`: lists of alternatives."""
        groups = [[each] for each in listed(spelled, "allOf")]
        if "anyOf" in spelled:
            groups.append(listed(spelled, "anyOf"))
        if "$ref" in spelled:
            groups.append([self.target(spelled)])
        return groups

    def _has_children(self, spelled: Any) -> bool:
        """Whether a schema, or one that applies to the same value, says something about the values in the value."""
        pending, seen = [spelled], set()
        while pending:
            spelled = pending.pop()
            if not isinstance(spelled, dict) or id(spelled) in seen:
                continue
            if not _CHILDREN.isdisjoint(spelled):
                return True
            seen.add(id(spelled))
            pending += (each for group in self._applied(spelled) for each in group)
        return False


def _group(spelled: dict[str, Any]) -> None:
    """Move keywords that depend on each other together, to the place of the first of them."""
    in_order: dict[str, Any] = {}
    for keyword in list(spelled):
        for group in _GROUPS:
            if keyword in group:
                in_order.update((each, spelled[each]) for each in group if each in spelled)
        in_order.setdefault(keyword, spelled[keyword])
    spelled.clear()
    spelled.update(in_order)


def _children(spelled: Mapping[str, Any]) -> Iterator[Any]:
    for keyword in _CHILDREN.intersection(spelled):
        value = spelled[keyword]
        by_name = keyword in _BY_NAME and isinstance(value, dict)
        yield from value.values() if by_name else value if isinstance(value, list) else (value,)


def _is_accepted(schema: Mapping[str, Any]) -> bool:
    """As `_accepts`, with a cache."""
    key = encoded(schema)
    return _ACCEPTED.get(key, len(key), lambda: _accepts(schema))


def _accepts(schema: Any) -> bool:
    """Whether the library compiles a schema, or only objects that the schema contradicts itself."""
    error = complaint(schema)
    return not error or "Unsatisfiable" in error


def complaint(schema: Any) -> str:
    """Why the library refuses a spelled schema; empty if it does not."""
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: %json {json.dumps(schema)}")
    return llguidance.LLMatcher.validate_grammar(grammar)


def first_line(error: str) -> str:
    """The library's complaint, without the place in the grammar."""
    line, _, rest = error.partition("\n")
    line = line.split("JSON schema: ")[-1]
    if line.endswith("regex parse error:"):
        detail = [each.removeprefix("error: ") for each in rest.split("\n") if each.startswith("error: ")]
        line = " ".join((line, *detail[:1]))
    return line


def _is_exact(number: int | float) -> bool:
    """Whether the library represents a number exactly."""
    try:
        return number == 0 or _SMALLEST <= abs(number) <= _LARGEST
    except OverflowError:
        return False


def _are_exact(value: Any) -> bool:
    """Whether the library represents every number in a value exactly."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, int | float) and not isinstance(value, bool) and not _is_exact(value):
            return False
        pending += value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return True
