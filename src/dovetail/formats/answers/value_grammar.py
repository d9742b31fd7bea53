"""The grammar of a tool's arguments in another syntax than JSON, from its JSON Schema: `city="Paris", days=[1, 2]`.

The grammar itself enforces names, types, `enum`, `const`, properties (declared, required and additional), the lengths
of lists and strings, and `anyOf` and `oneOf` with nothing beside them. Ranges, patterns and formats stay in it as
JSON Schemas, or are the syntax's own. Everything else is listed, and checked after the answer. Keys come in the
declared order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from dovetail.errors import SchemaRefused
from dovetail.formats.declared.value_syntax import ANY, INTEGER, NUMBER, Keys, Syntax, choice
from dovetail.grammar import (
    Choice,
    Concat,
    ExactText,
    JsonSchema,
    Loosened,
    Maybe,
    Node,
    OtherSyntax,
    Regex,
    Repeat,
    RuleRef,
)
from dovetail.grammar.cache import Cache
from dovetail.grammar.schemas.exclusive import are_exclusive
from dovetail.grammar.schemas.keywords import ABOUT, ASSERTIONS, TYPES, kind_of
from dovetail.grammar.schemas.references import Place, References, step
from dovetail.grammar.schemas.references import pointer as pointer_to

_NOTHING = Concat(())
_TRUE: Mapping[str, Any] = {}

_PARTS = ("allOf", "anyOf", "oneOf")
#: Keywords that no grammar enforces.
_NEVER = frozenset(
    "not if $dynamicRef $recursiveRef patternProperties propertyNames minProperties maxProperties dependentRequired "
    "dependentSchemas dependencies uniqueItems contains minContains maxContains unevaluatedProperties "
    "unevaluatedItems".split()
)
_NEVER_OF_ANY = _NEVER.difference(ABOUT["object"], ABOUT["array"])
#: Limits for one tool. Each member's rule refers to the next one's, and llguidance crashes on a chain of 3,000.
_MOST_RULES, _MOST_MEMBERS = 30_000, 1_000
#: Limits for the names from which an undeclared key has to differ: characters of all names, and of the longest one.
_MOST_NAMES, _LONGEST_NAME = 4_000, 200

_KEPT: Cache[tuple[Node, dict[str, Node]]] = Cache(1024, 4 * 2**20)


def arguments(schema: Mapping[str, Any], origin: str, prefix: str, syntax: Syntax) -> tuple[Node, dict[str, Node]]:
    """The grammar of the members of a call's arguments, and the rules that it needs besides `anything`'s.

    The names of the rules begin with `prefix`. Raises `SchemaRefused` for a schema that makes no sense, or for which no
    value is valid.
    """
    # Building the grammar takes milliseconds, and the same tools come with every turn.
    key = json.dumps((origin, prefix, schema))
    return _KEPT.get((syntax, key), len(key), lambda: _arguments(schema, origin, prefix, syntax))


def _arguments(schema: Mapping[str, Any], origin: str, prefix: str, syntax: Syntax) -> tuple[Node, dict[str, Node]]:
    writer = _Writer(schema, origin, prefix, syntax)
    try:
        written = writer.value(schema, "#", syntax.arguments)
    except RecursionError:
        message = f"{origin} cannot be enforced: # refers through too many levels to be written in the model's syntax"
        raise SchemaRefused(message, param=origin) from None
    if written is None:
        message = f"{origin} cannot be enforced: nothing can be valid to {writer.never[0]:.300}"
        raise SchemaRefused(message, param=origin)
    item: Node = OtherSyntax(written, schema, origin)
    if lost := tuple(dict.fromkeys(writer.lost)):
        item = Loosened(item, origin, lost)
    return item, writer.rules


class _Writer:
    """Writes one tool's schema. `lost` are JSON pointers to the keywords that the grammar does not enforce."""

    def __init__(self, root: Mapping[str, Any], origin: str, prefix: str, syntax: Syntax) -> None:
        self._origin, self._prefix, self._syntax = origin, prefix, syntax
        self._references = References(root)
        self.rules: dict[str, Node] = {}
        self.lost: list[str] = []
        #: Pointers to the parts for which no value is valid, innermost first, and to the whole.
        self.never = ["#"]
        #: By the identities of a schema and of its `Keys`: the schema (kept alive, so that its identity stays unique),
        #: the rule, the node, and whether the node is finished.
        self._made: dict[tuple[int, int], tuple[Any, RuleRef, Node | None, bool]] = {}
        self._names = self._members = 0

    def value(self, schema: Any, pointer: str, keys: Keys | None = None) -> Node | None:
        """A valid value; None if there is none. Each schema is written once.

        `keys`: the keys of its members, if it is an object. With `Syntax.arguments`, the value is a call's arguments.
        """
        keys = keys or self._syntax.members
        if schema is False:
            return None
        if schema is True:
            schema = _TRUE
        if not isinstance(schema, Mapping):
            self._refuse(pointer, "is no JSON Schema")
        made = id(schema), id(keys)
        if made in self._made:
            _, rule, node, done = self._made[made]
            return node if done else rule
        rule = self._new()
        self._made[made] = (schema, rule, None, False)
        node = self._written(schema, pointer, keys)
        if node == rule:  # a schema that is only a reference to itself has no values
            node = None
        if node is None:
            self.never.insert(-1, pointer)
        # The schema may contain a reference to itself. If no value is valid, that rule never matches.
        self.rules[rule.name] = rule if node is None else node
        if not isinstance(node, RuleRef | Regex | ExactText | JsonSchema | None):
            node = rule
        self._made[made] = (schema, rule, node, True)
        return node

    def members(self, schema: Mapping[str, Any], pointer: str, keys: Keys) -> Node | None:
        """The members of an object, separated; None if no object is valid."""
        self._lose(schema, pointer, _NEVER.intersection(ABOUT["object"]))
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            self._refuse(pointer, "has no valid properties or required")
        others = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
        other = self.value(others, f"{pointer}/additionalProperties")
        values = {name: self.value(it, f"{pointer}/properties/{step(name)}") for name, it in properties.items()}
        values |= {name: other for name in required if isinstance(name, str) and name not in values}
        needed = frozenset(name for name in required if isinstance(name, str))
        if never := [name for name, value in values.items() if value is None and name in needed]:
            self.never.insert(-1, f"{pointer}/properties/{step(never[0])}")
            return None
        unreadable = (name for name in values if not self._syntax.reads_back(name))
        self.lost += (f"{pointer}/properties/{step(name)}" for name in unreadable)
        self._members += len(values)
        if self._members > _MOST_MEMBERS:
            self._refuse(pointer, f"makes more than {_MOST_MEMBERS} properties in one tool")
        names = list(values)
        few = sum(map(len, names)) <= _MOST_NAMES and max(map(len, names), default=0) <= _LONGEST_NAME
        rest = self._rule(keys.other(names, other)) if other is not None and few else None
        if rest and not self._syntax.repeats_names:
            self.lost.append(f"{pointer}/additionalProperties")
        tail: Node | None = Repeat(self._syntax.then(rest), 0) if rest else None
        starts: list[Node] = [Concat((rest, tail))] if rest and tail else []
        optional = True
        for name, value in reversed(values.items()):
            if value is None:
                continue
            member = self._rule(keys.member(name, value))
            start = Concat((member, tail)) if tail else member
            more = self._syntax.then(member)
            if name in needed:
                starts, optional = [start], False
            else:
                starts = [start, *starts]
            after: Node = more if name in needed else Maybe(more)
            tail = self._rule(Concat((after, tail)) if tail else after)
        if not starts:
            return _NOTHING
        whole: Node = Choice(tuple(starts)) if len(starts) > 1 else starts[0]
        return Maybe(whole) if optional else whole

    # -- any schema ---------------------------------------------------------------------------------------------------

    def _written(self, schema: Mapping[str, Any], pointer: str, keys: Keys) -> Node | None:
        asserted = [key for key in schema if key in ASSERTIONS]
        if "$ref" in schema:
            self.lost += (f"{pointer}/{key}" for key in asserted if (key, schema[key]) != ("type", "object"))
            self.lost.remove(f"{pointer}/$ref")
            target = self._referred(schema["$ref"], pointer)
            return self.value(target.schema, pointer_to(target.path), keys)
        part = next((part for part in _PARTS if part in schema), None)
        if part is not None and "const" not in schema and "enum" not in schema:
            return self._parts(schema, part, pointer, keys)
        if keys is self._syntax.arguments:
            self._lose(schema, pointer, ("const", "enum", *_NEVER_OF_ANY))
            return self.members(schema, pointer, keys)
        if not asserted:
            return ANY
        if "const" in schema or "enum" in schema:
            return self._values(schema, pointer)
        self._lose(schema, pointer, _NEVER_OF_ANY)
        kinds = self._types(schema, pointer)
        if self._syntax.bare_strings and "string" in kinds and len(kinds) > 1:
            self._lose(schema, pointer, {*asserted} - {"type"} - _NEVER_OF_ANY)
        return choice([self._of_type(kind, schema, pointer) for kind in kinds])

    def _types(self, schema: Mapping[str, Any], pointer: str) -> list[str]:
        named = schema.get("type", list(TYPES))
        types = [named] if isinstance(named, str) else named
        if not isinstance(types, list) or not all(kind in (*TYPES, "integer") for kind in types):
            self._refuse(f"{pointer}/type", "is no type of JSON Schema")
        return [kind for kind in dict.fromkeys(types) if kind != "integer" or "number" not in types]

    def _values(self, schema: Mapping[str, Any], pointer: str) -> Node | None:
        """One of the values that a schema lists, restricted to the schema's types."""
        listed = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(listed, list):
            self._refuse(f"{pointer}/enum", "is no list")
        kinds = self._types(schema, pointer)
        valid = [value for value in listed if _is_one_of(value, kinds)]
        self._lose(schema, pointer, ASSERTIONS - {"type", "enum", "const"})
        mixed = self._syntax.bare_strings and len({isinstance(value, str) for value in valid}) > 1
        if "enum" in schema and ("const" in schema or mixed):
            self.lost.append(f"{pointer}/enum")
        return self._syntax.one_of(valid)

    def _parts(self, schema: Mapping[str, Any], keyword: str, pointer: str, keys: Keys) -> Node | None:
        """The values of `anyOf` or `oneOf`, or of an `allOf` of one part. If there is more to satisfy than one part,
        they are not enforced."""
        parts = schema[keyword]
        if not isinstance(parts, list) or not parts:
            self._refuse(f"{pointer}/{keyword}", "is no list of schemas")
        kinds = [part.get("type") if isinstance(part, Mapping) else None for part in parts]
        beside = {key for key in schema if key in ASSERTIONS} - {keyword}
        if keys is self._syntax.arguments or kinds == [schema.get("type")] * len(parts):
            beside.discard("type")
        if beside or (keyword == "allOf" and len(parts) > 1):
            self.lost.append(f"{pointer}/{keyword}")
            return self.value({key: value for key, value in schema.items() if key != keyword}, pointer, keys)
        mixed = self._syntax.bare_strings and any(map(_asserts_more, parts))
        if mixed or (keyword == "oneOf" and not are_exclusive(self._references, Place(schema, (pointer,), ""), parts)):
            self.lost.append(f"{pointer}/{keyword}")
        return choice([self.value(part, f"{pointer}/{keyword}/{i}", keys) for i, part in enumerate(parts)])

    def _referred(self, reference: Any, pointer: str) -> Place:
        place = self._references.resolved(self._references.root, reference)
        if place is None:
            self._refuse(f"{pointer}/$ref", "points at nothing in it")
        return place

    # -- values of one type -------------------------------------------------------------------------------------------

    def _of_type(self, kind: str, schema: Mapping[str, Any], pointer: str) -> Node | None:
        match kind:
            case "null":
                return self._syntax.null
            case "boolean":
                return self._syntax.boolean
            case "string":
                return self._string(schema, pointer)
            case "array":
                return self._array(schema, pointer)
            case "object":
                members = self.members(schema, pointer, self._syntax.members)
                return None if members is None else self._syntax.object(members)
        bounds = {key: schema[key] for key in ABOUT["number"] if key in schema}
        if not bounds:
            return NUMBER if kind == "number" else INTEGER
        return JsonSchema({"type": kind, **bounds}, self._origin, pointer)

    def _string(self, schema: Mapping[str, Any], pointer: str) -> Node | None:
        own = {key: schema[key] for key in ABOUT["string"] if key in schema}
        if own.get("format") not in (None, *_FORMATS):
            self.lost.append(f"{pointer}/format")
            del own["format"]
        if {"pattern", "format"}.isdisjoint(own):
            shortest, longest = self._range(own, pointer, "minLength", "maxLength")
            if longest is not None and longest < shortest:
                return None
            own = {key: int(bound) for key, bound in own.items()}
        return self._syntax.string(own, self._origin, pointer)

    def _array(self, schema: Mapping[str, Any], pointer: str) -> Node | None:
        self._lose(schema, pointer, _NEVER.intersection(ABOUT["array"]))
        first, items = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(items, list):  # in drafts before 2020-12
            first, items = items, schema.get("additionalItems", True)
        if not isinstance(first, list):
            self._refuse(f"{pointer}/prefixItems", "is no list")
        least, most = self._range(schema, pointer, "minItems", "maxItems")
        item = self._item(items, f"{pointer}/items") if most is None or most > len(first) else None
        values = [self._item(it, f"{pointer}/prefixItems/{i}") for i, it in enumerate(first[:most])]
        values = values[: values.index(None)] if None in values else values
        ended = len(values) < len(first) or item is None
        if (ended and least > len(values)) or (most is not None and most < least):
            return None
        # Built from the end: each step is what may follow the values before it.
        tail: Node | None = None
        if not ended and item is not None:
            if not values:
                return self._syntax.array(self._syntax.several(item, least, most))
            left = None if most is None else most - len(values)
            tail = Repeat(self._syntax.then(item), max(least - len(values), 0), left)
        for i, value in reversed([*enumerate(values)]):
            assert value is not None
            here = self._syntax.then(value) if i else value
            here = Concat((here, tail)) if tail else here
            tail = self._rule(here if i < least else Maybe(here))
        return self._syntax.array(tail)

    def _item(self, schema: Any, pointer: str) -> Node | None:
        value = self.value(schema, pointer)
        return None if value is None else self._syntax.item(value)

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

    def _new(self) -> RuleRef:
        self._names += 1
        if self._names > _MOST_RULES:
            self._refuse("#", "is too large")
        return RuleRef(f"{self._prefix}{self._names}")

    def _rule(self, node: Node) -> RuleRef:
        rule = self._new()
        self.rules[rule.name] = node
        return rule

    def _lose(self, schema: Mapping[str, Any], pointer: str, keywords: Any) -> None:
        self.lost += (f"{pointer}/{key}" for key in schema if key in keywords and schema[key] is not False)

    def _refuse(self, pointer: str, complaint: str) -> NoReturn:
        raise SchemaRefused(f"{self._origin} cannot be enforced: {pointer:.300} {complaint}", param=self._origin)


_FORMATS = frozenset("date date-time duration email hostname ipv4 ipv6 json-pointer time uri uuid".split())


def _asserts_more(schema: Any) -> bool:
    """Whether a schema asserts more than a type."""
    return isinstance(schema, Mapping) and any(key in ASSERTIONS and key != "type" for key in schema)


def _is_one_of(value: Any, types: list[str]) -> bool:
    kind = kind_of(value)
    whole = kind == "number" and (isinstance(value, int) or value.is_integer())
    return kind in types or (whole and "integer" in types)
