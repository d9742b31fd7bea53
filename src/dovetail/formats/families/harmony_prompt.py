"""Prompts of gpt-oss: a system message with the format's settings, a developer message, and the history.

Sources, the first one decides: vLLM's fixtures and OpenAI's test data and description of the format; the renderer that
made both (openai-harmony, oss-harmony); the model's chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail.conversation import check_response_format, check_tool_types
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from dovetail.formats.declarations import SizeLimit, cached, error_in_message
from dovetail.formats.parts import arguments_json
from dovetail.tokens import Prompt

START, END, MESSAGE, CHANNEL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>"
CONSTRAIN, CALL, RETURN = "<|constrain|>", "<|call|>", "<|return|>"
ROLE, ANALYSIS, COMMENTARY, FINAL, FUNCTIONS = "assistant", "analysis", "commentary", "final", "functions."

_WORDS = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
_INSTRUCTION_ROLES = ("system", "developer")
EFFORTS = ("low", "medium", "high")
IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


def render(
    messages: Messages,
    tools: Tools,
    open_turn: bool,
    *,
    reasoning_effort: str,
    current_date: str | None,
    model_identity: str = IDENTITY,
    builtin_tools: Sequence[str] = (),
    auto_drop_analysis: bool = True,
    response_format: Any = None,
) -> Prompt:
    """The prompt for messages and tools. The keywords are the format's template options.

    A system or developer message at the start, the request's tools and its response format share one developer message.
    `auto_drop_analysis` drops the reasoning before the last final answer, as in the model's training.
    """
    if not isinstance(auto_drop_analysis, bool):
        raise _refusal("auto_drop_analysis", "must be true or false", auto_drop_analysis)
    any_tools = bool(tools) or any(m.get("tools") and m["role"] in _INSTRUCTION_ROLES for m in messages)
    system = _system(model_identity, current_date, reasoning_effort, builtin_tools, any_tools)
    pieces = ["", START, "system", MESSAGE, system, END]
    instructions, begin = "", 0
    if messages and messages[0]["role"] in _INSTRUCTION_ROLES:
        instructions, begin = _text(messages[0], 0), 1
    format_section = _response_format(response_format)
    _add_developer(pieces, instructions, tools, messages[0].get("tools") if begin else None, 0, format_section)
    last_final = _last_final(messages) if auto_drop_analysis else -1
    names: dict[Any, str] = {}  # the client's call id -> the function's name
    for i in range(begin, len(messages)):
        message = messages[i]
        role = message["role"]
        if role == "assistant":
            reasoning = _reasoning(message)
            if reasoning and i > last_final:
                add_message(pieces, ANALYSIS, reasoning)
            content = _text(message, i)
            if calls := message.get("tool_calls"):
                if content:
                    add_message(pieces, COMMENTARY, content)
                for call in calls:
                    function = call["function"]
                    names[call["id"]] = function["name"]
                    add_call(pieces, function["name"], arguments_json(function["arguments"]))
            elif content or not reasoning:  # reasoning without an answer gets no empty final message
                add_message(pieces, FINAL, content)
        elif role == "tool":
            header = FUNCTIONS + _name_of_result(message, names, i)
            pieces += ("", START, header, CHANNEL, "commentary to=assistant", MESSAGE, _text(message, i), END)
        elif role == "user":
            pieces += ("", START, "user", MESSAGE, _text(message, i), END)
        elif role in _INSTRUCTION_ROLES:
            _add_developer(pieces, _text(message, i), (), message.get("tools"), i)
        else:
            raise ValueError(f"no role {role!r:.80}")
    if open_turn:
        pieces += ("", START, ROLE)
    return Prompt.alternating(pieces)


def add_message(pieces: list[str], channel: str, text: str, end: str = END) -> None:
    """An assistant's message on a channel: its reasoning, a remark before calls, or its final answer."""
    pieces += ("", START, ROLE, CHANNEL, channel, MESSAGE, text, end)


def add_call(pieces: list[str], name: str, arguments: str) -> None:
    header = COMMENTARY + " to=" + FUNCTIONS + name + " "
    pieces += ("", START, ROLE, CHANNEL, header, CONSTRAIN, "json", MESSAGE, arguments, CALL)


def _add_developer(
    pieces: list[str], instructions: str, tools: Tools, own: Any, i: int, format_section: str | None = None
) -> None:
    """A developer message, unless it is empty. `tools` are the request's, and `own` belong to message number `i`."""
    parts = [f"# Instructions\n\n{instructions}"] if instructions else []
    if own:
        check_tool_types(own, f"messages[{i}].tools")
        try:
            parts.append(declared_types([*tools, *own]))
        except DovetailError as error:
            raise error_in_message(error, len(tools), i) from error
    elif tools:
        parts.append(declared_types(tools))
    if format_section is not None:
        parts.append(format_section)
    if parts:
        pieces += ("", START, "developer", MESSAGE, "\n\n".join(parts), END)


def _response_format(requested: Any) -> str | None:
    """The section for OpenAI's `response_format`; None if it has no schema, which the model has no notation for."""
    if check_response_format(requested) is None or requested["type"] != "json_schema":
        return None
    declared = requested["json_schema"]
    note = "".join(f"// {line}\n" for line in (declared.get("description") or "").splitlines())
    schema = json.dumps(declared["schema"], ensure_ascii=False, separators=(",", ":"))
    return f"# Response Formats\n\n## {declared['name']}\n\n{note}{schema}"


