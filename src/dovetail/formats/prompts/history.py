"""`repair`: changes a history to the form that the model was trained on, as the `HistoryRules` of its family say.

A system message in mid-conversation becomes text of the user message beside it, at the place where it is, so that the
prompt up to there stays as it was and the engine's cache of it is of use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from dovetail.conversation import check_messages
from dovetail.errors import InvalidRequest

#: Every kind of repair and what it does. Clients and metrics may rely on the names. `hidden_call` and `hidden_result`
#: only report what the template does. The last two refuse a history that cannot be repaired.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "developer_role": "the role developer becomes system if the model does not know it",
        "system_role": "a system message in mid-conversation becomes text of the user message beside it if the model "
        "knows one at the beginning only",
        "system_merged": "system messages at the beginning become one if the model knows only one",
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
        "hidden_call": "a call is left out of the prompt, because the chat template shows none",
        "hidden_result": "a result is left out of the prompt, because the chat template shows none",
        "orphan_result": "a result that answers no earlier call is refused",
        "unanswered_call": "a call without a result before the next message of another role is refused",
    }
)

#: The fields in which clients send reasoning.
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")

#: Where a model knows system messages: anywhere, at the beginning only, or as one message at the beginning.
Place = Literal["anywhere", "first", "one"]

_BETWEEN = "\n\n"
_REASONING = frozenset(REASONING_FIELDS)
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_Place = tuple[int, int]  # a call's position: the index of its message, and its index in that message


class Repair(msgspec.Struct, frozen=True):
    """One change that `Format.repair` made to a history.

    `kind`: one of `KINDS`.
    `where`: the path of the changed field.
    `detail`: what it was changed to, for people.
    """

    kind: str
    where: str
    detail: str = ""


@dataclass(frozen=True)
class HistoryRules:
    """What a family's prompts need of a history.

    `call_id`: makes a call's id from the tool's name and the call's number in the conversation; None keeps ids.
    `parts`: whether content must be a string ("text") or a list of parts ("parts").
    `arguments`: whether the arguments of calls must be objects and not JSON text.
    `null_beside_calls`: whether calls are shown only if the content is null.
    `developer`: whether the model knows the developer role.
    `system`: where the model knows system messages.
    `reasoning_field`: the field from which reasoning is read.
    `results_in_order`: whether only the order of results shows which call each one answers.
    `hides_calls`, `hides_results`: whether prompts do not show calls, and results.
    """

    call_id: Callable[[str, int], str] | None = None
    parts: Literal["any", "text", "parts"] = "any"
    arguments: Literal["any", "object"] = "any"
    null_beside_calls: bool = False
    developer: bool = True
    system: Place = "anywhere"
    reasoning_field: str = "reasoning_content"
    results_in_order: bool = False
    hides_calls: bool = False
    hides_results: bool = False


def repair(
    messages: Sequence[Mapping[str, Any]],
    rules: HistoryRules,
    off: Iterable[str] = (),
    verbatim: Mapping[int, str] = MappingProxyType({}),
) -> tuple[list[dict[str, Any]], list[Repair]]:
    """Return repaired messages and the list of repairs. `messages` are not changed.

    `off` names kinds of repair to skip. `verbatim`: the answers that go into the prompt as the model wrote them, by the
    numbers of their messages. The call ids that the model wrote stay, and no other repair of these messages is listed.

    Raises `InvalidRequest` naming the field for a result without its call, a call without its result, messages of a
    wrong shape, and an unknown kind in `off`.
    """
    if not isinstance(messages, list | tuple):
        check_messages(messages)
    history = _History(rules, checked_kinds(off), verbatim)
    try:
        repaired = [history.message(i, message) for i, message in enumerate(messages)]
        history.end_of_results("the end")
        repaired = [repaired[history.sources.get(i, i)] for i in range(len(repaired))]
        return placed(repaired, rules.system, history.make_repair), history.repairs
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
        self._calls: dict[str, deque[tuple[str, _Place]]] = {}
        self._unanswered: dict[_Place, None] = {}  # an ordered set
        # The current run of results: the call that each one answers (None: no call) and the index of its message.
        self._answered: list[tuple[_Place | None, int]] = []
        #: New index of a message -> its old index.
        self.sources: dict[int, int] = {}

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
                self.sources[i] = source

    def make_repair(self, kind: str, where: str, detail: str = "") -> bool:
        """Whether to make this repair. If so, it is recorded."""
        if kind in self._off:
            return False
        self.repairs.append(Repair(kind, where, detail))
        return True

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

    def _content(self, message: dict[str, Any], content: Any, where: str) -> None:
        if not isinstance(content, str | list | tuple | None):
            raise TypeError("content is neither a string nor parts")
        into_parts = self._rules.parts == "parts" and "content_parts" not in self._off
        if not content or (not isinstance(content, str) and all(map(_is_empty, content))):
            empty: Any = [{"type": "text", "text": ""}] if into_parts else ""
            if self._rules.null_beside_calls and message.get("tool_calls"):
                empty = None
            if content != empty and self.make_repair("empty_content", where):
                message["content"] = empty
        elif isinstance(content, str):
            if into_parts and self.make_repair("content_parts", where, "string -> part"):
                message["content"] = [{"type": "text", "text": content}]
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
        by_id: dict[str, deque[tuple[str, _Place]]] = {}
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
        if client_id != new_id and self.make_repair("result_id", where, f"{client_id:.80} -> {new_id:.80}"):
            message["tool_call_id"] = new_id


def _is_empty(part: Any) -> bool:
    return bool(part["type"] == "text" and part["text"] == "")


def placed(
    messages: Sequence[dict[str, Any]], known: Place, repairs: Callable[[str, str, str], bool]
) -> list[dict[str, Any]]:
    """`messages` with system messages where the model knows them.

    `repairs`: tells whether to make a repair, given its kind, its field and what it does. Messages that declare tools
    stay where they are.
    """
    if known == "anywhere":
        return list(messages)
    # Each message of the result with the contents that it is to have. They are joined at the end, because there may be
    # very many.
    result: list[tuple[dict[str, Any], list[Any]]] = []
    begins = True  # whether there were only system messages so far
    follows_system = False  # whether the last message is a system message that became a user message of its own
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        moves = role == "system" and not message.get("tools")
        begins = begins and role == "system"
        if (
            moves
            and begins
            and known == "one"
            and result
            and repairs("system_merged", f"messages[{i}]", "-> messages[0]")
        ):
            result[0][1].append(content)
        elif moves and not begins and repairs("system_role", f"messages[{i}].role", "-> user"):
            if result[-1][0].get("role") == "user":
                result[-1][1].append(_marked(content))
            else:
                result.append(({"role": "user"}, [_marked(content)]))
                follows_system = True
        elif follows_system and role == "user":
            result[-1][1].append(content)
            follows_system = False
        else:
            result.append((message, [content]))
            follows_system = False
    return [_joined(message, contents) for message, contents in result]


def _marked(content: Any) -> Any:
    """`content` with tags that tell it from the user's own text."""
    opener, closer = "<system-reminder>\n", "\n</system-reminder>"
    if isinstance(content, str):
        return opener + content + closer
    return [_part(opener), *content, _part(closer)]


def _joined(message: dict[str, Any], contents: list[Any]) -> dict[str, Any]:
    """`message` with `contents`, which are strings or parts."""
    if contents == [message.get("content")]:
        return message
    if all(isinstance(content, str) for content in contents):
        return {**message, "content": _BETWEEN.join(contents)}
    parts = _parts(contents[0])
    for content in contents[1:]:
        parts += (_part(_BETWEEN), *_parts(content))
    return {**message, "content": parts}


def _parts(content: Any) -> list[Any]:
    return [_part(content)] if isinstance(content, str) else list(content)


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
