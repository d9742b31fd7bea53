"""Tool declarations as TypeScript, which gpt-oss was trained on.

`declare(tools)` is the `# Tools` section of a developer message. In the namespace `functions`, each function becomes
one `type NAME = (_: {…}) => any;`. The output equals that of OpenAI's own renderer (openai-harmony, oss-harmony) with
its oddities: `anyOf` and `$ref` become `any`, and only the first line of a property's description is a comment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.errors import RenderError
from dovetail.formats.declarations import SizeLimit, cached

_WORDS = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}


@cached
def declare(tools: Sequence[Mapping[str, Any]]) -> str:
    """The section that declares OpenAI-shaped `tools`."""
    functions: list[str] = []
    schemas = _Schemas()
    for i, tool in enumerate(tools):
        schemas.limit.tool = i
        functions.append(_function(tool.get("function") or {}, i, schemas))
    return "# Tools\n\n## functions\n\nnamespace functions {\n\n" + "\n".join(functions) + "\n} // namespace functions"


def _function(function: Mapping[str, Any], i: int, schemas: _Schemas) -> str:
    if not function.get("name"):
        where = f"tools[{i}].function.name"
        raise RenderError(f"{where} is missing: gpt-oss is shown functions only, and each needs a name", param=where)
    description = function.get("description")
    lines = description.removesuffix("\n").split("\n") if description else ()
    note = "".join(f"// {line.removesuffix(chr(13))}\n" for line in lines)
    parameters = function.get("parameters") or {}
    if parameters.get("properties"):
        arguments = "_: " + schemas.object(parameters, "")
    elif "oneOf" in parameters:
        arguments = "_: " + schemas.type(parameters, "")
    else:
        arguments = ""  # as in OpenAI's description and the model's template; OpenAI's renderer writes an empty object
    return f"{note}type {function['name']} = ({arguments}) => any;\n"


class _Schemas:
    """Writes schemas as TypeScript types, up to a size limit."""

    def __init__(self) -> None:
        self.limit = SizeLimit()

    def type(self, schema: Any, indent: str) -> str:
        """The type expression of a schema. `indent` is the indentation of its further lines."""
        if not isinstance(schema, Mapping):
            return "any"
        if isinstance(schema.get("oneOf"), list):
            return "".join(self._options(schema["oneOf"], None, indent))
        kind = schema.get("type")
        if kind == "object":
            return self.object(schema, indent)
        if kind == "array":
            return f"{self.type(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
        values = schema.get("enum") if kind == "string" else None
        if texts := [f'"{value}"' for value in values or () if isinstance(value, str)]:
            return self.limit.text(" | ".join(texts))
        if isinstance(kind, list):
            words = [_WORDS.get(word, word) for word in kind if isinstance(word, str)]
            return self.limit.text(" | ".join(words) or "any")
        return _WORDS.get(kind, "any") if isinstance(kind, str) else "any"

    def _type_or_null(self, schema: Any, indent: str) -> str:
        text = self.type(schema, indent)
        nullable = isinstance(schema, Mapping) and schema.get("nullable") is True
        return f"{text} | null" if nullable and "null" not in text else text

    def object(self, schema: Mapping[str, Any], indent: str) -> str:
        properties = schema.get("properties")
        required = schema.get("required")
        required = {name for name in required if isinstance(name, str)} if isinstance(required, list) else ()
        note = _comment(schema.get("description"), indent)
        self.limit.add(len(note) + len(indent))
        fields = [
            self._field(name if name in required else f"{name}?", field, indent)
            for name, field in (properties.items() if isinstance(properties, Mapping) else ())
        ]
        text = f"{note}{{\n{''.join(fields)}{indent}}}"
        self.limit.copy(len(text))
        return text

    def _field(self, name: str, schema: Any, indent: str) -> str:
        """One property with its comments. `name` ends in "?" if the property is optional."""
        self.limit.add(len(name) + 2 * len(indent))  # its line, and the line that ends a union
        if not isinstance(schema, Mapping):
            return f"{indent}{name}: any,\n"
        options = schema.get("oneOf")
        note = _comment(schema.get("title"), indent, f"{indent}//\n")
        examples = self._examples(schema.get("examples"), indent)
        description = schema.get("description")
        if isinstance(options, list):
            if options and isinstance(options[0], Mapping) and options[0].get("description") == description:
                note += examples
            else:
                note += examples + _comment(description, indent)
            if "default" in schema:
                note += f"{indent}// {_default(schema)}\n"
            self.limit.add(len(note))
            return f"{note}{indent}{name}:{''.join(self._options(options, description, indent))}\n{indent},\n"
        note += _comment(description, indent) + examples
        default = f" // {_default(schema)}" if "default" in schema else ""
        self.limit.add(len(note) + len(default))
        return f"{note}{indent}{name}: {self._type_or_null(schema, indent + '    ')},{default}\n"

    def _options(self, options: Sequence[Any], property_description: Any, indent: str) -> Iterator[str]:
        """The alternatives of a union, each on its own line with its description and default.

        A description that repeats `property_description`, the property's own, is left out.
        """
        for i, option in enumerate(options):
            notes = []
            if isinstance(option, Mapping):
                description = option.get("description")
                # The first alternative has no description of its own if the property has one.
                shown = i == 0 and isinstance(property_description, str)
                if isinstance(description, str) and description != property_description and not shown:
                    notes.append(description)
                if "default" in option:
                    notes.append(_default(option))
            self.limit.add(len(indent) + sum(map(len, notes)))
            yield f"\n{indent} | {self._type_or_null(option, indent + '   ')}{' // ' if notes else ''}{' '.join(notes)}"

    def _examples(self, examples: Any, indent: str) -> str:
        if not isinstance(examples, list) or not examples:
            return ""
        self.limit.add(len(indent) * len(examples))
        listed = "".join(f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str))
        return f"{indent}// Examples:\n{listed}"


def _comment(text: Any, indent: str, after: str = "") -> str:
    return f"{indent}// {text}\n{after}" if isinstance(text, str) else ""


def _default(schema: Mapping[str, Any]) -> str:
    default = schema["default"]
    if not isinstance(default, str):
        return "default: " + json.dumps(default, ensure_ascii=False, separators=(",", ":"))
    return f"default: {default}" if schema.get("enum") else f'default: "{default}"'
