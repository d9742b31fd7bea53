"""Moves, joins, splits and adds messages of a history, so that they are in the order that the model knows.

Each function takes and returns `Slot`s. `repairs` tells whether to make a repair, given its kind, its field and what it
does; what it refuses stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: Where a model knows system messages: anywhere, at the beginning only, or as one message at the beginning.
Place = Literal["anywhere", "first", "one"]
#: Which turns must alternate: none have to; two messages of one role may not be neighbours; or user messages and
#: answers alternate, beginning with a user message, as if messages with calls and results were not there.
Alternation = Literal["any", "neighbours", "spoken"]
#: A call's position: the number of its message, and its index in that message.
CallPlace = tuple[int, int]
Repairs = Callable[[str, str, str], bool]

_BETWEEN = "\n\n"  # as mistral-common joins messages
#: What Mistral's own agent (mistral-vibe 1 and 2) has the assistant say between a result and a user message.
_UNDERSTOOD = "Understood."


@dataclass(slots=True)
class Slot:
    """A message of the repaired history.

    `number`: the number of the client's message, the first one if there are several; None for a message that was added.
    `messages`: those that become this one. They are joined at the end, because there may be very many.
    `whole`: whether it is the client's message, and nothing else.
    """

    number: int | None
    messages: list[dict[str, Any]]
    whole: bool = True

    @property
    def role(self) -> Any:
        return self.messages[0].get("role")

    @property
    def calls(self) -> bool:
        return any(message.get("tool_calls") for message in self.messages)

    @property
    def where(self) -> str:
        return f"messages[{self.number}]"

    def add(self, messages: Iterable[dict[str, Any]]) -> None:
        self.messages += messages
        self.whole = False

    def joined(self, reasoning_field: str) -> dict[str, Any]:
        """The message. Texts are joined by a blank line; empty ones are left out, as mistral-common does."""
        if len(self.messages) == 1:
            return self.messages[0]
        result: dict[str, Any] = {}
        for message in reversed(self.messages):
            result |= message
        contents = [message.get("content") for message in self.messages]
        result["content"] = _joined([content for content in contents if not is_empty(content)] or contents[:1])
        reasoning = [message[reasoning_field] for message in self.messages if message.get(reasoning_field)]
        if len(reasoning) > 1 and all(isinstance(text, str) for text in reasoning):
            result[reasoning_field] = _BETWEEN.join(reasoning)
        if calls := [call for message in self.messages for call in message.get("tool_calls") or ()]:
            result["tool_calls"] = calls
        return result


def placed(slots: Sequence[Slot], known: Place, repairs: Repairs) -> list[Slot]:
    """`slots` with system messages where the model knows them. Messages that declare tools stay where they are."""
    if known == "anywhere":
        return list(slots)
    result: list[Slot] = []
    begins = True  # whether there were only system messages so far
    follows_system = False  # whether the last message is a system message that became a user message of its own
    for slot in slots:
        message, role = slot.messages[0], slot.role
        moves = role == "system" and not message.get("tools")
        begins = begins and role == "system"
        if moves and begins and known == "one" and result and repairs("system_merged", slot.where, "-> messages[0]"):
            result[0].add(slot.messages)
        elif moves and not begins and repairs("system_role", f"{slot.where}.role", "-> user"):
            moved = {"role": "user", "content": _marked(message.get("content"))}
            if result[-1].role == "user":
                result[-1].add([moved])
            else:
                result.append(Slot(slot.number, [moved], whole=False))
                follows_system = True
        elif follows_system and role == "user":
            result[-1].add(slot.messages)
            follows_system = False
        else:
            result.append(slot)
            follows_system = False
    return result


def with_pictures(slots: Sequence[Slot], moved: Mapping[int, Sequence[Any]]) -> Sequence[Slot]:
    """`slots` with the pictures of `moved`, by the numbers of their messages, in the user messages that come next."""
    if not moved:
        return slots
    result: list[Slot] = []
    pictures: list[Any] = []
    for slot in slots:
        if pictures and slot.role not in ("tool", "system"):
            if slot.role == "user":
                slot = Slot(slot.number, [{"role": "user", "content": pictures}, *slot.messages], whole=False)
            else:
                result.append(_added("user", pictures))
            pictures = []
        result.append(slot)
        pictures = [*pictures, *moved.get(-1 if slot.number is None else slot.number, ())]
    return [*result, _added("user", pictures)] if pictures else result


def split(slots: Sequence[Slot], call_of: Mapping[int, CallPlace], empty: Any, repairs: Repairs) -> list[Slot]:
    """`slots` with one call in each message, and each result after its call.

    `call_of`: the calls of results, by the results' numbers. `empty`: the content of the messages that are added.
    """
    result: list[Slot] = []
    at = 0
    while at < len(slots):
        slot, at = slots[at], at + 1
        message = slot.messages[0]
        calls = message.get("tool_calls") or ()
        if len(calls) < 2 or not repairs("calls_split", f"{slot.where}.tool_calls", f"-> {len(calls)} messages"):
            result.append(slot)
            continue
        results: dict[int, list[Slot]] = {}
        while at < len(slots) and slots[at].role == "tool":
            i, j = call_of.get(slots[at].number or 0, (None, -1))
            results.setdefault(j if i == slot.number else -1, []).append(slots[at])
            at += 1
        for j, call in enumerate(calls):
            result.append(Slot(slot.number, [{**message, "tool_calls": [call]}], whole=False))
            result += results.get(j, ())
            message = {"role": "assistant", "content": empty}
        result += results.get(-1, ())  # which answer no call, or one of another message
    return result


def alternating(
    slots: Sequence[Slot], alternation: Alternation, form: Callable[[str], Any], repairs: Repairs
) -> list[Slot]:
    """`slots` with turns that alternate as `alternation` says. `form` makes the content of messages that are added."""
    begin = _begin(slots)
    result: list[Slot | None] = [*slots[:begin]]
    last: int | None = None  # where in the result the last turn is that counts
    for slot in slots[begin:]:
        role = slot.role
        if alternation == "spoken" and (role == "tool" or slot.calls):
            result.append(slot)
            continue
        before = None if last is None else result[last]
        if before is None:
            if role == "assistant" and repairs("user_added", slot.where, "an empty user message before it"):
                result.insert(begin, _added("user", form("")))
        elif last is not None and role == before.role and role in ("user", "assistant"):
            after = next(iter(result[last + 1 :][:1]), None)  # calls and results since then
            if after is None:
                if repairs(f"{role}_merged", slot.where, f"-> {before.where}"):
                    before.add(slot.messages)
                    continue
            elif role == "user":
                if repairs("assistant_added", slot.where, f"an assistant message before it: {_UNDERSTOOD}"):
                    result.append(_added("assistant", form(_UNDERSTOOD)))
            elif after.calls:
                if repairs("assistant_merged", before.where, f"-> {after.where}"):
                    result[last] = None
                    after.messages, after.whole = before.messages + after.messages, False
            elif repairs("user_added", slot.where, "an empty user message before it"):
                result.append(_added("user", form("")))
        last = len(result)
        result.append(slot)
    return [slot for slot in result if slot is not None]


def with_user(slots: Sequence[Slot], form: Callable[[str], Any], repairs: Repairs) -> list[Slot]:
    """`slots` with an empty user message after the system messages, if no message is a user's."""
    begin = _begin(slots)
    beside = slots[min(begin, len(slots) - 1)].where if slots else ""
    if not slots or any(slot.role == "user" for slot in slots) or not repairs("user_added", beside, "an empty one"):
        return list(slots)
    return [*slots[:begin], _added("user", form("")), *slots[begin:]]


