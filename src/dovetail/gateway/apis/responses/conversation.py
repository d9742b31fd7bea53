"""The items of a response's input as the messages of a chat completion.

One answer of a model is several items: reasoning, text and calls. Here they become one assistant message again, as the
model wrote it. Items of one response have its id in their own ids; items without such ids belong together if they stand
together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.gateway.apis.pictures import Pictures, Sees, blind
from dovetail.gateway.apis.responses import compaction
from dovetail.gateway.apis.responses.tools import flat_name

#: Calls that OpenAI's own tools make, with their outputs: shown to the model as calls of functions.
#: type -> (the function's name, the field with its arguments).
_CALLS = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
_OUTPUTS = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
)
#: Items that say nothing to a model here. They are left out and reported.
_OMITTED = (
    "additional_tools",
    "code_interpreter_call",
    "compaction_trigger",
    "computer_call",
    "computer_call_output",
    "configuration_update",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_list_tools",
    "program",
    "program_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)
_ROLES = ("user", "system", "developer", "assistant")
#: Parts that are text: type -> the field with the text. Errors name the first four.
_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
#: Parts of a message from another agent. Codex calls its text encrypted, which it is for OpenAI's own models only.
_AGENT_PARTS = {**_TEXT_PARTS, "encrypted_content": "encrypted_content"}
#: The ids that this server gives to the items of an output: the kind, the response, the place.
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_[0-9]+")

#: An item's id -> the item; None if it is not stored.
FindItem = Callable[[str], Mapping[str, Any] | None]
#: A sealed summary -> the summary; None if this server did not seal it for this client.
OpenSummary = Callable[[str], str | None]


class _Answer(msgspec.Struct):
    """An assistant message that may get more items. `results`: how many results have come behind it."""

    message: dict[str, Any]
    place: int
    response: str | None
    texts: list[str] = []
    reasoning: list[str] = []
    results: int = 0

    @property
    def has_text(self) -> bool:
        return any(self.texts)

    @property
    def has_calls(self) -> bool:
        return "tool_calls" in self.message

    def write(self) -> None:
        """Write the texts into the message."""
        self.message["content"] = "".join(self.texts)
        if self.reasoning:
            self.message["reasoning_content"] = "".join(self.reasoning)


class Conversation:
    """The messages that `add` makes of items. Raises `InvalidRequest` that names the field of the item.

    `fields` has the client's names for fields of the messages, as `FieldNames` has them; `omitted` lists the items that
    were left out; `compacts` tells whether the input ends by asking for a compaction. `find_item` resolves an
    `item_reference`.
    """

    def __init__(
        self, find_item: FindItem, open_summary: OpenSummary = lambda sealed: None, sees: Sees = blind
    ) -> None:
        self._messages: list[dict[str, Any]] = []
        self._answers: list[_Answer] = []
        self.fields: dict[str, str] = {"messages": "input"}
        self.pictures = Pictures(sees)
        self.omitted = self.pictures.omitted
        self.compacts = False
        self._find_item = find_item
        self._open_summary = open_summary
        self._answer: _Answer | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages so far."""
        for answer in self._answers:  # here, because an answer may have very many texts
            answer.write()
        return self._messages

    def add_instructions(self, text: str) -> None:
        """A system message with the `instructions` of the request."""
        self._append({"role": "system", "content": text}, "instructions")

    def add_stored(self, items: list[dict[str, Any]]) -> None:
        """The items of an earlier response."""
        for item in items:
            self._add(item, "previous_response_id")

    def add_input(self, value: Any) -> None:
        """The `input` of the request: text, or a list of items."""
        if isinstance(value, str):
            self._append({"role": "user", "content": value}, "input")
        elif not isinstance(value, list):
            raise InvalidRequest("input must be a string or a list of items", param="input")
        else:
            self.compacts = bool(value) and isinstance(value[-1], dict) and kind_of(value[-1]) == compaction.TRIGGER
            for i, item in enumerate(value[:-1] if self.compacts else value):
                self._add(item, f"input[{i}]")

    def _add(self, item: Any, where: str) -> None:
        if not isinstance(item, dict):
            raise InvalidRequest(f"{where} must be an object", param=where)
        kind = kind_of(item)
        if kind == "message":
            self._message(item, where)
        elif kind == "agent_message":
            content = self._content(item.get("content"), f"{where}.content", _AGENT_PARTS)
            self._append({"role": "user", "content": content}, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, where)
        elif kind in _CALLS:
            self._foreign_call(item, where)
        elif kind in _OUTPUTS:
            self._output(item, where)
        elif kind == "mcp_call":
            self._mcp_call(item, where)
        elif kind == "item_reference":
            self._reference(item, where)
        elif kind in compaction.SUMMARIES:
            self._summary(item, where)
        elif kind in _OMITTED:
            self.omitted.append(f"{where}:{kind}")
        else:
            raise InvalidRequest(f"{where}.type {kind!r:.80} is not the type of an item", param=f"{where}.type")

    def _append(self, message: dict[str, Any], where: str) -> int:
        place = len(self._messages)
        self._messages.append(message)
        self.fields[f"messages[{place}]"] = where
        self._answer = None
        return place

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequest(f"{where}.role must be one of {', '.join(_ROLES)}", param=f"{where}.role")
        content, at = item.get("content"), f"{where}.content"
        if role != "assistant":
            self._append({"role": role, "content": self._content(content, at)}, where)
            return
        answer = self._answer
        goes_on = answer is not None and (self._same_response(item) or answer.has_calls or not answer.has_text)
        answer = self._assistant(item, where, goes_on=goes_on)
        answer.texts += [content] if isinstance(content, str) else self._texts(content, at)

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        text = "".join(self._texts(item.get("content"), f"{where}.content"))
        text = text or "\n\n".join(self._texts(item.get("summary"), f"{where}.summary"))
        record = item.get("encrypted_content")
        if not isinstance(record, str | None):
            field = f"{where}.encrypted_content"
            raise InvalidRequest(f"{field} must be a string", param=field)
        answer = self._answer
        goes_on = answer is not None and (not text or not (answer.has_text or answer.has_calls))
        answer = self._assistant(item, where, goes_on=goes_on or self._same_response(item))
        if text:
            answer.reasoning.append(text)
        if record:
            answer.message["dovetail"] = {"record": record}
            self.fields[f"messages[{answer.place}].dovetail.record"] = f"{where}.encrypted_content"

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        kind, field = ("function", "arguments") if item["type"] == "function_call" else ("custom", "input")
        namespace = item.get("namespace")
        name = flat_name(_text(item, "name", where), namespace if isinstance(namespace, str) else None)
        arguments = _text(item, field, where, empty=True)
        call = {"id": _text(item, "call_id", where), "type": kind, kind: {"name": name, field: arguments}}
        self._append_call(item, call, where)

    def _foreign_call(self, item: Mapping[str, Any], where: str) -> None:
        name, field = _CALLS[item["type"]]
        function = {"name": name, "arguments": msgspec.json.encode(item.get(field)).decode()}
        call = {"id": _text(item, "call_id", where), "type": "function", "function": function}
        self._append_call(item, call, where)

    def _mcp_call(self, item: Mapping[str, Any], where: str) -> None:
        call_id = _text(item, "id", where)
        name, arguments = _text(item, "name", where), _text(item, "arguments", where, empty=True)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._append_call(item, call, where)
        output = item.get("output") if item.get("error") is None else item["error"]
        self._result(call_id, output if isinstance(output, str) else msgspec.json.encode(output).decode(), where)

    def _append_call(self, item: Mapping[str, Any], call: dict[str, Any], where: str) -> None:
        goes_on = self._answer is not None and (not self._answer.results or self._same_response(item))
        answer = self._assistant(item, where, goes_on=goes_on)
        calls = answer.message.setdefault("tool_calls", [])
        at = f"messages[{answer.place}].tool_calls[{len(calls)}]"
        self.fields |= {at: where, f"{at}.{call['type']}": where, f"{at}.id": f"{where}.call_id"}
        calls.append(call)

    def _assistant(self, item: Mapping[str, Any], where: str, *, goes_on: bool) -> _Answer:
        """The assistant message that `item` belongs to: the last one if that goes on, else a new one."""
        if self._answer is None or not goes_on or (self._answer.results and not self._same_response(item)):
            message = {"role": "assistant", "content": ""}
            place = self._append(message, where)
            self._answer = _Answer(message, place, _response(item))
            self._answers.append(self._answer)
        return self._answer

    def _same_response(self, item: Mapping[str, Any]) -> bool:
        """Whether `item` has the id of the response of the last assistant message."""
        return (
            self._answer is not None and self._answer.response is not None and self._answer.response == _response(item)
        )

    def _output(self, item: Mapping[str, Any], where: str) -> None:
        key = "call_id" if "call_id" in item or item["type"] != "local_shell_call_output" else "id"
        output = item.get("output")
        if item["type"] == "shell_call_output":
            output = msgspec.json.encode(output).decode()
        elif item["type"] == "apply_patch_call_output" and output is None:
            output = _text(item, "status", where)
        self._result(_text(item, key, where), self._content(output, f"{where}.output"), where)

    def _result(self, call_id: str, content: Any, where: str) -> None:
        answer = self._answer
        place = self._append({"role": "tool", "tool_call_id": call_id, "content": content}, where)
        self.fields |= {
            f"messages[{place}].tool_call_id": f"{where}.call_id",
            f"messages[{place}].content": f"{where}.output",
        }
        if answer is not None:
            answer.results += 1
            self._answer = answer

    def _summary(self, item: Mapping[str, Any], where: str) -> None:
        sealed = item.get("encrypted_content")
        if not isinstance(sealed, str | None):
            field = f"{where}.encrypted_content"
            raise InvalidRequest(f"{field} must be a string", param=field)
        summary = self._open_summary(sealed) if sealed else None
        if summary is None:
            self.omitted.append(f"{where}:{item['type']}")
        self._append({"role": "user", "content": compaction.shown(summary)}, where)

    def _reference(self, item: Mapping[str, Any], where: str) -> None:
        name = _text(item, "id", where)
        found = self._find_item(name)
        if found is None:
            raise InvalidRequest(f"{where}.id: there is no stored item {name!r:.80}", param=f"{where}.id")
        self._add(found, where)

    def _content(self, content: Any, where: str, known: Mapping[str, str] = _TEXT_PARTS) -> str | list[dict[str, Any]]:
        """Text, or parts of text, as chat completions have them."""
        if content is None or isinstance(content, str):
            return content or ""
        parts = self._parts(content, where, known)
        return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts

    def _texts(self, parts: Any, where: str) -> list[str]:
        """The texts of parts among which the model sees no pictures."""
        return [] if parts is None else [part["text"] for part in self._parts(parts, where, sees=False)]

    def _parts(
        self, parts: Any, where: str, known: Mapping[str, str] = _TEXT_PARTS, *, sees: bool = True
    ) -> list[dict[str, Any]]:
        """`known` parts as parts of text, and pictures. Raises `InvalidRequest` for any other part."""
        if not isinstance(parts, list):
            raise InvalidRequest(f"{where} must be a string or a list of parts", param=where)
        shown: list[dict[str, Any]] = []
        for i, part in enumerate(parts):
            at = f"{where}[{i}]"
            kind = part.get("type") if isinstance(part, dict) else None
            field = known.get(kind) if isinstance(kind, str) else None
            if field is not None:
                shown.append({"type": "text", "text": _text(part, field, at, empty=True)})
            elif isinstance(part, dict) and sees and (picture := self.pictures.part(part, at)) is not None:
                shown.append(picture)
            elif isinstance(part, dict) and (text := self.pictures.left_out(part, at)) is not None:
                shown.append({"type": "text", "text": text})
            else:
                names = ", ".join(map(repr, [*known][:4]))
                raise InvalidRequest(
                    f"{at}.type must be one of {names} (no other is supported), not {kind!r:.80}", param=f"{at}.type"
                )
        return shown


def user_messages(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of the user in `items`: what a compaction keeps."""
    return [item for item in items if kind_of(item) == "message" and item.get("role") == "user"]


def kind_of(item: Mapping[str, Any]) -> Any:
    """The type of an item, which messages and references may leave out."""
    if item.get("type") is not None:
        return item["type"]
    return "message" if "role" in item else "item_reference" if "id" in item else None


def _response(item: Mapping[str, Any]) -> str | None:
    """The part of an item's id that all items of one response share; None for an id of another kind."""
    name = item.get("id")
    match = _ITEM_ID.fullmatch(name) if isinstance(name, str) else None
    return match[1] if match else None


def _text(item: Mapping[str, Any], key: str, where: str, *, empty: bool = False) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not (value or empty):
        kind = "a string" if empty else "a non-empty string"
        raise InvalidRequest(f"{where}.{key} must be {kind}", param=f"{where}.{key}")
    return value
