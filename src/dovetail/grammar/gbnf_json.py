"""JSON values as rules of GBNF, and the keywords of a schema that these do not enforce.

A schema is spelled as for xgrammar (`tag_schema`), without the keywords that GBNF has no words for. llama.cpp follows
every way in which a text may be read, each one on its own, and checks for rules that begin with themselves along every
path. So alternatives are written without references between them. And of a schema that refers to itself, that may be
read in too many ways at once, or that has more than 1,000 properties, only the type is enforced.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.grammar import gbnf_text, numbers
from dovetail.grammar.cache import Cache
from dovetail.grammar.json_rules import ESCAPE, JsonRules, NotPlainError, Undeclared, choice
from dovetail.grammar.patterns import FORMATS, may_contain, of_plain_json
from dovetail.grammar.schemas.keywords import TYPES, asserts
from dovetail.grammar.schemas.references import Place, encoded
from dovetail.grammar.schemas.walk import SpelledSchema
from dovetail.grammar.tag_schema import TagWalk

#: Keywords that GBNF cannot say.
_NOT_IN_GBNF = frozenset(
    "multipleOf minProperties maxProperties propertyNames prefixItems unevaluatedItems unevaluatedProperties".split()
)
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_MOST_COUNTED, _LARGEST = 1_000, 2**53
#: Letters of all keys that other keys must differ from, each of which is a rule. With more, keys may be repeated.
_MOST_LETTERS = 2_000
#: In how many ways the beginning of a value may be read at once.
_MOST_READINGS = 1_000
#: Control characters need an escape, and a quote ends the string.
_QUOTE, _CHARACTERS = r'"\""', '"\\' + "".join(map(chr, (*range(32), 127)))

_CACHED, _CACHED_BYTES = 1024, 16 * 2**20


class GbnfSchema(SpelledSchema, frozen=True):
    """`keys_differ`: whether a key that is not declared differs from those that are."""

    keys_differ: bool = True


_SPELLED: Cache[GbnfSchema] = Cache(_CACHED, _CACHED_BYTES)


def spell(schema: Any) -> GbnfSchema:
    """The schema in keywords that `write` enforces.

    Raises `RecursionError` for a schema that is nested deeper than `bounds` allows.
    """
    key = encoded(schema)
    return _SPELLED.get(key, len(key), lambda: _spell(schema))


def _spell(schema: Any) -> GbnfSchema:
    walk = _GbnfWalk(schema)
    try:
        whole = walk.whole()
        keys_differ = walk.check_keys()
        if whole is not False:
            _check_readings(whole)
            _GbnfRules(whole, {}, (), keys_differ=False).value(whole)
        return GbnfSchema(whole, tuple(walk.unenforced), keys_differ)
    except (NotPlainError, RecursionError, AttributeError, LookupError, TypeError, ValueError):
        # Too large, or a keyword with a value of the wrong type, which compiling for another library refuses.
        kinds = schema.get("type") if isinstance(schema, Mapping) else None
        named = isinstance(kinds, str) and kinds in (*TYPES, "integer")
        lost = [f"#/{keyword}" for keyword in schema if asserts(schema, keyword)] if isinstance(schema, Mapping) else []
        kept = tuple(each for each in lost if not named or each != "#/type")
        return GbnfSchema({"type": kinds} if named else {}, kept)


def write(schema: Any, rules: gbnf_text.NameByBody, apart: tuple[str, ...]) -> str:
    """The name of the rule for a schema. `apart`: what its strings must not contain.

    Raises `ValueError` if no value is valid.
    """
    spelled = spell(schema)
    writer = _GbnfRules(spelled.schema, rules, apart, keys_differ=spelled.keys_differ)
    whole = writer.value(spelled.schema)
    if whole is None:
        raise ValueError("no value is valid for a schema")
    return writer.named("value", whole)


class _GbnfWalk(TagWalk):
    def spell(self, place: Place) -> Any:
        if not isinstance(place.schema, Mapping):
            return super().spell(place)
        keywords = self.keywords(place.schema)
        lost = {keyword for keyword in keywords if _is_not_enforced(keyword, keywords)}
        self.drop(place, *(keyword for keyword in keywords if keyword in lost and asserts(keywords, keyword)))
        return super().spell(place._replace(schema={k: value for k, value in keywords.items() if k not in lost}))

    def check_keys(self) -> bool:
        """Whether there are few enough keys to forbid that one is repeated; else lists the objects with other keys."""
        open_objects = [
            (len("".join(spelled["properties"])), place)
            for spelled, place in self.spelled
            if spelled.get("properties") and spelled.get("additionalProperties") is not False
        ]
        few = sum(letters for letters, _ in open_objects) <= _MOST_LETTERS
        for _, place in () if few else open_objects:
            self.drop(place, "properties")
        return few


def _is_not_enforced(keyword: str, keywords: Mapping[str, Any]) -> bool:
    value = keywords[keyword]
    if keyword in _BOUNDS:
        return not _is_plain(value, whole=keywords.get("type") == "integer")
    match keyword:
        case "items":
            return "prefixItems" in keywords
        case "minItems" | "maxItems":
            return not isinstance(value, int | float) or not 0 <= value <= _MOST_COUNTED
        case "format":
            return value not in FORMATS
        case "pattern":
            return not _can_be_written(value)
        case "const" | "enum":
            return _has_list(value if keyword == "enum" else [value])
        case "patternProperties" | "additionalProperties" if isinstance(keywords.get("patternProperties"), Mapping):
            return not all(map(_can_be_written, keywords["patternProperties"]))
    return keyword in _NOT_IN_GBNF


def _is_plain(bound: Any, *, whole: bool) -> bool:
    return isinstance(bound, int | float) and abs(bound) < _LARGEST and (whole or bound % 1 == 0)


def _has_list(values: Any) -> bool:
    """Whether there is a list in any of the constants."""
    if not isinstance(values, list):
        return False
    members = (each.values() if isinstance(each, Mapping) else () for each in values)
    return any(isinstance(each, list) for each in values) or any(_has_list([*each]) for each in members if each)


@functools.lru_cache(1024)
def _can_be_written(pattern: str) -> bool:
    """Whether GBNF has a pattern, and no text that matches contains a control token. True for a pattern that
    `tag_schema` leaves out and lists itself."""
    plain = of_plain_json(pattern)
    if plain is None:
        return True
    if any(may_contain(plain, mark) for mark in gbnf_text.MARKS):
        return False
    try:
        return bool(gbnf_text.of_regex(plain))
    except ValueError:
        return False


def _check_readings(root: Any) -> None:
    """Raises `NotPlainError` for a schema that refers to itself, and for one of which a text may be read in too many
    ways at once: two objects of an `anyOf` begin alike, and so do those in their first members."""
    known: dict[int, int] = {}
    open_: set[int] = set()

    def readings(schema: Any) -> int:
        if not isinstance(schema, dict):
            return 1
        if id(schema) in open_:
            raise NotPlainError
        if id(schema) not in known:
            open_.add(id(schema))
            inside = [*schema.get("properties", {}).values(), *schema.get("patternProperties", {}).values()]
            inside += [schema.get("items"), schema.get("additionalProperties")]
            alternatives = _alternatives(root, schema)
            if not (alternatives and alternatives[0] is schema):
                count = sum(map(readings, alternatives))
            else:
                count = max(1, *map(readings, inside))
            if count > _MOST_READINGS:
                raise NotPlainError
            known[id(schema)] = count
            open_.remove(id(schema))
        return known[id(schema)]

    readings(root)


def _alternatives(root: Any, schema: Any) -> list[Any]:
    """What `schema` is a choice of, behind all references and choices, each once; `[schema]` if it is not one."""
    found: dict[int, Any] = {}
    pending, seen = [schema], set()
    while pending:
        each = pending.pop()
        if not isinstance(each, dict) or each.keys().isdisjoint(("anyOf", "$ref")):
            found[id(each)] = each
        elif id(each) not in seen:
            seen.add(id(each))
            pending += reversed([*each.get("anyOf", ())])
            pending += [_target(root, each["$ref"])] if "$ref" in each else []
    return [*found.values()]


def _target(root: Any, reference: Any) -> Any:
    target = root if reference == "#" else root.get("$defs", {}).get(str(reference).removeprefix("#/$defs/"))
    if target is None:
        raise NotPlainError
    return target


class _GbnfRules(JsonRules):
    comment = "#"

    def __init__(self, root: Any, rules: gbnf_text.NameByBody, apart: tuple[str, ...], *, keys_differ: bool) -> None:
        super().__init__(root, rules)
        self.made, self._apart, self._keys_differ = rules, apart, keys_differ
        self._named: dict[int, str | None] = {}  # rules by the id of their schema

    def value(self, schema: Any) -> str | None:
        alternatives = _alternatives(self._root, schema)
        if alternatives and alternatives[0] is schema:
            return super().value(schema)
        for each in alternatives:
            if id(each) not in self._named:
                body = super().value(each)
                self._named[id(each)] = None if body is None else self.named("value", body)
        return choice(self._named[id(each)] for each in alternatives)

    def named(self, prefix: str, body: str) -> str:
        return gbnf_text.named(self.made, prefix, body)

    def terminal(self, regex: str) -> str:
        return self.named("json", gbnf_text.of_regex(regex))

    def literal(self, text: str) -> str:
        for word in self._apart:  # it would be that control token, too
            text = text.replace(word, f"\\u{ord(word[0]):04x}{word[1:]}")
        return gbnf_text.quoted(text)

    def other(self, schema: Mapping[str, Any]) -> str | None:
        match schema:
            case {"enum": list(values), **rest} if not rest.keys() - {"$defs"}:
                return self.named("json", " | ".join(map(self._constant, values))) if values else None
            case {"type": "string", "pattern": str(pattern), **rest} if not rest:
                return self.named("json", f"{_QUOTE} {gbnf_text.of_regex(f'(?:{pattern})')} {_QUOTE}")
            case {"type": "number", "minimum": least, "maximum": most, **rest} if not rest and least == most:
                return self._constant(least)
        raise NotPlainError

    def string(self) -> str:
        return self._string_but(())

    def undeclared(self, schema: Mapping[str, Any], declared: Mapping[str, Any]) -> Undeclared | None:
        if "patternProperties" in schema:
            ((pattern, values),) = schema["patternProperties"].items()
            return lambda declared: self.other({"type": "string", "pattern": pattern}) or "", values
        return self._string_but, schema.get("additionalProperties", True)

    def between(self, least: int, most: int) -> str:
        return self.terminal(numbers.between(least, most))

    def _string_but(self, keys: Iterable[str]) -> str:
        """Any string except `keys`."""
        plain = [key for key in keys if not {*key} & {*_CHARACTERS}] if self._keys_differ else []
        escape = self.named("escape", gbnf_text.of_regex(ESCAPE))
        excluded = gbnf_text.Excluded(self._apart, tuple(plain), (), _CHARACTERS, escape)
        return self.named("json", f"{_QUOTE} {gbnf_text.text(self.made, excluded)} {_QUOTE}")

    def _constant(self, value: Any) -> str:
        return self.literal(json.dumps(value, ensure_ascii=False))
