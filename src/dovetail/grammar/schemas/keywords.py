"""JSON Schema's assertions: which keywords say something of a value, and of a value of which type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: An integer is a number.
TYPES = ("null", "boolean", "number", "string", "array", "object")
#: Those that say something of values of one type only.
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
#: Those that hold schemas which have to be valid for the same value.
COMPOUND = ("$ref", "allOf", "anyOf", "oneOf")
ABOUT_ALL = ("type", "enum", "const", "not", "if", "$dynamicRef", "$recursiveRef", *COMPOUND)
ASSERTIONS = frozenset((*ABOUT_ALL, *TYPE_OF))
#: Those that hold schemas by name, and those that hold values, in which nothing is a schema.
BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
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
#: What has to stand beside a keyword for it to assert something: one of these.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "if": ("then", "else"),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}


def asserts(schema: Mapping[str, Any], keyword: str) -> bool:
    """Whether a keyword of a schema says something of a value."""
    value = schema[keyword]
    if any(value == idle and type(value) is type(idle) for idle in _IDLE.get(keyword, ())):
        return False
    return keyword in ASSERTIONS and (keyword not in _NEEDED or not schema.keys().isdisjoint(_NEEDED[keyword]))


def is_old(root: Any) -> bool:
    """Whether a whole schema is of a draft before 2020-12, by its own word: these know no `prefixItems`."""
    return isinstance(root, Mapping) and _OLD_DRAFT.search(str(root.get("$schema"))) is not None


_OLD_DRAFT = re.compile(r"draft-0[3467]|draft/2019-09")
