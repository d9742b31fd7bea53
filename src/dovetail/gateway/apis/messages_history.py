"""Anthropic's system prompt and messages as the messages of a `TurnRequest`.

A message of content blocks becomes one or several messages: each `tool_result` is a message of its own, in front of the
text around it, because a result follows its call. Consecutive messages of one role are combined, as Anthropic's API
does. Blocks of text are joined by an empty line, an assistant's by nothing, as the model wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.formats.parts import arguments_json
from dovetail.gateway.apis.pictures import Pictures, Sees, blind, refused
from dovetail.gateway.apis.request_body import convert_field
from dovetail.gateway.records.answers import SignedReasoning

_NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


#: A text, or a picture as a part of a message.
Part = str | dict[str, Any]


class Text(msgspec.Struct, frozen=True):
    text: str


class Thinking(msgspec.Struct, frozen=True):
    thinking: str
    signature: str | None = None


class RedactedThinking(msgspec.Struct, frozen=True):
    data: str


class ToolUse(msgspec.Struct, frozen=True):
    id: _NonEmpty
    name: _NonEmpty
    input: dict[str, Any]


class ToolResult(msgspec.Struct, frozen=True):
    tool_use_id: _NonEmpty
    content: str | list[Any] | None = None
    is_error: bool | None = None


class ToolReference(msgspec.Struct, frozen=True):
    tool_name: _NonEmpty


class Source(msgspec.Struct, frozen=True):
    """`data` belongs to the type "text", `content` to "content"."""

    type: str
    data: str = ""
    content: str | list[Any] = ""


class Document(msgspec.Struct, frozen=True):
    source: Source
    title: str | None = None
    context: str | None = None


class SearchResult(msgspec.Struct, frozen=True):
    title: str
    source: str
    content: list[Any]


class InputMessage(msgspec.Struct, frozen=True):
    """`clear_at` belongs to the role "system"."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Any] | None = None
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: Any = None


#: What the servers' own tools leave in a history. The answers that the model gave with them are text beside them.
_SERVER_BLOCKS = re.compile(r"server_tool_use|mcp_tool_use|mcp_tool_listing|\w+_tool_result")
#: Blocks of the system that offer a tool or take it back. The model has every tool in `tools` from the beginning.
_TOOL_CHANGES = ("tool_addition", "tool_removal")
_BETWEEN_BLOCKS = "\n\n"
_TELLS_ERROR = re.compile(r"\W*(\w+_)?error", re.IGNORECASE)


