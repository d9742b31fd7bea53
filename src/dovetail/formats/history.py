"""`repair`: changes a history to the form that the model was trained on, as the `HistoryRules` of its family say."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from dovetail.conversation import check_messages
from dovetail.errors import InvalidRequest

#: Every kind of repair, and what it does: the words are stable, and clients and metrics may count them. The last two
#: change nothing: they refuse a history that cannot be put right.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "developer_role": "the role developer becomes system, where the model does not know it",
        "null_reasoning": "reasoning that is null is taken out",
        "reasoning_field": "reasoning under a name that is not read moves to the one that is, or goes if that has some",
        "empty_content": "content that says nothing (null, no parts, parts of empty text) becomes empty text, or null "
        "beside calls where the template shows them only so",
        "content_parts": "parts of text become one string, or a string becomes a part, as the template wants them",
        "empty_calls": "tool_calls that is null or empty is taken out",
        "arguments_object": "arguments that are a string become the object it spells, where the template wants objects",
        "invalid_arguments": 'arguments that spell no object become {"arguments": …}, where the template wants objects',
        "call_id": "a call gets the id that the model was trained on",
        "result_id": "a result gets the id that its call got",
        "result_order": "results right behind their calls come in the calls' order, where the prompt shows not whose "
        "they are",
        "orphan_result": "a result that answers no call before it is refused",
        "unanswered_call": "a call that has no result before the next message of another role is refused",
    }
)

#: The fields that clients send reasoning in.
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")

_REASONING = frozenset(REASONING_FIELDS)
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_Place = tuple[int, int]  # of a call: the message's index, and its own in there


class Repair(msgspec.Struct, frozen=True):
    """One change that `Format.repair` made to a history: `kind` is one of `KINDS`, `where` names the field."""

    kind: str
    where: str
    detail: str = ""


@dataclass(frozen=True)
class HistoryRules:
    """What a family's prompts are made of."""

    #: The id of a call, from its name and its number, which counts over the whole conversation. None: ids stay.
    call_id: Callable[[str, int], str] | None = None
    #: Whether content must be a string, or a list of parts.
    parts: Literal["any", "text", "parts"] = "any"
    #: Whether the arguments of calls must be objects, and no JSON strings.
    arguments: Literal["any", "object"] = "any"
    #: Whether calls are shown only beside content that is null.
    null_beside_calls: bool = False
    #: Whether the model knows the developer role.
    developer: bool = True
    #: The field in which reasoning is read.
    reasoning_field: str = "reasoning_content"
    #: Whether only its place among the results says which call a result answers.
    results_in_order: bool = False


def repair(
    messages: Sequence[Mapping[str, Any]], rules: HistoryRules, off: Iterable[str] = ()
) -> tuple[list[dict[str, Any]], list[Repair]]:
    """`messages` as the family wants them, and what was changed for that; `messages` themselves stay as they are.

    `off` names the kinds that are left alone. Raises `InvalidRequest` naming the field for results without their calls,
    calls without their results and messages of a wrong shape, and for a kind in `off` that there is not.
    """
    if not isinstance(messages, list | tuple):
        check_messages(messages)
    history = _History(rules, checked_kinds(off))
    try:
        repaired = [history.message(i, message) for i, message in enumerate(messages)]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # As in rendering, messages are taken to be well formed, which is looked into when they cannot be.
        check_messages(messages)
        raise InvalidRequest(f"messages cannot be repaired: {error}", param="messages") from error
    history.end_of_results("the end")
    return [repaired[history.sources.get(i, i)] for i in range(len(repaired))], history.repairs


def checked_kinds(kinds: Iterable[str]) -> frozenset[str]:
    """`kinds` as a set. Raises `InvalidRequest` for a word that is not one of `KINDS`."""
    kinds = tuple(kinds)
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidRequest(f"there is no repair {kind!r:.80}; there are {', '.join(KINDS)}")
    return frozenset(kinds)


def listed_kinds(words: str) -> frozenset[str]:
    """The kinds in a list like ``call_id,result_id``; ``all`` and ``none`` are lists too. Raises `InvalidRequest`."""
    if words in ("all", "none"):
        return frozenset(KINDS if words == "all" else ())
    return checked_kinds(words.split(","))


