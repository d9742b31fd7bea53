"""A JSON Schema as llguidance (1.9 as found) takes it: what it cannot enforce is left out, and listed.

What is left out only widens the language. What is written has the keywords that the library implements and no others:
definitions are those that are referred to, under names of their own, and drafts before 2020-12 are said in its words.
`tests/grammar/test_lark_schema.py` holds the list to it: what it does not name is enforced.

Where the library's own reading is wider than JSON Schema's it is given another wording:
- What other keys an object may have is written as a pattern, since it takes `"\\u0061"` for another key than "a"
  otherwise.
- Formats of dates know no leap years and leap seconds at any minute, hosts and addresses may be of any length: a
  pattern beside each says the rest. A leap second cannot be written at all.
- What belongs together stands together: keywords before and after an `allOf` are read apart.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import llguidance
import msgspec

from dovetail.grammar.kept import Kept
from dovetail.grammar.other_keys import other_keys
from dovetail.grammar.schemas.bounds import MAX_GROWN
from dovetail.grammar.schemas.check import is_regex
from dovetail.grammar.schemas.endings import Endings
from dovetail.grammar.schemas.growth import Grown
from dovetail.grammar.schemas.keywords import ABOUT, TYPE_OF, asserts, is_old
from dovetail.grammar.schemas.references import Place, References, pointer, spelled
from dovetail.grammar.schemas.separate import separate

_CACHED, _CACHED_CHARACTERS = 1024, 16 * 2**20
#: Doubles hold every integer up to here; beyond, the library rounds, or dies of endless recursion (-2**63).
_LARGEST, _SMALLEST = 2**53, 1e-20
_LONGEST = 2**32 - 1
#: Compiles that may be spent on finding which things to leave out: of one schema, and of all in a grammar, in letters
#: that are compiled (about a microsecond each; a copy that the library makes of a schema counts as some). They are
#: counted, not timed: what is left out has to be the same whenever it is asked for, or else the list would not be true.
_MOST_TRIALS, _LETTERS, _LETTERS_OF_COPY = 64, 500_000, 16

_SCHEMA = ("additionalProperties", "additionalItems", "items")
_LISTS = ("allOf", "anyOf", "prefixItems")
_BY_NAME = ("properties", "patternProperties")
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
#: Assertions that the library does not have.
_ABSENT = frozenset(
    "not if uniqueItems contains propertyNames dependentRequired dependentSchemas dependencies unevaluatedProperties "
    "unevaluatedItems $dynamicRef $recursiveRef".split()
)
#: What stands beside one of these is merged with it.
_APPLICATORS = ("allOf", "anyOf", "$ref")
#: These say something of what is in a value.
_HOLDS = frozenset((*_BY_NAME, "additionalProperties", "items", "prefixItems"))
_GROUPS = (("properties", "patternProperties", "additionalProperties"), ("prefixItems", "items"))
#: Characters that a JSON string may spell in two ways which the library knows.
_SPELLED_TWICE = re.compile(r"[\x00-\x1f\x7f]")

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = rf"^(?:[0-9]{{4}}-(?:0[13-9]|1[0-2])|[0-9]{{4}}-02-(?:[01][0-9]|2[0-8])|{_LEAP}-02-29)"
#: Format -> what else a string of it has to match.
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


class Written(msgspec.Struct, frozen=True):
    """A schema as JSON text for llguidance, and JSON pointers (`#/properties/a/not`) to what it leaves out of it, or
    keeps in part only."""

    text: str
    unenforced: tuple[str, ...]


#: White space as pretty printers write it, and no more: a model may be fond of it, and would never come to an end.
_OPTIONS = {"whitespace_pattern": r"[ \t]{1,4}|\r?\n[ \t]{0,32}"}
#: By the schema: without all that might be in the way, and how many letters a trial compiles; 0: nothing is in the way.
_KEPT: Kept[tuple[Written, int]] = Kept(_CACHED, _CACHED_CHARACTERS)
#: By the schema and its trials.
_LOOSENED: Kept[Written] = Kept(_CACHED, _CACHED_CHARACTERS)


def written(schema: Any, trials: int = _MOST_TRIALS) -> Written:
    """What is no schema at all stays as it is, for others to refuse. Raises `RecursionError` for one nested deeper than
    `bounds` allows."""
    asked = spelled(schema)
    least, letters = _KEPT.get(asked, len(asked), lambda: once(schema))
    if not letters or not trials:
        return least
    return _LOOSENED.get((asked, trials), len(asked), lambda: once(schema, trials)[0])


def trials(schemas: Iterable[Any]) -> int:
    """How many trials each of a grammar's schemas may take, so that all of them end in half a second."""
    letters = 0
    for schema in schemas:
        asked = spelled(schema)
        letters += _KEPT.get(asked, len(asked), functools.partial(once, schema))[1]
    return min(_MOST_TRIALS, _LETTERS // letters) if letters else _MOST_TRIALS


def once(schema: Any, trials: int = 0) -> tuple[Written, int]:
    """As `written`, and how many letters a trial compiles (0: none is needed), for a schema that is not asked for
    again: nothing is kept."""
    writing = _Writing(schema)
    whole = writing.whole(trials)
    if whole is True:
        whole = {}
    if isinstance(whole, dict):
        whole["x-guidance"] = _OPTIONS
    return Written(json.dumps(whole), tuple(writing.lost)), writing.letters


class _Writing:
    def __init__(self, root: Any) -> None:
        self._references = References(root)
        self._old = is_old(root)
        #: By path: the definitions that are referred to.
        self._names: dict[tuple[str, ...], str] = {}
        self._pending: list[Place] = []
        #: Every schema that was written, and where it came from.
        self._places: list[tuple[dict[str, Any], Place]] = []
        self._dangling = False
        #: In order, each once.
        self.lost: dict[str, None] = {}
        #: That a trial compiles, where the library does not take the whole.
        self.letters = 0

    def whole(self, trials: int) -> Any:
        said = self._schema(self._references.root)
        definitions: dict[str, Any] = {}
        while self._pending:
            place = self._pending.pop()
            definitions[self._names[place.path]] = self._schema(place)
        if not isinstance(said, dict):
            return said
        if definitions:
            said["$defs"] = definitions
            self._end(said)
        merging, keyed = _merged(said)
        self._close(keyed)
        if merging and not self._dangling:
            self._loosen(said, merging, trials)
        return said

    def _end(self, whole: dict[str, Any]) -> None:
        """Forbid what could not come to an end: the library would let a model begin it."""
        schemas = [said for said, _ in self._places]
        endings = Endings(iter(schemas), lambda said: _target(whole, said["$ref"]))
        for said in schemas:
            for keyword in (*_HOLDS, "anyOf"):
                held = said.get(keyword)
                if keyword in _BY_NAME and isinstance(held, dict):
                    said[keyword] = {name: it if endings.ends(it) else False for name, it in held.items()}
                elif isinstance(held, list):
                    said[keyword] = [it if endings.ends(it) else False for it in held]
                elif isinstance(held, dict) and not endings.ends(held):
                    said[keyword] = False

    def _lose(self, place: Place, *keywords: str) -> None:
        for keyword in keywords:
            if keyword in place.schema:
                self.lost[pointer((*place.path, keyword))] = None

    def _schema(self, place: Place) -> Any:
        schema = place.schema
        if not isinstance(schema, Mapping):
            return schema
        said: dict[str, Any] = {}
        more: list[dict[str, Any]] = []  # that has to hold too
        for keyword, value in schema.items():
            if keyword in _ABSENT:
                if asserts(schema, keyword):
                    self._absent(place, keyword)
            elif keyword == "$ref":
                said["$ref"] = self._reference(place, value)
            elif keyword in _BY_NAME:
                said[keyword] = self._by_name(place, keyword, value)
            elif keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
                if keyword != "prefixItems" or not (self._old or isinstance(schema.get("items"), list)):
                    said["prefixItems" if keyword == "items" else keyword] = self._list(place, keyword, value)
            elif keyword == "oneOf":
                branches = self._list(place, keyword, value)
                if not (isinstance(value, list) and separate(self._references, place, value)):
                    self._lose(place, keyword)
                if "anyOf" in schema:
                    more.append({"anyOf": branches})
                else:
                    said["anyOf"] = branches
            elif keyword in _SCHEMA:
                if keyword != "additionalItems":
                    said[keyword] = self._schema(self._references.below(place, keyword))
            elif keyword in ("const", "enum"):
                if _written_out(value):
                    said[keyword] = value
                else:
                    self._lose(place, keyword)
            elif keyword in ABOUT["number"]:
                self._bound(place, keyword, value, said)
            elif keyword in _LENGTHS:
                self._length(place, keyword, value, said)
            elif keyword == "pattern":
                if not is_regex(value) or _fits({"type": "string", "pattern": value}):
                    said[keyword] = value  # what is no regex is refused
                else:
                    self._lose(place, keyword)
            elif keyword in ("type", "required"):
                said[keyword] = value
        if isinstance(schema.get("items"), list) and "additionalItems" in schema:
            said["items"] = self._schema(self._references.below(place, "additionalItems"))
        self._format(place, said)
        self._text(place, said)
        self._keys(place, said)
        if more:
            said["allOf"] = [*_listed(said, "allOf"), *more]
        _stand_together(said)
        self._places.append((said, place))
        return said

    def _absent(self, place: Place, keyword: str) -> None:
        if keyword in TYPE_OF and not _may_be(place.schema, TYPE_OF[keyword]):
            return
        self._lose(place, keyword)
        if keyword == "contains":
            self._lose(place, "minContains", "maxContains")

    def _reference(self, place: Place, reference: Any) -> Any:
        target = self._references.resolved(place, reference)
        if target is None:
            self._dangling = True
            return reference  # which the library refuses
        if not target.path:
            return "#"
        if target.path not in self._names:
            self._names[target.path] = str(len(self._names))
            self._pending.append(target)
        return f"#/$defs/{self._names[target.path]}"

    def _by_name(self, place: Place, keyword: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: self._schema(self._references.below(place, keyword, name)) for name in value}

    def _list(self, place: Place, keyword: str, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [self._schema(self._references.below(place, keyword, i)) for i in range(len(value))]

    def _bound(self, place: Place, keyword: str, value: Any, said: dict[str, Any]) -> None:
        plain = keyword.replace("exclusiveM", "m")
        if isinstance(value, bool):  # draft 4: a word about the bound beside it
            value = place.schema.get(plain) if value else None
            if value is None:
                return
        elif place.schema.get(keyword.replace("m", "exclusiveM", 1)) is True:
            return  # said by that
        if isinstance(value, int | float) and not _held(value):
            self._lose(place, keyword)
        else:
            said[keyword] = value

    def _length(self, place: Place, keyword: str, value: Any, said: dict[str, Any]) -> None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and value > _LONGEST:
            self._lose(place, keyword)
        else:
            said[keyword] = value

    def _format(self, place: Place, said: dict[str, Any]) -> None:
        named = place.schema.get("format")
        if not isinstance(named, str) or not _may_be(place.schema, "string"):
            return
        rest = _FORMATS.get(named)
        if rest is None:
            self._lose(place, "format")
            return
        said["format"] = named
        if named == "hostname":  # what is behind xn--, and where else there may be two hyphens
            self._lose(place, "format")
        for keyword, value in rest.items():
            if keyword == "maxLength":
                said[keyword] = min(value, said.get(keyword, value))
            elif keyword in place.schema:
                self._lose(place, "format")
            else:
                said[keyword] = value

    def _text(self, place: Place, said: dict[str, Any]) -> None:
        """Some patterns, formats and lengths are each fine with the library, and together too much for it."""
        for left_out in ("format", "pattern", "maxLength", "minLength"):
            text = {keyword: said[keyword] for keyword in ABOUT["string"] if keyword in said}
            if len(text) < 2 or not is_regex(text.get("pattern", "")) or _fits({"type": "string", **text}):
                return
            if said.pop(left_out, None) is not None:
                self._lose(place, left_out)

    def _keys(self, place: Place, said: dict[str, Any]) -> None:
        """What is said about an object's keys by pattern and by number."""
        patterns, declared = said.get("patternProperties"), said.get("properties", {})
        if (
            isinstance(patterns, dict)
            and all(map(is_regex, patterns))
            and not _fits({"patternProperties": {name: {} for name in patterns}})
        ):
            # Without the patterns, what is said about all other keys would be about these too.
            del said["patternProperties"]
            self._lose(place, "patternProperties")
            if said.pop("additionalProperties", True) is not True:
                self._lose(place, "additionalProperties")
        required = {name for name in _listed(said, "required") if isinstance(name, str)}
        least = said.get("minProperties", 0)
        if isinstance(declared, dict) and not declared.keys() <= required:  # then keys cannot be counted
            if isinstance(least, int) and least > len(required):
                self._lose(place, "minProperties")
            self._lose(place, "maxProperties")
            said.pop("minProperties", None)
            said.pop("maxProperties", None)
        elif isinstance(least, int) and least > len(required) + 1:
            self._lose(place, "minProperties")  # the same key may come twice

    def _close(self, keyed: set[int]) -> None:
        """Say of open objects which other keys they may have: any that is not declared, in its own letters.

        Where objects are merged, the library does not heed for one's patterns what the other says of all other keys.
        """
        merged = [said for said, _ in self._places if id(said) in keyed]
        patterns_merge = any("patternProperties" in said for said in merged)
        others_merge = any(said.get("additionalProperties", True) not in (True, {}) for said in merged)
        for said, place in self._places:
            declared, others = said.get("properties"), said.get("additionalProperties", True)
            if (patterns_merge or others_merge) and id(said) in keyed:
                self._lose(place, *(("properties",) if others is not False else ()), "patternProperties")
                if patterns_merge:
                    self._lose(place, "additionalProperties")
            elif others is False:
                pass
            elif "patternProperties" in said:
                self._lose(place, *(("properties",) if declared else ()), "patternProperties")
            elif isinstance(declared, dict) and declared:
                # All keys, of which the library leaves declared ones out; or else it applies `others` to them too.
                keys = "" if others in (True, {}) else other_keys(declared)
                if keys is not None:
                    said["patternProperties"], said["additionalProperties"] = {keys: others}, False
                    _stand_together(said)
                if keys is None or any(map(_SPELLED_TWICE.search, declared)):
                    self._lose(place, "properties")

    def _loosen(self, whole: dict[str, Any], merging: set[int], trials: int) -> None:
        """Leave out what the library cannot merge: overlapping patterns, references that come back to themselves.

        As little as is found in so many trials. What does not fit even so is refused where it is compiled.
        """
        text = json.dumps(whole)
        if _fits_text(text):
            return
        grown = Grown(lambda said: _target(whole, said["$ref"]), MAX_GROWN)
        copies = sum(grown.of([said]) for said, _ in self._places if id(said) in merging)
        self.letters = len(text) + _LETTERS_OF_COPY * min(copies, MAX_GROWN)
        merged = [(said, dict(said)) for said, _ in self._places if id(said) in merging]
        parts = [(said, place, part) for said, place in self._places if id(said) in merging for part in _parts(said)]

        def leave_out(numbers: Iterable[int]) -> None:
            for said, before in merged:
                said.clear()
                said.update(before)
            for said, _, part in (parts[i] for i in numbers):
                for keyword in part:
                    del said[keyword]

        def fits(numbers: Iterable[int]) -> bool:
            leave_out(numbers)
            return _fits_text(json.dumps(whole))

        out = _few(len(parts), fits, trials)
        leave_out(out)
        for _, place, part in (parts[i] for i in out):
            self._lose(place, *part, "oneOf")


def _few(count: int, enough: Callable[[Iterable[int]], bool], trials: int) -> list[int]:
    """A few of the first `count` numbers that are `enough`, as all are, in so many trials; all if there are none such.

    The last of the fewest first ones is needed; then again with what is before it, until those found are enough.
    """
    found: list[int] = []
    low, high = 0, count  # with those found the first `high` are enough, and the first `low` are not
    if not trials or not enough(range(count)):
        return [*range(count)]
    for _ in range(1, trials):
        if high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough((*range(middle), *found)) else (middle, high)
        else:
            found.append(high - 1)
            low, high = 0, high - 1
            if high == 0 or enough(found):
                return sorted(found)
    return sorted((*range(high), *found))


def _stand_together(said: dict[str, Any]) -> None:
    """Put keywords that rest on each other side by side, where the first of them stands."""
    in_order: dict[str, Any] = {}
    for keyword in list(said):
        for group in _GROUPS:
            if keyword in group:
                in_order.update((each, said[each]) for each in group if each in said)
        in_order.setdefault(keyword, said[keyword])
    said.clear()
    said.update(in_order)


def _parts(said: Mapping[str, Any]) -> list[list[str]]:
    """The keywords of one schema that could be left out so that nothing is merged, the least of a loss first."""
    own = [keyword for keyword in said if keyword not in (*_APPLICATORS, "$defs")]
    applied = [[keyword] for keyword in _APPLICATORS if keyword in said]
    return [own, *applied] if own and "$ref" in said else [*applied, own] if own else applied


def _merged(root: dict[str, Any]) -> tuple[set[int], set[int]]:
    """Of a written schema, by their id: the schemas that the library merges with others, which hold of the same value,
    and those that may have their keys or items merged."""
    merging: set[int] = set()
    keyed: set[int] = set()
    seen: set[tuple[int, bool, bool]] = set()
    pending: list[tuple[Any, bool, bool]] = [(root, False, False)]
    while pending:
        said, here, keys = pending.pop()
        if not isinstance(said, dict) or (id(said), here, keys) in seen:
            continue
        seen.add((id(said), here, keys))
        groups = [[it] for it in _listed(said, "allOf")]
        if "anyOf" in said:
            groups.append(_listed(said, "anyOf"))
        if "$ref" in said:
            groups.append([_target(root, said["$ref"])])
        here = here or len(groups) + any(keyword not in (*_APPLICATORS, "$defs") for keyword in said) > 1
        if here:
            merging.add(id(said))
        holding = sum(any(_holds(it, root) for it in group) for group in groups)
        keys = keys or holding + (not _HOLDS.isdisjoint(said)) > 1
        if keys:
            keyed.add(id(said))
        pending += ((it, here, keys) for group in groups for it in group)
        named = "patternProperties" in said and not {"properties", "required"}.isdisjoint(said)  # a name may match one
        pending += ((it, named, keys or named) for it in _children(said))
    return merging, keyed


def _holds(said: Any, root: dict[str, Any]) -> bool:
    """Whether a schema, or one that holds of the same value, says something of what is in the value."""
    pending, seen = [said], set()
    while pending:
        said = pending.pop()
        if not isinstance(said, dict) or id(said) in seen:
            continue
        if not _HOLDS.isdisjoint(said):
            return True
        seen.add(id(said))
        pending += (*_listed(said, "allOf"), *_listed(said, "anyOf"))
        if "$ref" in said:
            pending.append(_target(root, said["$ref"]))
    return False


def _target(root: dict[str, Any], reference: Any) -> Any:
    """What a written reference refers to, None if nothing."""
    return root if reference == "#" else root.get("$defs", {}).get(str(reference).removeprefix("#/$defs/"))


def _listed(said: Mapping[str, Any], keyword: str) -> list[Any]:
    value = said.get(keyword)
    return value if isinstance(value, list) else []


def _children(said: Mapping[str, Any]) -> Iterator[Any]:
    for keyword in _HOLDS.intersection(said):
        value = said[keyword]
        by_name = keyword in _BY_NAME and isinstance(value, dict)
        yield from value.values() if by_name else value if isinstance(value, list) else (value,)


def _fits(schema: Mapping[str, Any]) -> bool:
    """Whether the library can compile it, or could if it were not contradictory."""
    text = json.dumps(schema)
    return _FITTING.get(text, len(text), lambda: _fits_text(text))


_FITTING: Kept[bool] = Kept(_CACHED, _CACHED_CHARACTERS)


def _fits_text(schema: str) -> bool:
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: %json {schema}")
    error = llguidance.LLMatcher.validate_grammar(grammar)
    return not error or "Unsatisfiable" in error


def _may_be(schema: Mapping[str, Any], kind: str) -> bool:
    named = schema.get("type", kind)
    return kind in named if isinstance(named, list) else kind == named


def _held(number: int | float) -> bool:
    """Whether the library takes a number for what it is."""
    try:
        return number == 0 or _SMALLEST <= abs(number) <= _LARGEST
    except OverflowError:
        return False


def _written_out(value: Any) -> bool:
    """Whether every number in a value is `_held`."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, int | float) and not isinstance(value, bool) and not _held(value):
            return False
        pending += value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return True