def _begin(slots: Sequence[Slot]) -> int:
    """Where the system messages at the beginning end."""
    return next((i for i, slot in enumerate(slots) if slot.role != "system"), len(slots))


def _added(role: str, content: Any) -> Slot:
    return Slot(None, [{"role": role, "content": content}], whole=False)


def _marked(content: Any) -> Any:
    """`content` with tags that tell it from the user's own text."""
    opener, closer = "<system-reminder>\n", "\n</system-reminder>"
    if isinstance(content, str):
        return opener + content + closer
    if not content:
        return content
    return [_part(opener), *content, _part(closer)]


def is_empty(content: Any) -> bool:
    """Whether `content`, a string or parts, has nothing."""
    if not content or isinstance(content, str):
        return not content
    return all(part["type"] == "text" and part["text"] == "" for part in content)


def _joined(contents: Sequence[Any]) -> Any:
    """`contents`, which are strings or parts, as one."""
    if len(contents) == 1:
        return contents[0]
    if all(isinstance(content, str) for content in contents):
        return _BETWEEN.join(contents)
    parts = _parts(contents[0])
    for content in contents[1:]:
        parts += (_part(_BETWEEN), *_parts(content))
    return parts


def _parts(content: Any) -> list[Any]:
    return [_part(content)] if isinstance(content, str) else list(content)


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
