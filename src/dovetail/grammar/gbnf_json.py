"""JSON values as rules of GBNF, and the keywords of a schema that these do not enforce.

A schema is spelled as for xgrammar (`tag_schema`), without the keywords that GBNF has no words for. A schema that has
more properties than rules may have, or constants that differ by their spelling, is any value of its type.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail.grammar import gbnf_text, numbers
from dovetail.grammar.cache import Cache
from dovetail.grammar.json_rules import ESCAPE, JsonRules, NotPlainError, Undeclared
from dovetail.grammar.patterns import FORMATS, may_contain, of_plain_json
from dovetail.grammar.schemas.keywords import TYPES, asserts
from dovetail.grammar.schemas.references import Place, encoded
from dovetail.grammar.schemas.walk import SpelledSchema
from dovetail.grammar.tag_schema import TagWalk

#: Keywords that GBNF cannot say.
_ABSENT = frozenset(
    "multipleOf minProperties maxProperties propertyNames prefixItems unevaluatedItems unevaluatedProperties".split()
)
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_MOST_COUNTED, _LARGEST = 1_000, 2**53
#: Letters of the keys that another key must differ from: each is a state of an automaton.
_MOST_LETTERS = 2_000
#: What control tokens begin with.
_MARKS = "<["
#: Control characters need an escape, and a quote ends the string.
_QUOTE, _BARRED = r'"\""', '"\\' + "".join(map(chr, (*range(32), 127)))

_CACHED, _CACHED_BYTES = 1024, 16 * 2**20
_SPELLED: Cache[SpelledSchema] = Cache(_CACHED, _CACHED_BYTES)


def spell(schema: Any) -> SpelledSchema:
    """The schema in keywords that `write` enforces.

    Raises `RecursionError` for a schema that is nested deeper than `bounds` allows.
    """
    key = encoded(schema)
    return _SPELLED.get(key, len(key), lambda: _spell(schema))


def _spell(schema: Any) -> SpelledSchema:
    walk = _GbnfWalk(schema)
    try:
        whole = walk.whole()
        if whole is not False:
            _GbnfRules(whole, {}, ()).value(whole)
        return SpelledSchema(whole, tuple(walk.unenforced))
    except (NotPlainError, RecursionError, AttributeError, LookupError, TypeError, ValueError):
        # Too large, or a keyword with a value of the wrong type, which compiling for another library refuses.
        kinds = schema.get("type") if isinstance(schema, Mapping) else None
        named = isinstance(kinds, str) and kinds in (*TYPES, "integer")
        lost = [f"#/{keyword}" for keyword in schema if asserts(schema, keyword)] if isinstance(schema, Mapping) else []
        return SpelledSchema(
            {"type": kinds} if named else {}, tuple(each for each in lost if not named or each != "#/type")
        )


def write(schema: Any, rules: gbnf_text.Rules, control: tuple[str, ...]) -> str:
    """The name of the rule for a schema. `control`: what its strings must not contain.

    Raises `ValueError` if no value is valid.
    """
    spelled = spell(schema).schema
    writer = _GbnfRules(spelled, rules, control)
    whole = writer.value(spelled)
    if whole is None:
        raise ValueError("no value is valid for a schema")
    whole = writer.named("value", whole)
    rules.update(writer.made)
    return whole


class _GbnfWalk(TagWalk):
    def spell(self, place: Place) -> Any:
        if not isinstance(place.schema, Mapping):
            return super().spell(place)
        keywords = self.keywords(place.schema)
        lost = {keyword for keyword in keywords if _is_lost(keyword, keywords)}
        self.drop(place, *(keyword for keyword in keywords if keyword in lost and asserts(keywords, keyword)))
        if keywords.get("additionalProperties") is not False and _letters(keywords) > _MOST_LETTERS:
            self.drop(place, "properties")
        return super().spell(place._replace(schema={k: value for k, value in keywords.items() if k not in lost}))


def _is_lost(keyword: str, keywords: Mapping[str, Any]) -> bool:
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
            return not _is_written(value)
        case "patternProperties" | "additionalProperties" if isinstance(keywords.get("patternProperties"), Mapping):
            return not all(map(_is_written, keywords["patternProperties"]))
    return keyword in _ABSENT


def _is_plain(bound: Any, *, whole: bool) -> bool:
    return isinstance(bound, int | float) and abs(bound) < _LARGEST and (whole or bound % 1 == 0)


@functools.lru_cache(1024)
def _is_written(pattern: str) -> bool:
    """Whether a pattern can be written, or is left out by `tag_schema` anyway. A text that matches may contain no
    control token."""
    plain = of_plain_json(pattern)
    if plain is None:
        return True
    if any(may_contain(plain, mark) for mark in _MARKS):
        return False
    try:
        return bool(gbnf_text.of_regex(plain))
    except ValueError:
        return False


def _letters(keywords: Mapping[str, Any]) -> int:
    declared = keywords.get("properties")
    return sum(map(len, declared)) if isinstance(declared, Mapping) else 0


class _GbnfRules(JsonRules):
    comment = "#"

    def __init__(self, root: Any, rules: gbnf_text.Rules, control: tuple[str, ...]) -> None:
        super().__init__(root, rules)
        self.made, self._control = rules, control

    def named(self, prefix: str, body: str) -> str:
        return gbnf_text.named(self.made, prefix, body)

    def terminal(self, regex: str) -> str:
        return self.named("json", gbnf_text.of_regex(regex))

    def other(self, schema: Mapping[str, Any]) -> str | None:
        match schema:
            case {"enum": list(values), **rest} if not rest.keys() - {"$defs"}:
                return self.named("json", " | ".join(map(_constant, values))) if values else None
            case {"type": "string", "pattern": str(pattern), **rest} if not rest:
                return self.named("json", f"{_QUOTE} {gbnf_text.of_regex(f'(?:{pattern})')} {_QUOTE}")
            case {"type": "number", "minimum": least, "maximum": most, **rest} if not rest and least == most:
                return _constant(least)
        raise NotPlainError

    def string(self) -> str:
        return self._key(())

    def undeclared(self, schema: Mapping[str, Any], declared: Mapping[str, Any]) -> Undeclared | None:
        if "patternProperties" in schema:
            ((pattern, values),) = schema["patternProperties"].items()
            return lambda declared: self.other({"type": "string", "pattern": pattern}) or "", values
        return self._key, schema.get("additionalProperties", True)

    def between(self, least: int, most: int) -> str:
        return self.terminal(numbers.between(least, most))

    def _key(self, declared: Iterable[str]) -> str:
        names = [name for name in declared if not {*name} & {*_BARRED}]
        if sum(map(len, names)) > _MOST_LETTERS:
            names = []
        escape = self.named("escape", gbnf_text.of_regex(ESCAPE))
        text = gbnf_text.without(self.made, self._control, but=names, barred=_BARRED, escape=escape)
        return self.named("json", f"{_QUOTE} {text} {_QUOTE}")


def _constant(value: Any) -> str:
    return gbnf_text.quoted(json.dumps(value, ensure_ascii=False))
