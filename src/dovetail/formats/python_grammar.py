"""The grammar of a tool's arguments as Python writes them, from its JSON Schema: `city="Paris", days=[1, 2]`.

Names, types, `enum` and `const`, declared, required and other properties, lists with their lengths, lengths of strings,
`anyOf` and what can be put together of `allOf` are kept by the grammar itself; ranges, patterns and formats by the JSON
Schemas that are left in it, whose numbers and strings are Python's as well. The rest is named for the check after.

Strings stand in quotes of either kind, but in double ones where they have a pattern or format. Keys come in the
declared order. Other keys than the declared have no escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from dovetail.errors import SchemaRefused
from dovetail.formats.plain_text import in_class, others
from dovetail.grammar import (
    Choice,
    JsonSchema,
    Literal,
    Node,
    Optional,
    Pattern,
    Ref,
    Repeat,
    Spelled,
    Wider,
)
from dovetail.grammar import Sequence as InOrder
from dovetail.grammar.kept import Kept
from dovetail.grammar.patterns import quoted
from dovetail.grammar.schemas.kinds import kind_of

_KEYWORD = re.compile(r"[^\W\d]\w*")
GAP = r"[ \t\r\n]{0,16}"
COMMA = Pattern(f"{GAP},{GAP}")
_COLON = f"{GAP}:{GAP}"
_CONTROL = r"\x00-\x1f"
_ESCAPE = (
    r"""\\(?:[\\'"abfnrtv]|x[0-9a-fA-F]{2}|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})"""
    r"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_INTEGER = Pattern("-?(?:0|[1-9][0-9]*)")
_NUMBER = Pattern(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?")
_BOOLEAN, _NULL = Pattern("True|False"), Literal("None")
_ANY = Ref("any")
_NOTHING = InOrder(())
_TRUE: Mapping[str, Any] = {}
_FALSE: Mapping[str, Any] = {"not": {}}

_TYPES = ("null", "boolean", "number", "string", "array", "object")
#: Of one type; what is not among them says something about all.
_ABOUT: Mapping[str, tuple[str, ...]] = {
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
    ),
    "array": (
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains", "unevaluatedItems"),
    ),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_PARTS = ("allOf", "anyOf", "oneOf")
_ASSERTIONS = frozenset(
    ("type", "enum", "const", "$ref", "not", "if", *_PARTS, *(key for about in _ABOUT.values() for key in about))
)
#: What no grammar keeps.
_NEVER = frozenset(
    "not if patternProperties propertyNames minProperties maxProperties dependentRequired dependentSchemas "
    "dependencies uniqueItems contains minContains maxContains unevaluatedProperties unevaluatedItems".split()
)
#: Of one tool. Each member's rule goes on to the next one's, and llguidance dies at the end of 3,000.
_MOST_RULES, _MOST_MERGES, _MOST_MEMBERS = 30_000, 500, 1_000
#: Names among which another key is looked for: characters of all of them, and of the longest.
_MOST_NAMES, _LONGEST_NAME = 4_000, 200

_KEPT: Kept[tuple[Node, dict[str, Node]]] = Kept(1024, 4 * 2**20)


def string(shortest: int = 0, longest: int | None = None) -> Pattern:
    """A string in quotes of either kind, and how many characters it may have."""
    times = f"{{{shortest},{'' if longest is None else longest}}}" if shortest or longest is not None else "*"
    return Pattern("|".join(rf"{q}(?:[^{q}\\{_CONTROL}]|{_ESCAPE}){times}{q}" for q in "\"'"))


def anything() -> dict[str, Node]:
    """The rules of `Ref("any")`: any value that JSON has."""
    member = InOrder((Pattern(f"(?:{string().regex}){_COLON}"), _ANY))
    return {
        "any": Choice((string(), _NUMBER, _BOOLEAN, _NULL, Ref("list"), Ref("dict"))),
        "list": _bracketed("[", "]", Optional(_several(_ANY))),
        "dict": _bracketed("{", "}", Optional(_several(member))),
    }


def arguments(schema: Mapping[str, Any], origin: str, prefix: str) -> tuple[Node, dict[str, Node]]:
    """What may stand between the brackets of a call, and the rules that it refers to beside those of `anything`, whose
    names begin with `prefix`.

    Raises `SchemaRefused` for a schema that makes no sense, or to which nothing can be valid.
    """
    # It takes milliseconds, and the same tools come with every turn.
    key = json.dumps((origin, prefix, schema))
    return _KEPT.get(key, len(key), lambda: _arguments(schema, origin, prefix))


def _arguments(schema: Mapping[str, Any], origin: str, prefix: str) -> tuple[Node, dict[str, Node]]:
    writer = _Writer(schema, origin, prefix)
    written = writer.value(schema, "#", _KEYWORDS)
    if written is None:
        told = f"{origin} cannot be enforced: nothing can be valid to {writer.never[0]:.300}"
        raise SchemaRefused(told, param=origin)
    item: Node = Spelled(written, schema, origin)
    if lost := tuple(dict.fromkeys(writer.lost)):
        item = Wider(item, origin, lost)
    return item, writer.rules


class _Keys(NamedTuple):
    """How a member of an object is written: one of a name, and one of any name but some."""

    member: Callable[[str, Node], Node]
    other: Callable[[list[str], Node], Node]


def _keyword(name: str, value: Node) -> Node:
    if _KEYWORD.fullmatch(name):
        return InOrder((Pattern(f"{quoted(name)}{GAP}={GAP}"), value))
    return _spread(_named(name), value)


def _other_keyword(names: list[str], value: Node) -> Node:
    not_in_names = "".join(c for c in map(chr, range(128)) if not (c.isalnum() or c == "_"))
    stops = f"{_CONTROL}{in_class(not_in_names[32:])}"
    free = others(filter(_KEYWORD.fullmatch, names), stops, not_first="0-9", whole=True)
    return Choice((InOrder((Pattern(f"(?:{free}){GAP}={GAP}"), value)), _spread(_not_named(names), value)))


def _spread(key: str, value: Node) -> Node:
    return InOrder((Pattern(rf"\*\*\{{{GAP}{key}{_COLON}"), value, Pattern(rf"{GAP}\}}")))


def _named(name: str) -> str:
    return f"(?:{'|'.join(map(quoted, _forms(name)))})"


def _not_named(names: list[str]) -> str:
    if not names:
        return f"(?:{string().regex})"
    free = []
    for q in "\"'":
        told = others((name for name in names if f"{q}{name}{q}" in _forms(name)), rf"{q}\\{_CONTROL}", whole=True)
        empty = "?" if "" not in names else ""
        free.append(f"{q}(?:{told}){empty}{q}")
    return f"(?:{'|'.join(free)})"


def _forms(text: str) -> list[str]:
    """How a string is written: in double quotes, and in single ones if that needs no escapes."""
    written = json.dumps(text, ensure_ascii=False)
    plain = written == f'"{text}"' and "'" not in text and "\x7f" not in text
    return [written, f"'{text}'"] if plain else [written]


_KEYWORDS = _Keys(_keyword, _other_keyword)
_STRINGS = _Keys(
    lambda name, value: InOrder((Pattern(_named(name) + _COLON), value)),
    lambda names, value: InOrder((Pattern(_not_named(names) + _COLON), value)),
)


class _Writer:
    """Writes one tool's schema. `lost` are JSON pointers to what no grammar keeps."""

    def __init__(self, root: Mapping[str, Any], origin: str, prefix: str) -> None:
        self._root, self._origin, self._prefix = root, origin, prefix
        self.rules: dict[str, Node] = {}
        self.lost: list[str] = []
        #: Pointers to what there is no value of, and to the whole.
        self.never = ["#"]
        #: By the identity of what is written (which is kept for that) and its keys; its node once it is there.
        self._made: dict[tuple[int, int], tuple[Any, Ref, Node | None, bool]] = {}
        self._names = self._merges = self._members = 0

    def value(self, schema: Any, pointer: str, keys: _Keys = _STRINGS) -> Node | None:
        """A value that is valid; None if there is none. Each schema is written once.

        With `_KEYWORDS` as its keys it is a call's arguments.
        """
        if isinstance(schema, bool):
            schema = _TRUE if schema else _FALSE
        if not isinstance(schema, Mapping):
            self._refuse(pointer, "is no JSON Schema")
        if schema is _FALSE:
            return None
        made = id(schema), id(keys)
        if made in self._made:
            _, rule, node, done = self._made[made]
            return node if done else rule
        rule = self._new()
        self._made[made] = (schema, rule, None, False)
        node = self._written(schema, pointer, keys)
        if node == rule:
            self._refuse(pointer, "refers to itself")
        if node is None:
            self.never.insert(-1, pointer)
        # One of which there is no value may have been referred to from within: then that never ends.
        self.rules[rule.name] = rule if node is None else node
        if not isinstance(node, Ref | Pattern | Literal | JsonSchema | None):
            node = rule
        self._made[made] = (schema, rule, node, True)
        return node

    def members(self, schema: Mapping[str, Any], pointer: str, keys: _Keys) -> Node | None:
        """The members of an object, with commas between them; None if there can be none such."""
        self._lose(schema, pointer, _NEVER.intersection(_ABOUT["object"]))
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            self._refuse(pointer, "has no valid properties or required")
        others = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
        other = self.value(others, f"{pointer}/additionalProperties")
        values = {name: self.value(it, f"{pointer}/properties/{_step(name)}") for name, it in properties.items()}
        values |= {name: other for name in required if isinstance(name, str) and name not in values}
        needed = frozenset(name for name in required if isinstance(name, str))
        if never := [name for name, value in values.items() if value is None and name in needed]:
            self.never.insert(-1, f"{pointer}/properties/{_step(never[0])}")
            return None
        self._members += len(values)
        if self._members > _MOST_MEMBERS:
            self._refuse(pointer, f"is where the properties of one tool get to be more than {_MOST_MEMBERS}")
        names = list(values)
        few = sum(map(len, names)) <= _MOST_NAMES and max(map(len, names), default=0) <= _LONGEST_NAME
        rest = self._rule(keys.other(names, other)) if other is not None and few else None
        tail: Node | None = Repeat(InOrder((COMMA, rest)), 0) if rest else None
        starts: list[Node] = [InOrder((rest, tail))] if rest and tail else []
        optional = True
        for name, value in reversed(values.items()):
            if value is None:
                continue
            member = self._rule(keys.member(name, value))
            start = InOrder((member, tail)) if tail else member
            more = InOrder((COMMA, member))
            if name in needed:
                starts, optional = [start], False
            else:
                starts = [start, *starts]
            after: Node = more if name in needed else Optional(more)
            tail = self._rule(InOrder((after, tail)) if tail else after)
        if not starts:
            return _NOTHING
        whole: Node = Choice(tuple(starts)) if len(starts) > 1 else starts[0]
        return Optional(whole) if optional else whole

    # -- any schema ---------------------------------------------------------------------------------------------------

    def _written(self, schema: Mapping[str, Any], pointer: str, keys: _Keys) -> Node | None:
        asserted = [key for key in schema if key in _ASSERTIONS]
        if "$ref" in schema:
            self.lost += (f"{pointer}/{key}" for key in asserted if (key, schema[key]) != ("type", "object"))
            self.lost.remove(f"{pointer}/$ref")
            return self.value(*self._referred(schema["$ref"], pointer), keys)
        part = next((part for part in _PARTS if part in schema), None)
        if part is not None and "const" not in schema and "enum" not in schema:
            return self._parts(schema, part, pointer, keys)
        if keys is _KEYWORDS:
            self._lose(schema, pointer, ("const", "enum", "not", "if"))
            return self.members(schema, pointer, keys)
        if not asserted:
            return _ANY
        if "const" in schema or "enum" in schema:
            return self._values(schema, pointer)
        self._lose(schema, pointer, ("not", "if"))
        return _choice([self._of_type(kind, schema, pointer) for kind in self._types(schema, pointer)])

    def _types(self, schema: Mapping[str, Any], pointer: str) -> list[str]:
        named = schema.get("type", list(_TYPES))
        types = [named] if isinstance(named, str) else named
        if not isinstance(types, list) or not all(kind in (*_TYPES, "integer") for kind in types):
            self._refuse(f"{pointer}/type", "is no type of JSON Schema")
        return [kind for kind in dict.fromkeys(types) if kind != "integer" or "number" not in types]

    def _values(self, schema: Mapping[str, Any], pointer: str) -> Node | None:
        """One of the values that a schema lists, if it is of a type that the schema has."""
        listed = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(listed, list):
            self._refuse(f"{pointer}/enum", "is no list")
        kinds = self._types(schema, pointer)
        valid = [value for value in listed if _is_one_of(value, kinds)]
        self._lose(schema, pointer, _ASSERTIONS - {"type", "enum", "const"})
        if "const" in schema and "enum" in schema:
            self.lost.append(f"{pointer}/enum")
        return _one_of(valid)

    def _parts(self, schema: Mapping[str, Any], keyword: str, pointer: str, keys: _Keys) -> Node | None:
        """What `allOf`, `anyOf` or `oneOf` say together with what stands beside them, as far as that can be said."""
        parts = schema[keyword]
        if not isinstance(parts, list) or not parts:
            self._refuse(f"{pointer}/{keyword}", "is no list of schemas")
        base = {key: value for key, value in schema.items() if key != keyword}
        if keyword == "allOf":
            whole: Any = base
            for part in parts:
                whole = self._merged(whole, part, pointer)
                if whole is None:
                    self.lost.append(f"{pointer}/{keyword}")
                    whole = base
                    break
            return self.value(whole, pointer, keys)
        if keyword == "oneOf" and not _apart(parts):
            self.lost.append(f"{pointer}/{keyword}")
        merged = [self._merged(base, part, pointer) for part in parts]
        if any(part is None for part in merged):
            self.lost.append(f"{pointer}/{keyword}")
            return self.value(base, pointer, keys)
        places = [f"{pointer}/{keyword}/{i}" if it is parts[i] else pointer for i, it in enumerate(merged)]
        return _choice([self.value(part, place, keys) for part, place in zip(merged, places, strict=True)])

    def _merged(self, base: Any, part: Any, pointer: str) -> Any:
        """One schema that says what two say; None where that takes more than putting them side by side."""
        if isinstance(base, bool) or isinstance(part, bool):
            return False if base is False or part is False else part if base is True else base
        if not isinstance(base, Mapping) or not isinstance(part, Mapping):
            self._refuse(pointer, "is made of what is no JSON Schema")
        said_by_part = {"type"} if base.get("type") == part.get("type") else set()
        if _ASSERTIONS.isdisjoint(base.keys() - said_by_part):
            return part
        self._merges += 1
        if self._merges > _MOST_MERGES:
            return None
        for _ in range(32):
            if "$ref" not in part or not _ASSERTIONS.isdisjoint(part.keys() - {"$ref"}):
                break
            part = self._referred(part["$ref"], pointer)[0]
            if not isinstance(part, Mapping):
                return self._merged(base, part, pointer)
        said = dict(base)
        for key in (key for key in part if key in _ASSERTIONS):
            if key not in base or base[key] == part[key]:
                said[key] = part[key]
            elif key == "required" and isinstance(base[key], list) and isinstance(part[key], list):
                said[key] = [*base[key], *(name for name in part[key] if name not in base[key])]
            elif key == "properties" and isinstance(base[key], Mapping) and isinstance(part[key], Mapping):
                if any(base[key][name] != it for name, it in part[key].items() if name in base[key]):
                    return None
                said[key] = {**base[key], **part[key]}
            else:
                return None
        if "$ref" in said:
            return None
        # What is allowed beside the properties of one is not what is beside those of both.
        closed = base.get("additionalProperties", True), part.get("additionalProperties", True)
        apart = base.get("properties", {}) != part.get("properties", {})
        return None if apart and closed != (True, True) and "properties" in part else said

    def _referred(self, reference: Any, pointer: str) -> tuple[Any, str]:
        at: Any = self._root
        steps = reference[1:].split("/")[1:] if isinstance(reference, str) and reference[:2] in ("#", "#/") else None
        for step in steps or ():
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(at, Mapping) and step in at:
                at = at[step]
            elif isinstance(at, list) and step.isdecimal() and len(step) < 9 and int(step) < len(at):
                at = at[int(step)]
            else:
                steps = None
                break
        if steps is None:
            self._refuse(f"{pointer}/$ref", "points at nothing in it")
        return at, reference

    # -- values of one type -------------------------------------------------------------------------------------------

    def _of_type(self, kind: str, schema: Mapping[str, Any], pointer: str) -> Node | None:
        match kind:
            case "null":
                return _NULL
            case "boolean":
                return _BOOLEAN
            case "string":
                return self._string(schema, pointer)
            case "array":
                return self._array(schema, pointer)
            case "object":
                members = self.members(schema, pointer, _STRINGS)
                return None if members is None else _bracketed("{", "}", members)
        bounds = {key: schema[key] for key in _ABOUT["number"] if key in schema}
        if not bounds:
            return _NUMBER if kind == "number" else _INTEGER
        return JsonSchema({"type": kind, **bounds}, self._origin, pointer)

    def _string(self, schema: Mapping[str, Any], pointer: str) -> Node | None:
        said = {key: schema[key] for key in _ABOUT["string"] if key in schema}
        if said.get("format") not in (None, *_FORMATS):
            self.lost.append(f"{pointer}/format")
            del said["format"]
        if not {"pattern", "format"}.isdisjoint(said):
            return JsonSchema({"type": "string", **said}, self._origin, pointer)
        shortest, longest = self._range(said, pointer, "minLength", "maxLength")
        return None if longest is not None and longest < shortest else string(shortest, longest)

    def _array(self, schema: Mapping[str, Any], pointer: str) -> Node | None:
        self._lose(schema, pointer, _NEVER.intersection(_ABOUT["array"]))
        first, items = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(items, list):  # in drafts before 2020-12
            first, items = items, schema.get("additionalItems", True)
        if not isinstance(first, list):
            self._refuse(f"{pointer}/prefixItems", "is no list")
        least, most = self._range(schema, pointer, "minItems", "maxItems")
        item = self.value(items, f"{pointer}/items") if most is None or most > len(first) else None
        values = [self.value(it, f"{pointer}/prefixItems/{i}") for i, it in enumerate(first[:most])]
        values = values[: values.index(None)] if None in values else values
        ended = len(values) < len(first) or item is None
        if (ended and least > len(values)) or (most is not None and most < least):
            return None
        # From the end: what may stand behind the values before.
        tail: Node | None = None
        if not ended and item is not None:
            if not values:
                return _bracketed("[", "]", _several(item, least, most))
            left = None if most is None else most - len(values)
            tail = Repeat(InOrder((COMMA, item)), max(least - len(values), 0), left)
        for i, value in reversed([*enumerate(values)]):
            assert value is not None
            here = InOrder((COMMA, value) if i else (value,))
            here = InOrder((*here.items, tail)) if tail else here
            tail = self._rule(here if i < least else Optional(here))
        return _bracketed("[", "]", tail)

    def _range(self, schema: Mapping[str, Any], pointer: str, lower: str, upper: str) -> tuple[int, int | None]:
        bounds = [schema.get(lower, 0), schema.get(upper)]
        for key, bound in zip((lower, upper), bounds, strict=True):
            whole = isinstance(bound, float) and bound.is_integer()
            if bound is None and key not in schema:
                continue
            if isinstance(bound, bool) or not (isinstance(bound, int) or whole) or bound < 0:
                self._refuse(f"{pointer}/{key}", "is no number of anything")
        return int(bounds[0]), None if bounds[1] is None else int(bounds[1])

    # -- names and complaints -----------------------------------------------------------------------------------------

    def _new(self) -> Ref:
        self._names += 1
        if self._names > _MOST_RULES:
            self._refuse("#", "is too large")
        return Ref(f"{self._prefix}{self._names}")

    def _rule(self, node: Node) -> Ref:
        rule = self._new()
        self.rules[rule.name] = node
        return rule

    def _lose(self, schema: Mapping[str, Any], pointer: str, keywords: Any) -> None:
        self.lost += (f"{pointer}/{key}" for key in schema if key in keywords and schema[key] is not False)

    def _refuse(self, pointer: str, complaint: str) -> NoReturn:
        raise SchemaRefused(f"{self._origin} cannot be enforced: {pointer:.300} {complaint}", param=self._origin)


_FORMATS = frozenset("date date-time duration email hostname ipv4 ipv6 json-pointer time uri uuid".split())


def _bracketed(opening: str, closing: str, inside: Node | None) -> Node:
    items = (Pattern(quoted(opening) + GAP), inside, Pattern(GAP + quoted(closing)))
    return InOrder(tuple(item for item in items if item is not None))


def _several(item: Node, least: int = 1, most: int | None = None) -> Node:
    """`item`, with commas between; `most` is one at least."""
    more = Repeat(InOrder((COMMA, item)), max(least - 1, 0), None if most is None else most - 1)
    some: Node = item if most == 1 else InOrder((item, more))
    return some if least else Optional(some)


def _choice(options: list[Node | None]) -> Node | None:
    possible = tuple(option for option in options if option is not None)
    return Choice(possible) if len(possible) > 1 else possible[0] if possible else None


def _is_one_of(value: Any, types: list[str]) -> bool:
    kind = kind_of(value)
    whole = kind == "number" and (isinstance(value, int) or value.is_integer())
    return kind in types or (whole and "integer" in types)


def _apart(parts: list[Any]) -> bool:
    """Whether no value can be valid to two of some schemas, as far as their types or values tell."""
    seen: set[str] = set()
    for part in parts:
        said = part if isinstance(part, Mapping) else {}
        if "const" in said or isinstance(said.get("enum"), list):
            values = [said["const"]] if "const" in said else said["enum"]
            told = {json.dumps(value, sort_keys=True) for value in values}
            kinds = {kind_of(value) for value in values}
        else:
            named = said.get("type", ())
            kinds = {named} if isinstance(named, str) else {kind for kind in named if isinstance(kind, str)}
            kinds = {"number" if kind == "integer" else kind for kind in kinds}
            told = kinds
        if not told or told & seen or (told != kinds and kinds & seen):
            return False
        seen |= told
    return True


def _one_of(values: list[Any]) -> Node | None:
    """One of some values of JSON."""
    several = [value for value in values if isinstance(value, list | Mapping)]
    forms: dict[str, None] = {}
    for value in values:
        if isinstance(value, str):
            forms.update(dict.fromkeys(_forms(value)))
        elif not isinstance(value, list | Mapping):
            forms[python(json.dumps(value))] = None
    scalars = [Pattern("|".join(map(quoted, forms)))] if forms else []
    return _choice([*scalars, *map(_constant, several)])


def _constant(value: Any) -> Node:
    """Just this list or object, with any white space in it."""
    if isinstance(value, Mapping):
        items = [_STRINGS.member(key, _just(it)) for key, it in value.items()]
    else:
        items = list(map(_just, value))
    inside = [part for item in items for part in (COMMA, item)][1:]
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    return _bracketed(opening, closing, InOrder(tuple(inside)) if inside else None)


def _just(value: Any) -> Node:
    node = _one_of([value])
    assert node is not None
    return node


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|true|false|null')
_CONSTANTS = {"true": "True", "false": "False", "null": "None"}


def python(value: str) -> str:
    """JSON text as Python."""
    return _JSON_TOKEN.sub(_python_token, value)


def _python_token(token: re.Match[str]) -> str:
    text = token.group()
    # JSON's escapes are Python's, but for the one of the slash, which nobody needs.
    return _CONSTANTS.get(text) or re.sub(r"\\(.)", lambda escape: "/" if escape[1] == "/" else escape[0], text)


def _step(key: str) -> str:
    """A key as a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