def _text(message: Mapping[str, Any], i: int) -> str:
    """A message's content as one text."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    texts = []
    for j, part in enumerate(content or ()):
        if part["type"] != "text":
            where = f"messages[{i}].content[{j}]"
            raise RenderError(f"{where} is of type {part['type']!r:.80}, and gpt-oss reads text only", param=where)
        texts.append(part["text"])
    return "".join(texts)


def _last_final(messages: Messages) -> int:
    """The index of the last assistant message that has a final answer; -1 if there is none."""
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if message["role"] != "assistant" or message.get("tool_calls"):
            continue
        if _text(message, i) or not _reasoning(message):
            return i
    return -1


def _reasoning(message: Mapping[str, Any]) -> Any:
    return message.get("reasoning_content") or message.get("thinking")


def _name_of_result(message: Mapping[str, Any], names: Mapping[Any, str], i: int) -> Any:
    """The name of the function that a tool's message answers: its call's, or else the message's own `name`."""
    call_id = message.get("tool_call_id")
    name = names.get(call_id) or message.get("name")
    if not name:
        where = f"messages[{i}].tool_call_id"
        raise RenderError(f"{where} {call_id!r:.80} is the id of no call before it, and no name is set", param=where)
    return name


def _system(identity: str, date: str | None, effort: str, builtin_tools: Sequence[str], any_tools: bool) -> str:
    """The text of the system message. Raises `InvalidRequest` for an option with a wrong type or value."""
    if effort not in EFFORTS:
        raise _refusal("reasoning_effort", f"must be one of {', '.join(EFFORTS)}: the model always reasons", effort)
    if not isinstance(identity, str):
        raise _refusal("model_identity", "must be a string", identity)
    if not isinstance(date, str | None):
        raise _refusal("current_date", "must be a string, or null for none", date)
    if not isinstance(builtin_tools, list | tuple) or any(name not in (*_BUILTIN,) for name in builtin_tools):
        raise _refusal("builtin_tools", f"must be a list of names out of {', '.join(_BUILTIN)}", builtin_tools)
    today = "" if date is None else f"Current date: {date}\n"
    sections = [f"{identity}\nKnowledge cutoff: 2024-06\n{today}", f"Reasoning: {effort}\n"]
    if builtin_tools:
        sections.append("# Tools\n")
        sections += (f"## {name}\n\n{text}" for name, text in _BUILTIN.items() if name in builtin_tools)
    sections.append("# Valid channels: analysis, commentary, final. Channel must be included for every message.")
    text = "\n".join(sections)
    return f"{text}\nCalls to these tools must go to the commentary channel: 'functions'." if any_tools else text


def _refusal(option: str, rule: str, value: Any) -> InvalidRequest:
    return InvalidRequest(f"{option} {rule}; it is {value!r:.80}", param=f"chat_template_kwargs.{option}")


#: The built-in tools that the model was trained on, in the exact words of its training.
_BUILTIN = {
    "browser": """\
// Tool for browsing.
// The `cursor` appears in brackets before each browsing display: `[{cursor}]`.
// Cite information from the tool using the following format:
// `【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.
// Do not quote more than 10 words directly from the tool output.
// sources=web (default: web)
namespace browser {

// Searches for information related to `query` and displays `topn` results.
type search = (_: {
query: string,
topn?: number, // default: 10
source?: string,
}) => any;

// Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, showing `num_lines` lines.
// Valid link ids are displayed with the formatting: `【{id}†.*】`.
// If `cursor` is not provided, the most recent page is implied.
// If `id` is a string, it is treated as a fully qualified URL associated with `source`.
// If `loc` is not provided, the viewport will be positioned at the beginning of the document or centered on the most \
relevant passage, if available.
// Use this function without `id` to scroll to a new location of an opened page.
type open = (_: {
id?: number | string, // default: -1
cursor?: number, // default: -1
loc?: number, // default: -1
num_lines?: number, // default: -1
view_source?: boolean, // default: false
source?: string,
}) => any;

// Finds exact matches of `pattern` in the current page, or the page given by `cursor`.
type find = (_: {
pattern: string,
cursor?: number, // default: -1
}) => any;

} // namespace browser
""",
    "python": """\
Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. This tool \
should be used for internal reasoning, but not for code that is intended to be visible to the user (e.g. when creating \
plots, tables, or files).

When you send a message containing Python code to python, it will be executed in a stateful Jupyter notebook \
environment. python will respond with the output of the execution or time out after 120.0 seconds. The drive at \
'/mnt/data' can be used to save and persist user files. Internet access for this session is UNKNOWN. Depends on the \
cluster.
""",
}


@cached
def declared_types(tools: Sequence[Mapping[str, Any]]) -> str:
    """The section that declares OpenAI-shaped `tools`: a TypeScript `type NAME = (_: {…}) => any;` for each function.

    The text is the one of OpenAI's own renderer (openai-harmony, oss-harmony) with its oddities: `anyOf` and `$ref`
    become `any`, and only the first line of a property's description is a comment.
    """
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
