"""The keywords of JSON Schema: which of them assert something about a value, and about a value of which type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: An integer is a number.
TYPES = ("null", "boolean", "number", "string", "array", "object")
#: By type, the assertions about values of this type alone.
ABOUT: Mapping[str, tuple[str, ...]] = {
    "null": (),
    "boolean": (),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": (
        *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems"),
        *("uniqueItems", "contains", "minContains", "maxContains"),
    ),
    "object": (
        *("properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    ),
}
TYPE_OF = {keyword: kind for kind, keywords in ABOUT.items() for keyword in keywords}
#: Keywords that apply other schemas to the same value.
COMPOUND = ("$ref", "allOf", "anyOf", "oneOf")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ABOUT_ALL = ("type", "enum", "const", "not", "if", "$dynamicRef", "$recursiveRef", *COMPOUND)
ASSERTIONS = frozenset((*ABOUT_ALL, *TYPE_OF))
#: Keywords whose value is an object of schemas by name.
BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
#: Keywords whose value is data, in which nothing is a schema.
VALUES = frozenset(("enum", "const", "default", "examples", "example"))
#: Values with which a keyword asserts nothing.
_IDLE: Mapping[str, tuple[Any, ...]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
}
#: Keywords that assert something only beside one of these.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "if": ("then", "else"),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}


def asserts(schema: Mapping[str, Any], keyword: str) -> bool:
    """Whether a keyword of `schema` asserts anything about a value."""
    value = schema[keyword]
    if any(value == idle and type(value) is type(idle) for idle in _IDLE.get(keyword, ())):
        return False
    return keyword in ASSERTIONS and (keyword not in _NEEDED or not schema.keys().isdisjoint(_NEEDED[keyword]))


def is_old(root: Any) -> bool:
    """Whether `$schema` of a whole schema names a draft before 2020-12. These drafts have no `prefixItems`."""
    return isinstance(root, Mapping) and _OLD_DRAFT.search(str(root.get("$schema"))) is not None


_OLD_DRAFT = re.compile(r"draft-0[3467]|draft/2019-09")


def may_be(schema: Mapping[str, Any], kind: str) -> bool:
    """Whether the `type` of a schema allows values of the type `kind`."""
    declared = schema.get("type", kind)
    return kind in declared if isinstance(declared, list) else kind == declared


def listed(schema: Any, keyword: str) -> list[Any]:
    """The list under a keyword of `schema`; empty if there is none."""
    value = schema.get(keyword) if isinstance(schema, Mapping) else None
    return value if isinstance(value, list) else []


def kind_of(value: Any) -> str:
    """The JSON Schema type of a value. Every number is a "number"."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
    return "object" if isinstance(value, Mapping) else "array"
