"""Tool declarations: what all families share (a cache, a size limit, JSON with sorted keys), and TypeScript.

An agent sends the same tools with every request, and they take longer to write than the rest of a prompt.

Kimi-K2.5 and later models were trained on TypeScript: each function becomes one `type NAME = (_: {…}) => any;` with the
required properties first, each group sorted by name, and descriptions and bounds as `//` comments. A schema that has no
form in this notation raises `Undeclarable`; the caller then declares the tools as JSON, as in the model's training.
Source: Moonshot's `tool_declaration_ts`.
"""

from __future__ import annotations

import functools
import json
import marshal
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from dovetail.conversation import check_tool_types
from dovetail.errors import DovetailError, InvalidRequest

Tools = Sequence[Mapping[str, Any]]

_MAX_CACHED = 256  # declarations of one family
# Bytes of tools as JSON, and characters of a declaration: longer ones are not cached.
_MAX_CACHED_LENGTH = 256 * 1024
# Every line repeats the indentation of all levels above it, so that a deep schema takes many times its length as JSON.
_MAX_SCHEMA_LENGTH = 4 * 1024 * 1024  # characters of the schemas in one declaration
_MAX_COPIED_LENGTH = 32 * _MAX_SCHEMA_LENGTH  # the same, with each text counted once for every object around it
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
_encode = msgspec.json.Encoder().encode
_TOOL_FIELD = re.compile(r"tools\[(\d+)\](.*)", re.DOTALL)


def cached(declare: Callable[[Tools], str]) -> Callable[[Tools], str]:
    """`declare` with a cache of its latest results. Tools with the same values and types have the same declaration.

    Raises `InvalidRequest` for tools of a wrong type, and whatever `declare` raises.
    """
    cache: OrderedDict[bytes, str] = OrderedDict()
    lock = threading.Lock()

    @functools.wraps(declare)
    def declared(tools: Tools) -> str:
        try:
            length = len(_encode(tools))
            # The key is marshalled because JSON writes NaN as null and a key 1 as "1". Encoding to JSON first finds
            # cycles, on which marshal never ends. Version 2 of marshal is the last that writes equal values as equal
            # bytes: later versions refer back to objects that occurred before.
            plain: Any = tools
            key = marshal.dumps(plain, 2) if length <= _MAX_CACHED_LENGTH else b""
        except (RecursionError, TypeError, ValueError):  # a cycle, for example, which is reported below
            key = b""
        if not key:
            check_tool_types(tools)
            return declare(tools)
        with lock:
            if (text := cache.get(key)) is not None:
                cache.move_to_end(key)
                return text
        check_tool_types(tools)
        text = declare(tools)
        if len(text) > _MAX_CACHED_LENGTH:
            return text
        with lock:
            cache[key] = text
            if len(cache) > _MAX_CACHED:
                cache.popitem(last=False)
        return text

    return declared


class SizeLimit:
    """Limits the length of all schemas in one declaration.

    `tool` is the index of the tool that is being written, for the error message.
    """

    def __init__(self) -> None:
        self.tool = 0
        self._length = self._copied = 0

    def add(self, length: int) -> None:
        """Count `length` more characters. Raises `InvalidRequest` naming the tool if they exceed the limit."""
        self._length += length
        if self._length > _MAX_SCHEMA_LENGTH:
            self._refuse(f"are longer than {_MAX_SCHEMA_LENGTH} characters")

    def text(self, text: str) -> str:
        """Count `text` and return it. Raises as `add` does."""
        self.add(len(text))
        return text

    def copy(self, length: int) -> None:
        """Count the `length` characters of an object that become part of the object around it. Raises as `add` does."""
        self._copied += length
        if self._copied > _MAX_COPIED_LENGTH:
            self._refuse("are too long to nest as deeply as they do")

    def _refuse(self, reason: str) -> NoReturn:
        where = f"tools[{self.tool}].function.parameters"
        raise InvalidRequest(f"{where}: the schemas of all tools, as the model is shown them, {reason}", param=where)


def error_in_message(error: DovetailError, first: int, i: int) -> DovetailError:
    """`error` with the right field name if it is about a tool that came from ``messages[i].tools``.

    The tools of the request and of that message were declared as one list; the message's tools start at `first`.
    """
    field = _TOOL_FIELD.fullmatch(error.param or "")
    if field is None or int(field[1]) < first:
        return error
    param = f"messages[{i}].tools[{int(field[1]) - first}]{field[2]}"
    return type(error)(error.message.replace(field[0], param, 1), param=param)


def sorted_deeply(value: Any, by: Callable[[str], str] | None = None) -> Any:
    """`value` with the keys of all objects sorted, `by` what this function makes of a key."""
    if isinstance(value, Mapping):
        return {key: sorted_deeply(value[key], by) for key in sorted(value, key=by)}
    if isinstance(value, list | tuple):
        return [sorted_deeply(item, by) for item in value]
    return value


def sorted_json(value: Any) -> str:
    """`value` as JSON without spaces and with the keys of all objects sorted."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


class Undeclarable(Exception):
    """A schema has no form in this TypeScript notation."""


def in_typescript(tools: Sequence[Mapping[str, Any]]) -> str:
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


def typescript_order(schema: Any) -> Any:
    """A schema with its properties in the order of the declaration: required ones first, each group sorted.

    A grammar forces keys into the order of the schema, and the model writes them in the order of the declaration.
    """
    if isinstance(schema, list):
        return [typescript_order(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    ordered = {key: typescript_order(value) for key, value in schema.items()}
    properties = ordered.get("properties")
    if isinstance(properties, dict):
        required = schema.get("required")
        first = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        ordered["properties"] = {
            name: properties[name] for name in sorted(properties, key=lambda n: (n not in first, n))
        }
    return ordered
