"""What the prompts of DeepSeek V3.2, V4 and V4.1 share, and the prompt of V3.2.

All write calls in DSML and declare tools as lines of JSON inside a system message; a message may hold `tools` and a
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
from dovetail.formats.declarations import remembered
from dovetail.formats.deepseek_v3_prompt import (
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
#: A call's name, and of each parameter its key, its value and whether that is a string.
NamedCall = tuple[str, Sequence[tuple[str, str, bool]]]

_CONTROLS = re.compile(f"({DSML}|{THINK_END}|{THINK})")
_RESPONSE_FORMAT = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
_decode = msgspec.json.Decoder().decode


class Tags:
    """How one version spells its tags: what it calls the section, and what stands in front of every name."""

    def __init__(self, section: str, space: str = "") -> None:
        self.section, self.call, self.parameter = space + section, space + "invoke", space + "parameter"

    def add_calls(self, pieces: list[str], text: str, calls: Iterable[NamedCall]) -> str:
        """`text` and a section of calls up to its last control token; what is to follow that is returned."""
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
            # Without parameters, there is an empty line where they would stand.
            pieces += (text + "</" if parameters else text + "\n</", DSML)
            text = call_tag + ">\n"
        pieces += (text + "</", DSML)
        return self.section + ">"

    def example(self, name: str, parameter: str) -> str:
        """Calls as a declaration of tools shows them."""
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
    """How one version declares tools. What stands `before` their schemas holds control tokens."""

    def __init__(self, before: str, after: str) -> None:
        self._first, *self._pairs, self._last = _CONTROLS.split(before)
        self._after = after

    def add(self, pieces: list[str], text: str, tools: Sequence[Mapping[str, Any]]) -> str:
        """`text` and the tools, as a paragraph; see `Tags.add_calls`."""
        pieces += (f"{text}\n\n{self._first}", *self._pairs)
        return self._last + _schemas(tools) + self._after


def response_format(wanted: Any) -> str:
    """What tells the model how to answer, as a paragraph."""
    return f"\n\n{_RESPONSE_FORMAT}{to_json(wanted)}"


@remembered
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
    messages: Messages, tools: Sequence[Mapping[str, Any]], wanted: Any, carriers: Sequence[str]
) -> Messages:
    """Messages with the request's tools and response format: on the first, or on a system message in front of it.

    `carriers` are the roles that can hold them. Tools that the message has itself follow the request's. Of OpenAI's
    object for a schema, the schema is what the model is told: that is what the words around it speak of.
    """
    for i, message in enumerate(messages):
        own = message.get("tools")
        if own and message["role"] in carriers:
            check_tool_types(own, f"messages[{i}].tools")
    held: dict[str, Any] = {"tools": tools} if tools else {}
    if wanted:
        inner = wanted.get("json_schema") if isinstance(wanted, Mapping) else None
        held["response_format"] = inner.get("schema", wanted) if isinstance(inner, Mapping) else wanted
    if not held:
        return messages
    if messages and messages[0]["role"] in carriers:
        if tools and (own := messages[0].get("tools")):
            held["tools"] = [*tools, *own]
        return [{**messages[0], **held}, *messages[1:]]
    return [{"role": "system", "content": "", **held}, *messages]


def reasoning_of(message: Mapping[str, Any]) -> str:
    """What an assistant thought, by either name that clients give it."""
    return message.get("reasoning_content") or message.get("reasoning") or ""


def named_calls(calls: Sequence[Mapping[str, Any]]) -> Iterator[NamedCall]:
    """Calls of a history, their values spelled anew: as `json.dumps` prints what `json.loads` reads."""
    for call in calls:
        function = call["function"]
        arguments = _arguments(function["arguments"]).items()
        yield (
            function["name"],
            [
                # An int's spelling is the encoder's too, and much faster to get.
                (key, v, True) if isinstance(v, str) else (key, repr(v) if type(v) is int else to_json(v), False)
                for key, v in arguments
            ],
        )


def _arguments(given: Any) -> Mapping[str, Any]:
    """The object that arguments are, or spell, or spell in a string that they spell; else they are one argument."""
    if not isinstance(given, str):
        if not isinstance(given, Mapping):
            raise TypeError("arguments are a JSON string or an object")
        return given
    arguments = _read(given)
    if isinstance(arguments, str):
        arguments = _read(arguments)
    return arguments if isinstance(arguments, dict) else {"arguments": given}


def _read(text: str) -> Any:
    """What JSON text holds, or None for what is no JSON, or spells no Unicode."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    try:
        # Python's own reads more: NaN, and numbers past all bounds; but half a character too.
        value = loads(text)
        to_json(value).encode()
    except (RecursionError, ValueError):
        return None
    return value


def v32(messages: Messages, shift: int, thinking: bool, open_turn: bool) -> Prompt:
    """The prompt of V3.2. The first `shift` messages are not the client's.

    Every message of a user, and the last result of every turn's calls, opens the assistant's turn. Raises `RenderError`
    for what V3.2's encoder cannot write: a result without a call, and an answer to the last user in thinking mode that
    neither has reasoning nor makes calls.
    """
    end = len(messages) - 1
    last_user = end
    while last_user >= 0 and messages[last_user]["role"] not in ("user", "developer"):
        last_user -= 1
    pieces: list[str] = ["", BEGIN]
    text = ""
    asked = answered = 0  # calls of the assistant's latest message, and their results so far
    for i, message in enumerate(messages):
        role = message["role"]
        content = message.get("content")
        if not isinstance(content, str):
            content = text_of(message, i - shift)
        if role == "tool":
            answered += 1
            if answered > asked:
                where = f"messages[{i - shift}]"
                raise RenderError(f"{where} is a tool's result, but no call before it is unanswered", param=where)
            if answered == 1:
                text += "\n\n<function_results>"
            text += f"\n<result>{content}</result>"
            if answered == asked:
                text += "\n</function_results>"
                if i < end or open_turn:
                    pieces += (text + "\n\n", THINK if thinking and i >= last_user else THINK_END)
                    text = ""
            continue
        asked = answered = 0
        if role == "assistant":
            calls = message.get("tool_calls")
            if thinking and i > last_user:
                reasoning = reasoning_of(message)
                if not reasoning and not calls:
                    where = f"messages[{i - shift}]"
                    raise RenderError(
                        f"{where} answers without reasoning: in thinking mode, deepseek_v32 shows an answer to the "
                        "last user with its reasoning_content",
                        param=f"{where}.reasoning_content",
                    )
                pieces += (text + reasoning, THINK_END)
                text = ""
            text += content
            if calls:
                asked = len(calls)
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
            if wanted := message.get("response_format"):
                text += response_format(wanted)
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
        raise RenderError(f"messages[{i}] is a developer's and says nothing", param=f"messages[{i}].content")