class History:
    """The messages of one request.

    `messages`: them as a `TurnRequest` has them.
    `names`: the client's name for each of their fields that an error may name.
    `omitted`: the fields that were left out.
    `pictures`: the pictures of the messages, and the fields that hold a picture which was left out.
    `signed`: thinking with its signatures.

    Raises `InvalidRequest` naming the field for what cannot be translated.
    """

    def __init__(self, system: str | Sequence[Any] | None, messages: Sequence[Any], sees: Sees = blind) -> None:
        self.messages: list[dict[str, Any]] = []
        self.names: dict[str, str] = {}
        self.omitted: list[str] = []
        self.pictures = Pictures(sees)
        self.signed: list[SignedReasoning] = []
        self._is_newest = False
        # The texts of each message, which are joined at the end, because there may be very many.
        self._text_lists: dict[int, _Texts] = {}
        if system is not None and (text := self._system_text(system, "system")):
            self._add({"role": "system", "content": text}, "system", content="system")
        read = [convert_field(message, InputMessage, f"messages[{i}]") for i, message in enumerate(messages)]
        last_user = max((i for i, message in enumerate(read) if message.role == "user"), default=-1)
        last_answer = max((i for i, message in enumerate(read[:-1]) if message.role == "assistant"), default=-1)
        for i, message in enumerate(read):
            self._is_newest = i > last_answer  # in the turn that is to be answered
            self._message(message, f"messages[{i}]", before_user=i < last_user)
        for i, texts in self._text_lists.items():
            between = "" if self.messages[i]["role"] == "assistant" else _BETWEEN_BLOCKS
            self.messages[i]["content"] = _joined(texts.content, between)
            if texts.reasoning:
                self.messages[i]["reasoning_content"] = "".join(texts.reasoning)

    @property
    def prefilled(self) -> bool:
        """Whether the last message is an answer that the model is to continue."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def _message(self, message: InputMessage, field: str, *, before_user: bool) -> None:
        if message.role == "system":
            if message.output_config:
                self.omitted.append(f"{field}.output_config")
            if message.clear_at == "next_user_message" and before_user:
                return  # it was for one turn, which is over
            if text := self._system_text(message.content or "", f"{field}.content"):
                self._add({"role": "system", "content": text}, field)
        elif message.content is None:
            raise InvalidRequest(f"{field}.content is required", param=f"{field}.content")
        elif message.role == "user":
            self._user(message.content, field)
        else:
            self._assistant(message.content, field)

    def _add(self, message: dict[str, Any], field: str, **names: str) -> None:
        """Append `message`, which is called `field` in the request."""
        place = f"messages[{len(self.messages)}]"
        self.messages.append(message)
        self.names[place] = field
        self.names |= {f"{place}.{key}": name for key, name in names.items()}

    # -- system ------------------------------------------------------------------------------------------------------

    def _system_text(self, content: str | Sequence[Any], field: str) -> str:
        if isinstance(content, str):
            return content
        texts = []
        for block, where, kind in _blocks(content, field):
            if kind in _TOOL_CHANGES:
                self.omitted.append(f"{where}:{kind}")
                continue
            if kind != "text":
                _refuse(where, kind, "text")
            texts.append(convert_field(block, Text, where).text)
        return _BETWEEN_BLOCKS.join(texts)

    # -- user --------------------------------------------------------------------------------------------------------

    def _user(self, content: str | Sequence[Any], field: str) -> None:
        if isinstance(content, str):
            self._user_text(field, content)
            return
        parts: list[Part] = []
        others = len(self.messages)
        for block, where, kind in _blocks(content, f"{field}.content"):
            if kind == "tool_result":
                self._result(convert_field(block, ToolResult, where), where)
            else:
                parts.append(self._shown(block, where, kind, "text, tool_result, document or search_result"))
        if parts or others == len(self.messages):
            self._user_text(field, *(parts or [""]))

    def _user_text(self, field: str, *parts: Part) -> None:
        if not self.messages or self.messages[-1]["role"] != "user":
            self._add({"role": "user", "content": ""}, field)
        self._texts_of_last().content.extend(parts)

    def _result(self, result: ToolResult, field: str) -> None:
        content = result.content or ""
        if not isinstance(content, str):
            content = _joined([*self._result_parts(content, f"{field}.content")], _BETWEEN_BLOCKS)
        if result.is_error:
            content = _as_error(content)
        message = {"role": "tool", "tool_call_id": result.tool_use_id, "content": content}
        self._add(message, field, tool_call_id=f"{field}.tool_use_id")

    def _result_parts(self, content: Sequence[Any], field: str) -> Iterator[Part]:
        for block, where, kind in _blocks(content, field):
            if kind == "tool_reference":  # a search for tools found this one
                yield f"Available now: {convert_field(block, ToolReference, where).tool_name}"
            else:
                yield self._shown(block, where, kind, "text, document, search_result or tool_reference")

    def _shown(self, block: Mapping[str, Any], field: str, kind: str, known: str) -> Part:
        """A block that the model is to read or to see. `known`: the kinds of blocks that may be in its place."""
        try:
            part = self.pictures.part(block, field)
        except InvalidRequest as error:
            raise refused(block, field, error.message.removeprefix(f"{error.param}").lstrip(": ")) from error
        if part is None:
            return self._shown_text(block, field, kind, known)
        if part["type"] == "image":
            taken, name = self.pictures.taken, refused(block, field, "it").message  # it may turn out to be none
            taken[part["number"]] = msgspec.structs.replace(taken[part["number"]], name=name)
            return part
        if self._is_newest:
            raise refused(block, field)
        text: str = part["text"]
        return text

    def _shown_text(self, block: Mapping[str, Any], field: str, kind: str, known: str) -> str:
        """The text of a block that the model is to read. `known`: the kinds of blocks that may be in its place."""
        if kind == "text":
            return convert_field(block, Text, field).text
        if kind == "document":
            return self._document(convert_field(block, Document, field), field)
        if kind == "search_result":
            result = convert_field(block, SearchResult, field)
            texts = self._texts(result.content, f"{field}.content")
            return _BETWEEN_BLOCKS.join((f"{result.title}\n{result.source}", *texts))
        if (text := self.pictures.left_out(block, field)) is not None:
            if self._is_newest:
                raise refused(block, field)
            return text
        _refuse(field, kind, known)

    def _document(self, document: Document, field: str) -> str:
        source, where = document.source, f"{field}.source"
        if source.type == "text":
            texts = [source.data]
        elif source.type != "content":
            raise InvalidRequest(
                f'{where}.type must be "text" or "content", because only text can be read, not {source.type!r:.80}',
                param=f"{where}.type",
            )
        elif isinstance(source.content, str):
            texts = [source.content]
        else:
            texts = self._texts(source.content, f"{where}.content")
        return _BETWEEN_BLOCKS.join(filter(None, (document.title, document.context, *texts)))

    def _texts(self, content: Sequence[Any], field: str) -> list[str]:
        return [self._shown_text(block, where, kind, "text") for block, where, kind in _blocks(content, field)]

    # -- assistant ---------------------------------------------------------------------------------------------------

    def _assistant(self, content: str | Sequence[Any], field: str) -> None:
        blocks: Sequence[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        own = []
        for block, where, kind in _blocks(blocks, f"{field}.content"):
            if _SERVER_BLOCKS.fullmatch(kind):
                self.omitted.append(where)
            else:
                own.append((block, where, kind))
        if own or not blocks:
            answer = self._open_answer(field)
            for block, where, kind in own:
                answer.add(block, where, kind)

    def _open_answer(self, field: str) -> _Answer:
        """The assistant message that the next blocks belong to."""
        if not self.prefilled:
            self._add({"role": "assistant", "content": ""}, field)
        place = f"messages[{len(self.messages) - 1}]"
        return _Answer(self.messages[-1], place, self.names, self.signed, self._texts_of_last())

    def _texts_of_last(self) -> _Texts:
        return self._text_lists.setdefault(len(self.messages) - 1, _Texts([], []))


class _Texts(NamedTuple):
    """The texts and pictures of one message, and its reasoning."""

    content: list[Part]
    reasoning: list[str]


class _Answer:
    """Adds blocks to an assistant message, which is called `place` in the `TurnRequest`."""

    def __init__(
        self,
        message: dict[str, Any],
        place: str,
        names: dict[str, str],
        signed: list[SignedReasoning],
        texts: _Texts,
    ) -> None:
        self._message = message
        self._place = place
        self._names = names
        self._signed = signed
        self._texts = texts

    def add(self, block: Any, field: str, kind: str) -> None:
        adders: dict[str, Callable[[Any, str], None]] = {
            "text": self._text,
            "thinking": self._thinking,
            "redacted_thinking": self._redacted_thinking,
            "tool_use": self._tool_use,
        }
        if kind not in adders:
            _refuse(field, kind, f"one of {', '.join(adders)}")
        adders[kind](block, field)

    def _text(self, block: Any, field: str) -> None:
        self._texts.content.append(convert_field(block, Text, field).text)

    def _thinking(self, block: Any, field: str) -> None:
        thinking = convert_field(block, Thinking, field)
        self._texts.reasoning.append(thinking.thinking)
        self._names[f"{self._place}.reasoning_content"] = f"{field}.thinking"
        if thinking.signature:
            self._signed.append(SignedReasoning(f"{field}.thinking", thinking.thinking, thinking.signature))

    def _redacted_thinking(self, block: Any, field: str) -> None:
        self._message["dovetail"] = {"record": convert_field(block, RedactedThinking, field).data}
        self._names[f"{self._place}.dovetail.record"] = f"{field}.data"

    def _tool_use(self, block: Any, field: str) -> None:
        use = convert_field(block, ToolUse, field)
        calls = self._message.setdefault("tool_calls", [])
        place = f"{self._place}.tool_calls[{len(calls)}]"
        self._names |= {place: field, f"{place}.function": field, f"{place}.function.arguments": f"{field}.input"}
        function = {"name": use.name, "arguments": arguments_json(use.input)}
        calls.append({"id": use.id, "type": "function", "function": function})


def _joined(parts: Sequence[Part], between: str) -> str | list[dict[str, Any]]:
    """Texts as one, joined by `between`; or parts of a message, if there are pictures among them."""
    if not any(isinstance(part, dict) for part in parts):
        return between.join(part for part in parts if isinstance(part, str))
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, dict):
            content.append(part)
        elif content and content[-1]["type"] == "text":
            content[-1]["text"] += between + part
        elif part:
            content.append({"type": "text", "text": part})
    return content


def _as_error(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a result that tells that it is an error."""
    first = content if isinstance(content, str) else content[0].get("text", "")
    if _TELLS_ERROR.match(first):
        return content
    if isinstance(content, str):
        return f"Error: {content}" if content else "Error"
    return [{"type": "text", "text": f"Error: {first}"}, *content[bool(first) :]]


def _blocks(content: Sequence[Any], field: str) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Each block with its field and its type."""
    for i, block in enumerate(content):
        where = f"{field}[{i}]"
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise InvalidRequest(f"{where} must be an object with a `type`", param=where)
        yield block, where, block["type"]


def _refuse(field: str, kind: str, known: str) -> NoReturn:
    raise InvalidRequest(
        f"{field}.type must be {known} (the model reads text only), not {kind!r:.80}", param=f"{field}.type"
    )
