"""The grammar of a tool's arguments in Python, from its JSON Schema: `city="Paris", days=[1, 2]`.

The grammar itself enforces names, types, `enum`, `const`, properties (declared, required and additional), the lengths
of lists and strings, `anyOf`, and `allOf` as far as its parts can be merged. Ranges, patterns and formats stay in it as
JSON Schemas, whose numbers and strings are also Python's. Everything else is listed, and checked after the answer.

Strings may have quotes of either kind; with a pattern or format, only double quotes. Keys come in the declared order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from dovetail.errors import SchemaRefused
from dovetail.formats.python_values import (
    ANY,
    BOOLEAN,
    COMMA,
    INTEGER,
    KEYWORDS,
    NULL,
    NUMBER,
    STRINGS,
    Keys,
    bracketed,
    choice,
    one_of,
    several,
    string,
)
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
_FALSE: Mapping[str, Any] = {"not": {}}

_PARTS = ("allOf", "anyOf", "oneOf")
#: Keywords that no grammar enforces.
_NEVER = frozenset(
    "not if $dynamicRef $recursiveRef patternProperties propertyNames minProperties maxProperties dependentRequired "
    "dependentSchemas dependencies uniqueItems contains minContains maxContains unevaluatedProperties "
    "unevaluatedItems".split()
)
_NEVER_OF_ANY = _NEVER.difference(ABOUT["object"], ABOUT["array"])
#: Limits for one tool. Each member's rule refers to the next one's, and llguidance crashes on a chain of 3,000.
_MOST_RULES, _MOST_MERGES, _MOST_MEMBERS = 30_000, 500, 1_000
#: Limits for the names from which an undeclared key has to differ: all characters, and those of the longest name.
_MOST_NAMES, _LONGEST_NAME = 4_000, 200

_KEPT: Cache[tuple[Node, dict[str, Node]]] = Cache(1024, 4 * 2**20)


def arguments(schema: Mapping[str, Any], origin: str, prefix: str) -> tuple[Node, dict[str, Node]]:
    """The grammar between the brackets of a call, and the rules that it needs besides those of `anything`.

    The names of the rules begin with `prefix`. Raises `SchemaRefused` for a schema that makes no sense, or for which no
    value is valid.
    """
    # Building the grammar takes milliseconds, and the same tools come with every turn.
    key = json.dumps((origin, prefix, schema))
    return _KEPT.get(key, len(key), lambda: _arguments(schema, origin, prefix))


def _arguments(schema: Mapping[str, Any], origin: str, prefix: str) -> tuple[Node, dict[str, Node]]:
    writer = _Writer(schema, origin, prefix)
    try:
        written = writer.value(schema, "#", KEYWORDS)
    except RecursionError:
        message = f"{origin} cannot be enforced: # refers through too many levels to be written as Python"
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

    def __init__(self, root: Mapping[str, Any], origin: str, prefix: str) -> None:
        self._origin, self._prefix = origin, prefix
        self._references = References(root)
        self.rules: dict[str, Node] = {}
        self.lost: list[str] = []
        #: Pointers to the parts for which no value is valid, innermost first, and to the whole.
        self.never = ["#"]
        #: By the identities of a schema and of its `Keys`: the schema (kept alive, so that its identity stays unique),
        #: the rule, the node, and whether the node is finished.
        self._made: dict[tuple[int, int], tuple[Any, RuleRef, Node | None, bool]] = {}
        #: Merged schemas, by their keywords and the identities of the values. Each is written once, too.
        self._whole: dict[frozenset[tuple[str, int]], dict[str, Any]] = {}
        self._names = self._merges = self._members = 0

    def value(self, schema: Any, pointer: str, keys: Keys = STRINGS) -> Node | None:
        """A valid value; None if there is none. Each schema is written once.

        With `KEYWORDS` as `keys`, the value is a call's arguments.
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
        """The members of an object, with commas between; None if no object is valid."""
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
        self._members += len(values)
        if self._members > _MOST_MEMBERS:
            self._refuse(pointer, f"makes more than {_MOST_MEMBERS} properties in one tool")
        names = list(values)
        few = sum(map(len, names)) <= _MOST_NAMES and max(map(len, names), default=0) <= _LONGEST_NAME
        rest = self._rule(keys.other(names, other)) if other is not None and few else None
        tail: Node | None = Repeat(Concat((COMMA, rest)), 0) if rest else None
        starts: list[Node] = [Concat((rest, tail))] if rest and tail else []
        optional = True
        for name, value in reversed(values.items()):
            if value is None:
                continue
            member = self._rule(keys.member(name, value))
            start = Concat((member, tail)) if tail else member
            more = Concat((COMMA, member))
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
        if keys is KEYWORDS:
            self._lose(schema, pointer, ("const", "enum", *_NEVER_OF_ANY))
            return self.members(schema, pointer, keys)
        if not asserted:
            return ANY
        if "const" in schema or "enum" in schema:
            return self._values(schema, pointer)
        self._lose(schema, pointer, _NEVER_OF_ANY)
        return choice([self._of_type(kind, schema, pointer) for kind in self._types(schema, pointer)])

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
        if "const" in schema and "enum" in schema:
            self.lost.append(f"{pointer}/enum")
        return one_of(valid)

    def _parts(self, schema: Mapping[str, Any], keyword: str, pointer: str, keys: Keys) -> Node | None:
        """The values of `allOf`, `anyOf` or `oneOf` with the keywords beside it, as far as these can be merged."""
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
        if keyword == "oneOf" and not are_exclusive(self._references, Place(schema, (pointer,), ""), parts):
            self.lost.append(f"{pointer}/{keyword}")
        merged = [self._merged(base, part, pointer) for part in parts]
        if any(part is None for part in merged):
            self.lost.append(f"{pointer}/{keyword}")
            return self.value(base, pointer, keys)
        places = [f"{pointer}/{keyword}/{i}" if it is parts[i] else pointer for i, it in enumerate(merged)]
        return choice([self.value(part, place, keys) for part, place in zip(merged, places, strict=True)])

    def _merged(self, base: Any, part: Any, pointer: str) -> Any:
        """One schema for the values that are valid for both; None if merging the keywords is not enough."""
        if isinstance(base, bool) or isinstance(part, bool):
            return False if base is False or part is False else part if base is True else base
        if not isinstance(base, Mapping) or not isinstance(part, Mapping):
            self._refuse(pointer, "is made of what is no JSON Schema")
        shared = {"type"} if base.get("type") == part.get("type") else set()
        if ASSERTIONS.isdisjoint(base.keys() - shared):
            return part
        self._merges += 1
        if self._merges > _MOST_MERGES:
            return None
        for _ in range(32):
            if "$ref" not in part or not ASSERTIONS.isdisjoint(part.keys() - {"$ref"}):
                break
            part = self._referred(part["$ref"], pointer).schema
            if not isinstance(part, Mapping):
                return self._merged(base, part, pointer)
        merged = dict(base)
        for key in (key for key in part if key in ASSERTIONS):
            if key not in base or base[key] == part[key]:
                merged[key] = part[key]
            elif key == "required" and isinstance(base[key], list) and isinstance(part[key], list):
                more: Any = [name for name in part[key] if name not in base[key]]
                merged[key] = [*base[key], *more] if more else base[key]
            elif key == "properties" and isinstance(base[key], Mapping) and isinstance(part[key], Mapping):
                if any(base[key][name] != it for name, it in part[key].items() if name in base[key]):
                    return None
                more = part[key].keys() - base[key].keys()
                merged[key] = {**base[key], **part[key]} if more else base[key]
            else:
                return None
        if "$ref" in merged:
            return None
        # `additionalProperties` of one schema would also apply to the properties of the other.
        closed = base.get("additionalProperties", True), part.get("additionalProperties", True)
        apart = base.get("properties", {}) != part.get("properties", {})
        if apart and closed != (True, True) and "properties" in part:
            return None
        return self._whole.setdefault(frozenset((key, id(value)) for key, value in merged.items()), merged)

    def _referred(self, reference: Any, pointer: str) -> Place:
        place = self._references.resolved(self._references.root, reference)
        if place is None:
            self._refuse(f"{pointer}/$ref", "points at nothing in it")
        return place

    # -- values of one type -------------------------------------------------------------------------------------------

    def _of_type(self, kind: str, schema: Mapping[str, Any], pointer: str) -> Node | None:
        match kind:
            case "null":
                return NULL
            case "boolean":
                return BOOLEAN
            case "string":
                return self._string(schema, pointer)
            case "array":
                return self._array(schema, pointer)
            case "object":
                members = self.members(schema, pointer, STRINGS)
                return None if members is None else bracketed("{", "}", members)
        bounds = {key: schema[key] for key in ABOUT["number"] if key in schema}
        if not bounds:
            return NUMBER if kind == "number" else INTEGER
        return JsonSchema({"type": kind, **bounds}, self._origin, pointer)

    def _string(self, schema: Mapping[str, Any], pointer: str) -> Node | None:
        own = {key: schema[key] for key in ABOUT["string"] if key in schema}
        if own.get("format") not in (None, *_FORMATS):
            self.lost.append(f"{pointer}/format")
            del own["format"]
        if not {"pattern", "format"}.isdisjoint(own):
            return JsonSchema({"type": "string", **own}, self._origin, pointer)
        shortest, longest = self._range(own, pointer, "minLength", "maxLength")
        return None if longest is not None and longest < shortest else string(shortest, longest)

    def _array(self, schema: Mapping[str, Any], pointer: str) -> Node | None:
        self._lose(schema, pointer, _NEVER.intersection(ABOUT["array"]))
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
        # Built from the end: each step is what may follow the values before it.
        tail: Node | None = None
        if not ended and item is not None:
            if not values:
                return bracketed("[", "]", several(item, least, most))
            left = None if most is None else most - len(values)
            tail = Repeat(Concat((COMMA, item)), max(least - len(values), 0), left)
        for i, value in reversed([*enumerate(values)]):
            assert value is not None
            here = Concat((COMMA, value) if i else (value,))
            here = Concat((*here.items, tail)) if tail else here
            tail = self._rule(here if i < least else Maybe(here))
        return bracketed("[", "]", tail)

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


def _is_one_of(value: Any, types: list[str]) -> bool:
    kind = kind_of(value)
    whole = kind == "number" and (isinstance(value, int) or value.is_integer())
    return kind in types or (whole and "integer" in types)
