"""Writes a grammar as a structural tag for xgrammar 0.2 (vLLM's and SGLang's default).

Control tokens are named by their ids, so that their spelling in ordinary tokens is none, and text takes any token but
those. Arguments are JSON with any white space and keys in the declared order, as the Lark writer has them.

Where xgrammar reads a schema more narrowly than it says, it is given one that says it in other words (`_spelled_out`).
Lengths of strings are left out: with one, a string takes no escape, so that nobody could write a quote or a new line.
Narrower remain: strings with a `pattern` or `format`, which take no escapes either; objects and lists in `const` and
`enum`, without spaces; beside `patternProperties`, no other key; -0 is no integer. What a tag does not keep of a schema
is found by `unenforced`.

One thing a tag cannot say: no control token inside a JSON string. There xgrammar takes a token for what it spells, so
`<think>` the token may stand for `<think>` the text, unless its vocabulary hides that (docs/decisions/0015).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.grammar import ebnf, lark_schema, patterns
from dovetail.grammar.nodes import (
    Choice,
    Control,
    FreeText,
    Index,
    JsonSchema,
    Literal,
    Name,
    Node,
    Optional,
    Pattern,
    Ref,
    Repeat,
    Rules,
    Sequence,
    Spelled,
    TextBefore,
    Wider,
)
from dovetail.grammar.schemas.kinds import kind_of

#: xgrammar reads the first of these that a schema has, and nothing that stands beside it.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
#: Keywords that say something about values of one type only.
_ABOUT: Mapping[str, tuple[str, ...]] = {
    "object": (
        *("properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    ),
    "array": (
        *("items", "prefixItems", "unevaluatedItems", "minItems", "maxItems"),
        *("uniqueItems", "contains", "minContains", "maxContains"),
    ),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_ABOUT_ANY = ("type", "not", "if", "$dynamicRef", *_ALONE)
_ASSERTIONS = frozenset((*_ABOUT_ANY, *(keyword for about in _ABOUT.values() for keyword in about)))
#: `multipleOf` is kept for some integers.
_NEVER = frozenset(
    "not if $dynamicRef dependentRequired dependentSchemas dependencies contains minContains maxContains multipleOf "
    "minLength maxLength".split()
)
_FORMATS = frozenset(
    "date date-time duration email hostname ipv4 ipv6 json-pointer relative-json-pointer time uri uri-reference "
    "uri-template uuid".split()
)
_TYPES = ("null", "boolean", "number", "string", "array", "object")
#: Where a schema holds schemas.
_SCHEMA = (
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("items", "additionalItems", "unevaluatedItems", "contains"),
)
_LIST = ("anyOf", "oneOf", "allOf", "prefixItems", "items")  # `items` is a list in drafts before 2020-12
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
#: In a regex: boundaries, properties of characters, what looks around or has a name.
_REFUSED = re.compile(r"\\[bBpPk0-9]|\(\?[^:]")
#: What a regex looks at and does not take: xgrammar reads past it.
_LOOKS = re.compile(r"\(\?<?[=!]")
#: A regex of no text at all.
_NOTHING = r"[^\s\S]"


def write(root: Node, control: Mapping[str, int]) -> dict[str, Any]:
    """The tag, as JSON data. `control` are all control tokens of the tokenizer with their ids.

    Raises `ValueError` for a control token without an id.
    """
    return {"type": "structural_tag", "format": _sequence(_optional(_roll_call(control)), _format(root, control))}


def _roll_call(control: Mapping[str, int]) -> dict[str, Any]:
    """What never matches, and names all that `_format` names tokens by, in an order that is always the same.

    xgrammar 0.2.8 keeps masks of parts of grammars by their shape, in which a token is its place among those that the
    grammar names: without this it takes the masks of one grammar for another's (tests/grammar/test_xgrammar_cache.py).
    """
    tokens = [{"type": "token", "token": token} for token in sorted(control.values())]
    return _sequence({"type": "regex", "pattern": _NOTHING}, *tokens, _format(FreeText(), control))


def unenforced(schema: Any, pointer: str = "#") -> Iterator[str]:
    """JSON pointers of the keywords in a schema that a tag does not keep, or not all of it.

    `oneOf` is kept as `anyOf`, which is the same where no value fits two branches, in the Lark as in the tag.
    """
    if isinstance(schema, Mapping):
        yield from (f"{pointer}/{keyword}" for keyword in _passed_over(schema))
        for path, inner in _inner(schema):
            yield from unenforced(inner, "/".join((pointer, *map(_escaped, path))))
        if pointer == "#":
            yield from (lost for lost in lark_schema.written(schema).unenforced if lost.endswith("/oneOf"))


def _format(node: Node, control: Mapping[str, int]) -> dict[str, Any]:
    match node:
        case Literal(text):
            return {"type": "const_string", "value": text}
        case Control(literal):
            if literal not in control:
                raise ValueError(f"the control token {literal!r} has no id")
            return {"type": "token", "token": control[literal]}
        case FreeText():
            return {"type": "any_tokens", "exclude_tokens": sorted(control.values())}
        case Index():
            return {"type": "regex", "pattern": "0|[1-9][0-9]{0,8}"}
        case TextBefore():
            return {"type": "regex", "pattern": _text_before(node)}
        case Name(known):
            return {"type": "regex", "pattern": patterns.other_names(known)}
        case JsonSchema(schema):
            return {"type": "json_schema", "json_schema": _spelled_out(schema)}
        case Pattern(regex):
            return {"type": "regex", "pattern": regex}
        case Rules() | Ref():
            return {"type": "grammar", "grammar": ebnf.write(node)}
        case Wider(item) | Spelled(item):
            return _format(item, control)
        case Choice() | Sequence() | Optional() | Repeat() if (whole := _regular(node)) is not None:
            return {"type": "regex", "pattern": whole}
        case Choice(options):
            return _choice([_format(option, control) for option in options])
        case Sequence(items):
            return _sequence(*(_format(item, control) for item in items or (Literal(""),)))
        case Optional(item):
            return _optional(_format(item, control))
        case Repeat(item, least, most):
            repeated: dict[str, Any] = {"content": _format(item, control)}
            if most is not None or least > 1:
                return repeated | {"type": "repeat", "min": least, "max": -1 if most is None else most}
            return repeated | {"type": "plus" if least else "star"}


def _text_before(node: TextBefore) -> str:
    """As a regex, and not as `any_text`, which takes control tokens for text even where they are hidden."""
    kept = _kept_pattern(node)
    text = patterns.without(node.without) if kept is None else kept
    return f"(?:{'|'.join((*map(patterns.quoted, node.words), text))}){patterns.quoted(node.end)}"


def _kept_pattern(node: TextBefore) -> str | None:
    """The pattern that the text has to match; None: any. Two cannot be kept at once, and that the text holds none of
    `without` goes before. Of what xgrammar refuses in patterns, nothing is kept."""
    found = patterns.of_strings(node.schema)
    if len(found) != 1 or _REFUSED.search(found[0]) or (node.without and patterns.may_hold(found[0], "<")):
        return None
    return found[0]


def unenforced_of_text(node: TextBefore) -> Iterator[str]:
    """As `unenforced`, for the schema of a text."""
    kept = _kept_pattern(node) is not None
    yield from (f"#/{key}" for key in node.schema if key not in ("pattern", "format") or not kept)


def _regular(node: Node) -> str | None:
    """A regex for what patterns and literals make up, since engines bound how deep a tag may be; None if there is more
    in it, or no pattern."""
    found = _regex(node)
    return found[0] if found is not None and found[1] else None


def _regex(node: Node) -> tuple[str, bool] | None:
    """A regex of `node`, and whether there is a pattern in it."""
    match node:
        case Pattern(regex):
            return f"(?:{regex})", True
        case Literal(text):
            return patterns.quoted(text), False
        case Optional(item):
            return _times(item, "?")
        case Repeat(item, least, most):
            return _times(item, f"{{{least},{'' if most is None else most}}}")
        case Choice(children) | Sequence(children):
            found = [_regex(child) for child in children]
            regexes = [each[0] for each in found if each is not None]
            if len(regexes) < len(found):
                return None
            between = "|" if isinstance(node, Choice) else ""
            return f"(?:{between.join(regexes)})", any(each is not None and each[1] for each in found)
    return None


def _times(item: Node, times: str) -> tuple[str, bool] | None:
    found = _regex(item)
    return None if found is None else (f"(?:{found[0]}){times}", found[1])


def _sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    """Without a sequence in it, or of one element: engines bound how deep a tag may be."""
    flat: list[dict[str, Any]] = []
    for element in elements:
        flat += element["elements"] if element["type"] == "sequence" else [element]
    return {"type": "sequence", "elements": flat} if len(flat) > 1 else flat[0]


def _optional(content: dict[str, Any]) -> dict[str, Any]:
    return content | {"type": "star"} if content["type"] == "plus" else {"type": "optional", "content": content}


def _choice(options: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "or", "elements": options} if len(options) > 1 else options[0]


def _spelled_out(schema: Any) -> Any:
    """A schema that says what another leaves to be understood: that there may be other keys, other items, any type,
    what else a key is that is required and not declared, and that a pattern may stand anywhere in a string."""
    if not isinstance(schema, Mapping):
        return schema
    said: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _LIST and isinstance(value, list):
            value = [_spelled_out(it) for it in value]
        elif key in _SCHEMA:
            value = _spelled_out(value)
        elif key in _BY_NAME and isinstance(value, Mapping):
            value = {name: _spelled_out(it) for name, it in value.items()}
        if key not in ("minLength", "maxLength"):
            said[key] = value
    if not _ASSERTIONS.isdisjoint(schema) and not _alone(schema):
        said.setdefault("type", list(_TYPES))
    types = _types(said)
    if "object" in types:
        if "unevaluatedProperties" not in schema:
            said.setdefault("additionalProperties", True)
        declared = said.get("properties", {})
        other = said.get("additionalProperties", True)
        undeclared = {name: other for name in schema.get("required", ()) if name not in declared}
        if undeclared:
            said["properties"] = {**declared, **undeclared}
    if isinstance(said.get("items"), list):
        said["prefixItems"], said["items"] = said["items"], said.get("additionalItems", True)
    if "array" in types and "unevaluatedItems" not in schema:
        said.setdefault("items", True)
    if "string" in types and (whole := patterns.of_the_whole(schema.get("pattern"))) is not None:
        said["pattern"] = whole
    return said


def _passed_over(schema: Mapping[str, Any]) -> list[str]:
    """The keywords of one schema that have no effect, or not all of it, in the order in which they stand."""
    asserted = [key for key in schema if key in _ASSERTIONS]
    if alone := _alone(schema):
        kept = {alone}
        if (alone == "allOf" and len(schema[alone]) > 1) or (alone == "$ref" and schema[alone][:2] not in ("#", "#/")):
            kept.clear()
        values = schema["enum"] if alone == "enum" else [schema["const"]] if alone == "const" else ()
        if values and all(kind_of(value) in _types(schema) for value in values):
            kept.add("type")
        return [key for key in asserted if key not in kept]
    types = _types(schema) or _TYPES
    lost = {*_NEVER}
    if schema.get("uniqueItems"):
        lost.add("uniqueItems")
    if schema.get("format") not in _FORMATS:
        lost.add("format")
    elif "pattern" in schema:
        lost.update(("pattern", "format"))
    pattern: Any = schema.get("pattern")
    if patterns.of_the_whole(pattern) is None or _LOOKS.search(pattern):
        lost.add("pattern")
    if not {"properties", "required"}.isdisjoint(schema):
        lost.update(("patternProperties", "propertyNames"))
    elif len(schema.get("patternProperties", ())) > 1 or "propertyNames" in schema:
        lost.add("patternProperties")
    if schema.get("additionalProperties") is not False and any(map(_needs_escapes, schema.get("properties", ()))):
        lost.add("properties")  # the same key may come as one that is not declared
    said = {key for kind in types for key in _ABOUT.get(kind, ())}.union(_ABOUT_ANY)
    return [key for key in asserted if key in lost and key in said]


def _alone(schema: Mapping[str, Any]) -> str | None:
    return next((key for key in _ALONE if key in schema), None)


def _needs_escapes(name: str) -> bool:
    return json.dumps(name) != f'"{name}"'


def _types(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema names; an integer is a number."""
    named = schema.get("type", [])
    return ["number" if kind == "integer" else kind for kind in ([named] if isinstance(named, str) else named)]


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The schemas right in a schema, with the path to each."""
    for key, value in schema.items():
        if key in _LIST and isinstance(value, list):
            yield from (((key, str(i)), it) for i, it in enumerate(value))
        elif key in _SCHEMA:
            yield (key,), value
        elif key in _BY_NAME and isinstance(value, Mapping):
            yield from (((key, name), it) for name, it in value.items())


def _escaped(key: str) -> str:
    """A key as a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
