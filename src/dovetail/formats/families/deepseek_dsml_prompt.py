"""The prompt of DeepSeek V3.2, and what the prompts of V3.2, V4 and V4.1 share.

They write calls in DSML and declare tools as lines of JSON in a system message. A message may have `tools` and a
`response_format` of its own. Source: DeepSeek's encoders and their fixtures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json import loads
from typing import Any

import msgspec

from dovetail.conversation import check_tool_types
from dovetail.errors import RenderError
from dovetail.formats.base import Messages
from dovetail.formats.declarations import cached
from dovetail.formats.families.deepseek_v3_prompt import (
    ASSISTANT,
    BEGIN,
    END,
    THINK,
    THINK_END,
    USER,
    refuse_role,
    text_of,
    to_json,
)
from dovetail.tokens import Prompt

DSML = "｜DSML｜"
#: A call's name and parameters. Each parameter is its key, its value and whether the value is a string.
NamedCall = tuple[str, Sequence[tuple[str, str, bool]]]

_CONTROLS = re.compile(f"({DSML}|{THINK_END}|{THINK})")
_RESPONSE_FORMAT = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
_decode = msgspec.json.Decoder().decode


class Tags:
    """The tags of one version: the name of the section of calls, and the space before every tag name."""

    def __init__(self, section: str, space: str = "") -> None:
        self.section, self.call, self.parameter = space + section, space + "invoke", space + "parameter"

    def add_calls(self, pieces: list[str], text: str, calls: Iterable[NamedCall]) -> str:
        """Add `text` and a section of calls up to its last control token. Returns the text after that token."""
        call_tag, parameter_tag = self.call, self.parameter
        pieces += (text + "\n\n<", DSML)
        text = self.section + ">\n"
        for name, parameters in calls:
            pieces += (text + "<", DSML)
            text = call_tag + ' name="' + name + '">\n'
            for key, value, is_string in parameters:
                kind = "true" if is_string else "false"
                pieces += (text + "<", DSML, f'{parameter_tag} name="{key}" string="{kind}">{value}</', DSML)
                text = parameter_tag + ">\n"
            # A call without parameters has an empty line in their place.
            pieces += (text + "</" if parameters else text + "\n</", DSML)
            text = call_tag + ">\n"
        pieces += (text + "</", DSML)
        return self.section + ">"

    def example(self, name: str, parameter: str) -> str:
        """The example of calls in a declaration of tools."""
        tag, end = f"<{DSML}", f"</{DSML}"
        return f"""{tag}{self.section}>
{tag}{self.call} name="${name}">
{tag}{self.parameter} name="${parameter}_NAME" string="true|false">${parameter}_VALUE{end}{self.parameter}>
...
{end}{self.call}>
{tag}{self.call} name="${name}2">
...
{end}{self.call}>
{end}{self.section}>"""


V32_TAGS = Tags("function_calls")


class Declaration:
    """The text with which one version declares tools. `before`, which precedes their schemas, has control tokens."""

    def __init__(self, before: str, after: str) -> None:
        self._first, *self._pairs, self._last = _CONTROLS.split(before)
        self._after = after

    def add(self, pieces: list[str], text: str, tools: Sequence[Mapping[str, Any]]) -> str:
        """Add `text` and the declaration as a paragraph. Returns the text after its last control token."""
        pieces += (f"{text}\n\n{self._first}", *self._pairs)
        return self._last + _schemas(tools) + self._after


def response_format(requested: Any) -> str:
    """The paragraph that tells the model in which format to answer."""
    return f"\n\n{_RESPONSE_FORMAT}{to_json(requested)}"


@cached
def _schemas(tools: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(to_json(tool["function"]) for tool in tools)


_V32_DECLARATION = Declaration(
    f"""## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<{DSML}{V32_TAGS.section}>" block like the following as part of your reply to \
