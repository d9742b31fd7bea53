"""`repair`: changes a history to the form that the model was trained on, as the `HistoryRules` of its family say.

A system message in mid-conversation becomes text of the user message beside it, at the place where it is, so that the
prompt up to there stays as it was and the engine's cache of it is of use. `turns` moves and joins messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from dovetail.conversation import check_messages
from dovetail.errors import InvalidRequest
from dovetail.formats.parts import PICTURES
from dovetail.formats.prompts.turns import (
    Alternation,
    CallPlace,
    Place,
    Slot,
    alternating,
    is_empty,
    placed,
    split,
    with_pictures,
    with_user,
)

#: The repair that changes no history: it is left out with the others, and made where the answer is read.
UNMARKED_CALL = "unmarked_call"
#: The repair that reports that the prompt has tools in the generic way (`derived.generic`).
GENERIC_TOOLS = "generic_tools"
#: The repairs that keep a prompt beginning with the last one: the gateway makes them, which knows the last one.
BILLING_LINE, TOOLS_ORDER, DATE_LINE = "billing_line", "tools_order", "date_line"
#: Every kind of repair and what it does. Clients and metrics may rely on the names. `hidden_call`, `hidden_result`
#: and `generic_tools` only report what is done. The last two refuse a history that cannot be repaired.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "developer_role": "the role developer becomes system if the model does not know it",
        "system_role": "a system message in mid-conversation becomes text of the user message beside it if the model "
        "knows one at the beginning only",
        "system_merged": "system messages at the beginning become one if the model knows only one",
        "user_merged": "user messages in a row become one if the model knows only turns that alternate",
        "assistant_merged": "assistant messages in a row become one if the model knows only turns that alternate",
        "assistant_added": "an assistant message stands between a result and a user message if the model knows only "
        "turns that alternate",
        "user_added": "an empty user message stands before an answer if the model knows only turns that alternate, or "
        "at the beginning of a conversation without one if the model needs one",
        "calls_split": "calls of one message become messages of their own, each before its result, if the model knows "
        "only one call in a message",
        "null_reasoning": "reasoning that is null is removed",
        "reasoning_field": "reasoning moves to the field that the template reads, or is removed if that field has text",
        "empty_content": "content without text (null, no parts, empty parts) becomes empty text, or null beside calls "
        "if the template shows them only then",
        "content_parts": "parts of text become one string, or a string becomes a part, as the template needs it",
        "empty_calls": "tool_calls that is null or empty is removed",
        "arguments_object": "arguments that are JSON text become an object if the template needs objects",
        "invalid_arguments": 'arguments that are no JSON object become {"arguments": …} if the template needs objects',
        "call_id": "a call gets the id that the model was trained on",
        "result_id": "a result gets the new id of its call",
        "result_order": "results right after their calls are sorted like the calls if the prompt does not show which "
        "call each one answers",
        "picture_moved": "a picture moves to the user message after it, which is added if there is none, if the model "
        "knows none in a message of this role",
        "hidden_call": "a call is left out of the prompt, because the chat template shows none",
        "hidden_result": "a result is left out of the prompt, because the chat template shows none",
        GENERIC_TOOLS: "tools, calls and results are text in a generic layout, because the chat template shows none",
        BILLING_LINE: "a line of a system text that begins with x-anthropic-billing-header: is left out, because it is "
        "for the vendor's server and changes with every request",
        TOOLS_ORDER: "tools that come in another order than in the last prompt of the conversation get that order",
        DATE_LINE: "a line of the system text that tells the date or the time, and is another one than in the last "
        "prompt of the conversation, moves to the end of that text",
        UNMARKED_CALL: "an answer that is nothing but the JSON of a call to one of the tools is that call; a defect of "
        "the answer reports it",
        "orphan_result": "a result that answers no earlier call is refused",
        "unanswered_call": "a call without a result before the next message of another role is refused",
    }
)

#: The fields in which clients send reasoning.
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")

_REASONING = frozenset(REASONING_FIELDS)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class Repair(msgspec.Struct, frozen=True):
    """One change that `Format.repair` made to a history.

    `kind`: one of `KINDS`.
    `where`: the path of the changed field.
    `detail`: what it was changed to, for people.
    """

    kind: str
    where: str
    detail: str = ""


class Repaired(NamedTuple):
    """A repaired history.

    `places`: where in `messages` each message of the client is; None if it was joined with another, or split.
    """

    messages: list[dict[str, Any]]
    repairs: list[Repair]
    places: Sequence[int | None]


@dataclass(frozen=True)
class HistoryRules:
    """What a family's prompts need of a history.

    `call_id`: makes a call's id from the tool's name and the call's number in the conversation; None keeps ids.
    `parts`: whether content must be a string ("text") or a list of parts ("parts").
    `arguments`: whether the arguments of calls must be objects and not JSON text.
    `null_beside_calls`: whether calls are shown only if the content is null.
    `developer`: whether the model knows the developer role.
    `system`: where the model knows system messages.
    `alternation`: how turns of the user and of the assistant must alternate.
    `needs_user`: whether a conversation must have a message of the user.
    `one_call`: whether a message may have only one call.
    `reasoning_field`: the field from which reasoning is read.
    `results_in_order`: whether only the order of results shows which call each one answers.
    `hides_calls`, `hides_results`: whether prompts do not show calls, and results.
    `pictures`: the roles whose messages may have pictures; None: they stay where they are.
    """

    call_id: Callable[[str, int], str] | None = None
    parts: Literal["any", "text", "parts"] = "any"
    arguments: Literal["any", "object"] = "any"
    null_beside_calls: bool = False
    developer: bool = True
    system: Place = "anywhere"
    alternation: Alternation = "any"
    needs_user: bool = False
    one_call: bool = False
    reasoning_field: str = "reasoning_content"
    results_in_order: bool = False
    hides_calls: bool = False
    hides_results: bool = False
    pictures: frozenset[str] | None = None

    @property
    def arrange(self) -> bool:
        """Whether messages may have to be moved, joined, split or added."""
        return self.system != "anywhere" or self.alternation != "any" or self.needs_user or self.one_call


def repaired(
    messages: Sequence[Mapping[str, Any]],
    rules: HistoryRules,
    off: Iterable[str] = (),
    verbatim: Mapping[int, str] = MappingProxyType({}),
) -> Repaired:
    """The repaired history. `messages` are not changed.

    `off` names kinds of repair to skip. `verbatim`: the answers that go into the prompt as the model wrote them, by the
    numbers of their messages. The call ids that the model wrote stay, and no other repair of these messages is listed.

    Raises `InvalidRequest` naming the field for a result without its call, a call without its result, messages of a
    wrong shape, and an unknown kind in `off`.
    """
    if not isinstance(messages, list | tuple):
        check_messages(messages)
    history = _History(rules, checked_kinds(off), verbatim)
    try:
        changed = [history.message(i, message) for i, message in enumerate(messages)]
        history.end_of_results("the end")
        return history.arranged(changed)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # The messages' shape is checked only after a failure, as in rendering.
        check_messages(messages)
        raise InvalidRequest(f"messages cannot be repaired: {error}", param="messages") from error


def checked_kinds(kinds: Iterable[str]) -> frozenset[str]:
    """`kinds` as a set. Raises `InvalidRequest` for an unknown kind."""
    kinds = tuple(kinds)
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidRequest(f"there is no repair {kind!r:.80}; there are {', '.join(KINDS)}")
    return frozenset(kinds)


def listed_kinds(words: str) -> frozenset[str]:
    """The kinds in a list such as ``call_id,result_id``, ``all`` or ``none``.

    Raises `InvalidRequest` for an unknown kind.
    """
    if words in ("all", "none"):
        return frozenset(KINDS if words == "all" else ())
    return checked_kinds(words.split(","))


class _History:
    """Repairs a history message by message, and tracks which calls wait for their results."""

    def __init__(self, rules: HistoryRules, off: frozenset[str], verbatim: Mapping[int, str]) -> None:
        self.repairs: list[Repair] = []
        self._rules = rules
        self._off = off
        self._verbatim = verbatim
        self._call_count = 0
        # The client's call id -> the calls that it refers to from here on, each with its new id.
        self._calls: dict[str, deque[tuple[str, CallPlace]]] = {}
        self._unanswered: dict[CallPlace, None] = {}  # an ordered set
        # The current run of results: the call that each one answers (None: no call) and the index of its message.
        self._answered: list[tuple[CallPlace | None, int]] = []
        #: The number of a result -> its call.
        self._call_of: dict[int, CallPlace] = {}
        #: New index of a message -> its old index.
        self._sources: dict[int, int] = {}
        #: The number of a message -> its pictures that move.
        self._moved: dict[int, list[Mapping[str, Any]]] = {}

    def message(self, i: int, original: Mapping[str, Any]) -> dict[str, Any]:
        message, where = {**original}, f"messages[{i}]"
        role = message.get("role")
        if role == "tool":
            self._result(message, i)
        else:
            self.end_of_results(where)
        earlier = len(self.repairs)
        if role == "developer" and not self._rules.developer and self.make_repair("developer_role", f"{where}.role"):
            message["role"] = "system"
        if not _REASONING.isdisjoint(message):
            self._reasoning(message, where)
        content = message.get("content")
        if isinstance(content, list | tuple) and self._rules.pictures is not None:
            content = self._pictures(message, content, i)
        if not content or not isinstance(content, str) or self._rules.parts == "parts":
            self._content(message, content, f"{where}.content")
        if "tool_calls" in message:
            self._tool_calls(message, i)
        if i in self._verbatim:
            del self.repairs[earlier:]
        return message

    def end_of_results(self, before: str) -> None:
        """End a run of results: refuse calls that still wait for one, and sort the results if necessary."""
        if self._unanswered and "unanswered_call" not in self._off:
            i, j = next(iter(self._unanswered))
            field = f"messages[{i}].tool_calls[{j}].id"
            raise InvalidRequest(
                f"{field}: the call has no result before {before}; to send it anyway, leave off the repair "
                "unanswered_call",
                param=field,
            )
        self._unanswered.clear()
        if len(self._answered) > 1:
            self._order_results()
        self._answered.clear()

    def _order_results(self) -> None:
        calling_message = self._answered[0][1] - 1
        results = [(call, i) for call, i in self._answered if call is not None and call[0] == calling_message]
        if not self._rules.results_in_order or len(results) < len(self._answered):
            return
        for (_, i), (_, source) in zip(results, sorted(results), strict=True):
            if i != source and self.make_repair("result_order", f"messages[{source}]", f"-> messages[{i}]"):
                self._sources[i] = source

    def make_repair(self, kind: str, where: str, detail: str = "") -> bool:
        """Whether to make this repair. If so, it is recorded."""
        if kind in self._off:
            return False
        self.repairs.append(Repair(kind, where, detail))
        return True

    def arranged(self, messages: list[dict[str, Any]]) -> Repaired:
        """The history with its `messages` where the model knows them."""
        rules = self._rules
        if not self._sources and not self._moved and not rules.arrange:
            return Repaired(messages, self.repairs, range(len(messages)))
        slots = [Slot(j, [messages[j]]) for j in (self._sources.get(i, i) for i in range(len(messages)))]
        slots = placed(with_pictures(slots, self._moved), rules.system, self.make_repair)
        if rules.one_call:
            slots = split(slots, self._call_of, None if rules.null_beside_calls else self._form(""), self.make_repair)
        if rules.alternation != "any":
            slots = alternating(slots, rules.alternation, self._form, self.make_repair)
        if rules.needs_user:
            slots = with_user(slots, self._form, self.make_repair)
        places: list[int | None] = [None] * len(messages)
        for place, slot in enumerate(slots):
            if slot.number is not None and slot.whole:
                places[slot.number] = place
        return Repaired([slot.joined(rules.reasoning_field) for slot in slots], self.repairs, places)

    def _form(self, text: str) -> Any:
        """`text` as content in the form that the template needs."""
        into_parts = self._rules.parts == "parts" and "content_parts" not in self._off
        return [{"type": "text", "text": text}] if into_parts else text

    def _reasoning(self, message: dict[str, Any], where: str) -> None:
        read_field = self._rules.reasoning_field
        for field in REASONING_FIELDS:
            if field not in message:
                continue
            text = message[field]
            if text is None:
                if self.make_repair("null_reasoning", f"{where}.{field}"):
                    del message[field]
            elif field != read_field and isinstance(text, str):
                moves = text and not message.get(read_field)
                if self.make_repair("reasoning_field", f"{where}.{field}", f"-> {read_field}" if moves else "dropped"):
                    del message[field]
                    if moves:
                        message[read_field] = text

    def _pictures(self, message: dict[str, Any], content: Sequence[Mapping[str, Any]], i: int) -> Any:
        """The content without the pictures that move."""
        pictures = [part for part in content if part["type"] in PICTURES]
        roles = self._rules.pictures or ()
        if not pictures or message.get("role") in roles:
            return content
        if self.make_repair("picture_moved", f"messages[{i}].content", "-> the user message after it"):
            self._moved[i] = pictures
            message["content"] = [part for part in content if part["type"] not in PICTURES]
        return message["content"]

    def _content(self, message: dict[str, Any], content: Any, where: str) -> None:
        if not isinstance(content, str | list | tuple | None):
            raise TypeError("content is neither a string nor parts")
        if not content or is_empty(content):
            empty = self._form("")
            if self._rules.null_beside_calls and message.get("tool_calls"):
                empty = None
            if content != empty and self.make_repair("empty_content", where):
                message["content"] = empty
        elif isinstance(content, str):
            parts = self._form(content)
            if parts is not content and self.make_repair("content_parts", where, "string -> part"):
                message["content"] = parts
        elif self._rules.parts == "text" and all(part["type"] == "text" for part in content):
            text = "".join(part["text"] for part in content)
            if self.make_repair("content_parts", where, f"{len(content)} parts -> string"):
                message["content"] = text

    def _tool_calls(self, message: dict[str, Any], i: int) -> None:
        calls = message["tool_calls"]
        if not calls:
            if self.make_repair("empty_calls", f"messages[{i}].tool_calls"):
                del message["tool_calls"]
            return
        by_id: dict[str, deque[tuple[str, CallPlace]]] = {}
        repaired = []
        for j, call in enumerate(calls):
            call, where = {**call}, f"messages[{i}].tool_calls[{j}]"
            client_id, name = call["id"], call["function"]["name"]
            if not isinstance(client_id, str) or not isinstance(name, str):
                raise TypeError("an id and a name are strings")
            call["function"] = self._arguments(call["function"], f"{where}.function.arguments")
            if self._rules.call_id is not None and client_id not in self._verbatim.get(i, ""):
                new_id = self._rules.call_id(name, self._call_count)
                if client_id != new_id and self.make_repair(
                    "call_id", f"{where}.id", f"{client_id:.80} -> {new_id:.80}"
                ):
                    call["id"] = new_id
            self._call_count += 1
            by_id.setdefault(client_id, deque()).append((call["id"], (i, j)))
            self._unanswered[i, j] = None
            repaired.append(call)
        message["tool_calls"] = repaired
        if self._rules.hides_calls:
            self.make_repair("hidden_call", f"messages[{i}].tool_calls")
        self._calls |= by_id  # an id that a later turn uses again refers to the later call from there on

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
        return {**function, "arguments": value} if self.make_repair(kind, where) else function

    def _result(self, message: dict[str, Any], i: int) -> None:
        client_id, where = message["tool_call_id"], f"messages[{i}].tool_call_id"
        if self._rules.hides_results:
            self.make_repair("hidden_result", f"messages[{i}]")
        calls = self._calls.get(client_id)
        if calls is None:
            if "orphan_result" not in self._off:
                raise InvalidRequest(
                    f"{where}: no call before this result has the id {client_id!r:.80}; to send it anyway, leave off "
                    "the repair orphan_result",
                    param=where,
                )
            self._answered.append((None, i))
            return
        # If a client used one id for several calls of a turn, their results answer them in order.
        new_id, call = calls.popleft() if len(calls) > 1 else calls[0]
        self._unanswered.pop(call, None)
        self._answered.append((call, i))
        self._call_of[i] = call
        if client_id != new_id and self.make_repair("result_id", where, f"{client_id:.80} -> {new_id:.80}"):
            message["tool_call_id"] = new_id
