"""Tool declarations as TypeScript, which Kimi-K2.5 and later models were trained on.

Each function becomes one `type NAME = (_: {…}) => any;` with the required properties first, each group sorted by name,
and descriptions and bounds as `//` comments. A schema that has no form in this notation raises `Undeclarable`; the
caller then declares the tools as JSON, as in the model's training. Source: Moonshot's `tool_declaration_ts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.formats.declarations import SizeLimit, sorted_deeply

_INDENT = "  "
_BOUNDS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_UNION_WORDS = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}


class Undeclarable(Exception):
    """A schema has no form in this TypeScript notation."""


def declare(tools: Sequence[Mapping[str, Any]]) -> str:
    """The declaration of OpenAI-shaped `tools`, without its control tokens; "" if none of them is a function.

    Raises `Undeclarable` for a schema that has no form in this notation or is nested too deeply, and `InvalidRequest`
    for schemas that would take too many characters.
    """
    functions: list[str] = []
    limit = SizeLimit()
    try:
        for i, tool in enumerate(tools):
            limit.tool = i
            tool = sorted_deeply(tool)
            if tool.get("type") == "function" and tool.get("function"):
                functions.append(_Function(tool["function"], limit).write())
    except (RecursionError, AttributeError, TypeError, LookupError, ValueError) as error:
        raise Undeclarable(str(error)) from error
    if not functions:
        return ""
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n"


class _Function:
    """Writes one function's declaration. The schema's definitions become interfaces before the function's type."""

    def __init__(self, function: Mapping[str, Any], limit: SizeLimit) -> None:
        self._function = function
        self._limit = limit
        self._definitions: dict[str, Any] = {}
        self._refers_to_itself = False

    def write(self) -> str:
        parameters = self._function.get("parameters") or {}
        body = self._object(parameters, "")
        interfaces: list[str] = []
        if self._refers_to_itself:
            body = "parameters"
            fields = ",\n".join(self._fields(parameters, "", sort=False))
            interfaces.append("interface parameters {" + (f"\n{fields}\n" if fields else "") + "}")
        for name, schema in list(self._definitions.items()):
            note = _comment(schema["description"], "") if isinstance(schema, dict) and schema.get("description") else ""
            interfaces.append(f"{note}interface {name} {self._type(schema, '')}")
        description = self._function.get("description")
        parts = [
            "\n".join(interfaces),
            _comment(description, "").removesuffix("\n") if description else "",
            f"type {self._function.get('name', 'function')} = (_: {body}) => any;",
        ]
        return "\n".join(filter(None, parts))

    def _type(self, schema: Any, indent: str) -> str:
        """The type expression of a schema. `indent` is the indentation of the current line."""
        if schema is True or schema == {}:
            return "any"
        if schema is False:
            return "null"
        if "$ref" in schema:
            return self._limit.text(self._reference(schema["$ref"]))
        if "anyOf" in schema:
            return " | ".join(self._type(option, indent) for option in schema["anyOf"])
        if "enum" in schema:
            values = (f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"])
            return self._limit.text(" | ".join(values))
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._limit.text(" | ".join(_UNION_WORDS[word] for word in kind))
        if kind == "object":
            return self._object(schema, indent)
        if kind == "array":
            return self._array(schema, indent)
        if isinstance(kind, str):
            return "number" if kind == "integer" else self._limit.text(kind)
        raise Undeclarable(f"no type for {schema!r:.80}")

    def _reference(self, reference: Any) -> str:
        if reference == "#":
            self._refers_to_itself = True
            return "parameters"
        name = str(reference).removeprefix("#/$defs/").split("/")[-1]
        if not str(reference).startswith("#/$defs/") or name not in self._definitions:
            raise Undeclarable(f"reference {reference!r:.80}")
        return name

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        items = schema.get("items")
        if not items:
            return "Array<any>"
        note = self._notes(items, indent + _INDENT)
        if not note:
            return f"Array<{self._type(items, indent)}>"
        self._limit.add(2 * len(indent))
        return f"Array<\n{note}{indent}{_INDENT}{self._type(items, indent + _INDENT)}\n{indent}>"

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        self._definitions.update(schema.get("$defs") or {})
        fields = self._fields(schema, indent, sort=True)
        extra = schema.get("additionalProperties")
        if extra is not None:
            self._limit.add(len(indent))
            word = "any" if extra is True else "never" if extra is False else self._type(extra, indent + _INDENT)
            fields.append(f"{indent}{_INDENT}[k: string]: {word}")
        text = "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"
        self._limit.copy(len(text))
        return text

    def _fields(self, schema: Mapping[str, Any], indent: str, *, sort: bool) -> list[str]:
        properties = schema.get("properties") or {}
        required = set(schema.get("required") or ())
        names = sorted(properties, key=lambda name: (name not in required, name)) if sort else list(properties)
        return [self._field(name, properties[name], name not in required, indent + _INDENT) for name in names]

    def _field(self, name: str, schema: Any, optional: bool, indent: str) -> str:
        self._limit.add(len(name) + 2 * len(indent))  # its line, and the line of a closing brace
        default = schema.get("default") if isinstance(schema, dict) else None
        note = self._notes(schema, indent)
        if default is not None:
            shown = repr(default) if isinstance(default, int | float) else json.dumps(default, ensure_ascii=False)
            note += self._limit.text(f"{indent}// Default: {shown}\n")
        return f"{note}{indent}{name}{'?' if optional else ''}: {self._type(schema, indent)}"

    def _notes(self, schema: Any, indent: str) -> str:
        """A field's description and bounds as comment lines, each ending in a newline."""
        if not isinstance(schema, dict):
            return ""
        note = ""
        if description := schema.get("description"):
            self._limit.add(len(description) + (len(indent) + 3) * (description.count("\n") + 1))
            note = _comment(description, indent)
        plain = not any(key in schema for key in ("$ref", "anyOf", "enum"))
        kind = schema.get("type")
        bounds = [key for key in _BOUNDS.get(kind, ()) if key in schema] if plain and isinstance(kind, str) else []
        if bounds:
            note += self._limit.text(f"{indent}// " + ", ".join(f"{key}: {schema[key]}" for key in bounds) + "\n")
        return note


def _comment(text: str, indent: str) -> str:
    return "".join(f"{indent}// {line}\n" if line else "\n" for line in text.split("\n"))


def shown_order(schema: Any) -> Any:
    """A schema with its properties in the order of the declaration: required ones first, each group sorted.

    A grammar forces keys into the order of the schema, and the model writes them in the order of the declaration.
    """
    if isinstance(schema, list):
        return [shown_order(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    ordered = {key: shown_order(value) for key, value in schema.items()}
    properties = ordered.get("properties")
    if isinstance(properties, dict):
        required = schema.get("required")
        first = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        ordered["properties"] = {
            name: properties[name] for name in sorted(properties, key=lambda n: (n not in first, n))
        }
    return ordered