the user:
{V32_TAGS.example("FUNCTION_NAME", "PARAMETER")}

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should \
use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types \
(numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. \
Here is an example:

<{DSML}{V32_TAGS.section}>
...
</{DSML}{V32_TAGS.section}>

<function_results>
...
</function_results>

{THINK}...thinking about results{THINK_END}

Here are the functions available in JSONSchema format:
<functions>
""",
    "\n</functions>\n",
)


def with_request(
    messages: Messages, tools: Sequence[Mapping[str, Any]], requested: Any, carriers: Sequence[str]
) -> Messages:
    """Messages with the request's tools and response format as fields of the first message.

    `carriers` are the roles that may have these fields; if the first message has another role, an empty system message
    goes before it. The message's own tools follow the request's. Of OpenAI's `response_format` the model is shown the
    schema alone, which is what the words around it describe.
    """
    for i, message in enumerate(messages):
        own = message.get("tools")
        if own and message["role"] in carriers:
            check_tool_types(own, f"messages[{i}].tools")
    fields: dict[str, Any] = {"tools": tools} if tools else {}
    if requested:
        inner = requested.get("json_schema") if isinstance(requested, Mapping) else None
        fields["response_format"] = inner.get("schema", requested) if isinstance(inner, Mapping) else requested
    if not fields:
        return messages
    if messages and messages[0]["role"] in carriers:
        if tools and (own := messages[0].get("tools")):
            fields["tools"] = [*tools, *own]
        return [{**messages[0], **fields}, *messages[1:]]
    return [{"role": "system", "content": "", **fields}, *messages]


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning of an assistant message, from either field that clients use."""
    return message.get("reasoning_content") or message.get("reasoning") or ""


def named_calls(calls: Sequence[Mapping[str, Any]]) -> Iterator[NamedCall]:
    """The calls of a history. Their values are written as `json.dumps` writes what `json.loads` reads."""
    for call in calls:
        function = call["function"]
        arguments = arguments_object(function["arguments"]).items()
        yield (
            function["name"],
            [
                # `repr` writes an int as the encoder does, and is much faster.
                (key, v, True) if isinstance(v, str) else (key, repr(v) if type(v) is int else to_json(v), False)
                for key, v in arguments
            ],
        )


def arguments_object(arguments: Any) -> Mapping[str, Any]:
    """The arguments object of a call: an object, its JSON text, or that text as a JSON string.

    Any other text becomes the only argument, called "arguments".
    """
    if not isinstance(arguments, str):
        if not isinstance(arguments, Mapping):
            raise TypeError("arguments are a JSON string or an object")
        return arguments
    parsed = _parsed(arguments)
    if isinstance(parsed, str):
        parsed = _parsed(parsed)
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def _parsed(text: str) -> Any:
    """The value of JSON text; None for text that is not JSON or contains a lone surrogate."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    try:
        # Python's parser also takes NaN and numbers of any size, but lets lone surrogates pass.
        value = loads(text)
        to_json(value).encode()
    except (RecursionError, ValueError):
        return None
    return value


def v32(messages: Messages, shift: int, thinking: bool, open_turn: bool) -> Prompt:
    """The prompt of V3.2. The first `shift` messages were added by `with_request` and are not the client's.

    Every user message, and the last result of a turn's calls, opens the assistant's turn. Raises `RenderError` for what
    V3.2's encoder cannot write: a result without a call, and in thinking mode an answer to the last user message that
    has neither reasoning nor calls.
    """
    end = len(messages) - 1
    last_user = end
    while last_user >= 0 and messages[last_user]["role"] not in ("user", "developer"):
        last_user -= 1
    pieces: list[str] = ["", BEGIN]
    text = ""
    called = answered = 0  # calls of the latest assistant message, and their results so far
    for i, message in enumerate(messages):
        role = message["role"]
        content = message.get("content")
        if not isinstance(content, str):
            content = text_of(message, i - shift)
        if role == "tool":
            answered += 1
            if answered > called:
                where = f"messages[{i - shift}]"
                raise RenderError(f"{where} is a tool's result, but no call before it is unanswered", param=where)
            if answered == 1:
                text += "\n\n<function_results>"
            text += f"\n<result>{content}</result>"
            if answered == called:
                text += "\n</function_results>"
                if i < end or open_turn:
                    pieces += (text + "\n\n", THINK if thinking and i >= last_user else THINK_END)
                    text = ""
            continue
        called = answered = 0
        if role == "assistant":
            calls = message.get("tool_calls")
            if thinking and i > last_user:
                reasoning = reasoning_of(message)
                if not reasoning and not calls:
                    where = f"messages[{i - shift}]"
                    raise RenderError(
                        f"{where} answers without reasoning: in thinking mode, deepseek_v32 needs the "
                        "reasoning_content of an answer to the last user message",
                        param=f"{where}.reasoning_content",
                    )
                pieces += (text + reasoning, THINK_END)
                text = ""
            text += content
            if calls:
                called = len(calls)
                text = V32_TAGS.add_calls(pieces, text, named_calls(calls))
            pieces += (text, END)
            text = ""
            continue
        if role in ("user", "developer"):
            pieces += (text, USER)
            text = ""
        elif role != "system":
            refuse_role("deepseek_v32", role, i - shift)
        if role != "developer":
            text += content
        if role != "user":
            if tools := message.get("tools"):
                text = _V32_DECLARATION.add(pieces, text, tools)
            if requested := message.get("response_format"):
                text += response_format(requested)
        if role == "developer":
            check_developer(content, i - shift)
            text += f"\n\n# The user's message is: {content}"
        if role != "system" and (i < end or open_turn):
            pieces += (text, ASSISTANT, "", THINK if thinking and i == last_user else THINK_END)
            text = ""
    pieces.append(text)
    return Prompt.alternating(pieces)


def check_developer(content: Any, i: int) -> None:
    if not content:
        raise RenderError(f"messages[{i}] is a developer message without content", param=f"messages[{i}].content")