class _History:
    """What was repaired in a history so far, and which of its calls wait for their results."""

    def __init__(self, rules: HistoryRules, off: frozenset[str]) -> None:
        self.repairs: list[Repair] = []
        self._rules = rules
        self._off = off
        self._made = 0  # calls so far
        # By the client's id: the calls that it means from here on, in order, with the ids that they got.
        self._calls: dict[str, deque[tuple[str, _Place]]] = {}
        self._unanswered: dict[_Place, None] = {}  # a set that keeps its order
        # By the latest results, each with its message's index; None: no call.
        self._answered: list[tuple[_Place | None, int]] = []
        #: The index of a message, by the one that it moves to.
        self.sources: dict[int, int] = {}

    def message(self, i: int, original: Mapping[str, Any]) -> dict[str, Any]:
        message, where = {**original}, f"messages[{i}]"
        role = message.get("role")
        if role == "tool":
            self._result(message, i)
        else:
            self.end_of_results(where)
        if role == "developer" and not self._rules.developer and self._repairs("developer_role", f"{where}.role"):
            message["role"] = "system"
        if not _REASONING.isdisjoint(message):
            self._reasoning(message, where)
        content = message.get("content")
        if not content or not isinstance(content, str) or self._rules.parts == "parts":
            self._content(message, content, f"{where}.content")
        if "tool_calls" in message:
            self._tool_calls(message, i)
        return message

    def end_of_results(self, before: str) -> None:
        """To the calls that wait for a result none can come any more."""
        if self._unanswered and "unanswered_call" not in self._off:
            i, j = next(iter(self._unanswered))
            field = f"messages[{i}].tool_calls[{j}].id"
            raise InvalidRequest(
                f"{field}: the call has no result (a message of role tool) before {before}; to send it all the same, "
                "leave off the repair unanswered_call",
                param=field,
            )
        self._unanswered.clear()
        if len(self._answered) > 1:
            self._order_results()
        self._answered.clear()

    def _order_results(self) -> None:
        before = self._answered[0][1] - 1
        behind = [(call, i) for call, i in self._answered if call is not None and call[0] == before]
        if not self._rules.results_in_order or len(behind) < len(self._answered):
            return
        for (_, i), (_, source) in zip(behind, sorted(behind), strict=True):
            if i != source and self._repairs("result_order", f"messages[{source}]", f"-> messages[{i}]"):
                self.sources[i] = source

    def _repairs(self, kind: str, where: str, detail: str = "") -> bool:
        """Whether this is to be repaired, which then is on record."""
        if kind in self._off:
            return False
        self.repairs.append(Repair(kind, where, detail))
        return True

    def _reasoning(self, message: dict[str, Any], where: str) -> None:
        read = self._rules.reasoning_field
        for field in REASONING_FIELDS:
            if field not in message:
                continue
            text = message[field]
            if text is None:
                if self._repairs("null_reasoning", f"{where}.{field}"):
                    del message[field]
            elif field != read and isinstance(text, str):
                moves = text and not message.get(read)
                if self._repairs("reasoning_field", f"{where}.{field}", f"-> {read}" if moves else "dropped"):
                    del message[field]
                    if moves:
                        message[read] = text

    def _content(self, message: dict[str, Any], content: Any, where: str) -> None:
        if not isinstance(content, str | list | tuple | None):
            raise TypeError("content is neither a string nor parts")
        into_parts = self._rules.parts == "parts" and "content_parts" not in self._off
        if not content or (not isinstance(content, str) and all(map(_is_empty, content))):
            nothing: Any = [{"type": "text", "text": ""}] if into_parts else ""
            if self._rules.null_beside_calls and message.get("tool_calls"):
                nothing = None
            if content != nothing and self._repairs("empty_content", where):
                message["content"] = nothing
        elif isinstance(content, str):
            if into_parts and self._repairs("content_parts", where, "string -> part"):
                message["content"] = [{"type": "text", "text": content}]
        elif self._rules.parts == "text" and all(part["type"] == "text" for part in content):
            text = "".join(part["text"] for part in content)
            if self._repairs("content_parts", where, f"{len(content)} parts -> string"):
                message["content"] = text

    def _tool_calls(self, message: dict[str, Any], i: int) -> None:
        calls = message["tool_calls"]
        if not calls:
            if self._repairs("empty_calls", f"messages[{i}].tool_calls"):
                del message["tool_calls"]
            return
        asked: dict[str, deque[tuple[str, _Place]]] = {}
        repaired = []
        for j, call in enumerate(calls):
            call, where = {**call}, f"messages[{i}].tool_calls[{j}]"
            given, name = call["id"], call["function"]["name"]
            if not isinstance(given, str) or not isinstance(name, str):
                raise TypeError("an id and a name are strings")
            call["function"] = self._arguments(call["function"], f"{where}.function.arguments")
            if self._rules.call_id is not None:
                wanted = self._rules.call_id(name, self._made)
                if given != wanted and self._repairs("call_id", f"{where}.id", f"{given:.80} -> {wanted:.80}"):
                    call["id"] = wanted
            self._made += 1
            asked.setdefault(given, deque()).append((call["id"], (i, j)))
            self._unanswered[i, j] = None
            repaired.append(call)
        message["tool_calls"] = repaired
        self._calls |= asked  # an id that comes again in a later turn means that turn's call from there on

    def _arguments(self, function: Any, where: str) -> Any:
        arguments = function["arguments"]
        if self._rules.arguments == "any" or not isinstance(arguments, str):
            return function
        kind, value = "arguments_object", {}
        if arguments.strip():  # clients send "" for a call without arguments
            try:
                value = _OBJECT.decode(arguments)
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                kind, value = "invalid_arguments", {"arguments": arguments}
        return {**function, "arguments": value} if self._repairs(kind, where) else function

    def _result(self, message: dict[str, Any], i: int) -> None:
        given, where = message["tool_call_id"], f"messages[{i}].tool_call_id"
        asked = self._calls.get(given)
        if asked is None:
            if "orphan_result" not in self._off:
                raise InvalidRequest(
                    f"{where}: no call before this result has the id {given!r:.80}; to send it all the same, leave off "
                    "the repair orphan_result",
                    param=where,
                )
            self._answered.append((None, i))
            return
        # Where a client used one id for several calls, their results answer them in order.
        wanted, call = asked.popleft() if len(asked) > 1 else asked[0]
        self._unanswered.pop(call, None)
        self._answered.append((call, i))
        if given != wanted and self._repairs("result_id", where, f"{given:.80} -> {wanted:.80}"):
            message["tool_call_id"] = wanted


def _is_empty(part: Any) -> bool:
    return bool(part["type"] == "text" and part["text"] == "")
