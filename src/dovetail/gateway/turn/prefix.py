"""Why a prompt is computed again: how much of the last one of its conversation it begins with, and what made it leave.

Prompts that were sent are remembered in the process, as token ids and hashes of the request.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from dovetail.custom_tools import with_functions
from dovetail.events import Message
from dovetail.formats.prompts.history import REASONING_FIELDS
from dovetail.gateway.records.memory import Tenant, digest_of_turn
from dovetail.gateway.records.record import calls_of, text_of
from dovetail.gateway.turn.turn_request import TurnRequest

Cause = Literal[
    "tools_order", "tools", "date", "system", "history", "answer", "reasoning", "arguments", "tokens", "template"
]
#: Why a prompt leaves the last one of its conversation.
CAUSES: Mapping[Cause, str] = MappingProxyType(
    {
        "tools_order": "the same tools came in another order",
        "tools": "other tools came",
        "date": "a line of the system text with a date or a time is another one",
        "system": "the system text is another one",
        "history": "an earlier message is another one, or is gone",
        "answer": "the answer came back as another text",
        "reasoning": "the answer came back without its reasoning",
        "arguments": "the arguments of a call came back written anew",
        "tokens": "the answer came back as it was, and the model had written it in other tokens",
        "template": "the model's template drops or moves something, or an option of it changed",
    }
)

#: How many tokens of prompts are remembered, and how many prompts of one conversation.
_MOST_TOKENS, _MOST_PROMPTS = 4 * 1024 * 1024, 4
#: How many tokens are shown of what a prompt leaves.
_MOST_LEFT = 40
#: A date or a time of day, as systems write them.
DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./]\d{2,4}|\d\d?:\d\d"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b",
    re.IGNORECASE,
)
SYSTEM = ("system", "developer")


class Prefix(msgspec.Struct, frozen=True):
    """How a prompt goes on from the last one of its conversation.

    `expected`: the tokens of that prompt and its answer, which the engine may have in its cache. `kept`: how many of
    them the prompt begins with. `lost`: the others, which are computed again, or whose text is gone. `cause`: one of
    `CAUSES`, and `field` what of the request it is; None and "" if nothing is lost.
    """

    expected: int
    kept: int
    lost: int = 0
    cause: Cause | None = None
    field: str = ""

    @property
    def explained(self) -> str:
        """The cause in words."""
        return "" if self.cause is None else CAUSES[self.cause]


class _Said(NamedTuple):
    """A message: hashes of what is in it. `meaning`: of the last answer, the digest that tells it from others.
    `lines`: of a system text."""

    role: str
    text: int
    calls: int
    reasoning: int
    meaning: bytes = b""
    lines: tuple[int, ...] = ()


class SentPrompt(msgspec.Struct, eq=False):
    """A prompt that was sent, with its answer as soon as that has ended.

    `dates`: the labels of lines that stand behind the system text (`remedies`). `left`: the first tokens that the last
    prompt and its answer had, and this prompt does not.
    """

    ids: array[int]
    prompt_tokens: int
    said: list[_Said]
    tools: tuple[int, ...]
    dates: frozenset[str] = frozenset()
    left: Sequence[int] = ()
    answer: _Said | None = None

    def dates_changed(self, i: int, message: Mapping[str, Any]) -> list[str]:
        """The lines of message `i`, a system text, that are new in it, if there are only dates among them."""
        if i >= len(self.said) or self.said[i].role != message["role"]:
            return []
        changed, cause = _in_system(self.said[i], _said_in(message), message)
        return changed if cause == "date" else []


class Following(NamedTuple):
    """What a request says, and the prompt that it goes on from: None if it begins a conversation."""

    last: SentPrompt | None
    said: list[_Said]
    tools: tuple[int, ...]

    @property
    def begins_otherwise(self) -> bool:
        """Whether the request begins with other tools or another system text than that prompt, or had lines moved."""
        if self.last is None:
            return False
        systems = (pair for pair in zip(self.last.said, self.said, strict=False) if pair[1].role in SYSTEM)
        return bool(self.last.dates) or self.last.tools != self.tools or any(old != new for old, new in systems)


class SentPrompts:
    """The last prompts of each conversation of each tenant. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: OrderedDict[tuple[Tenant | None, int], list[SentPrompt]] = OrderedDict()
        self._tokens = 0

    def following(self, request: TurnRequest) -> Following:
        """The prompt that `request` goes on from."""
        said = _said(request.messages)
        with self._lock:
            earlier = self._sent.get(_conversation(request.tenant, said), ())
            last = max(earlier, key=lambda each: _common(each.said, said), default=None)
        goes_on = last is not None and (len(said) > len(last.said) or last.said == said)
        return Following(last if goes_on else None, said, tool_hashes(request.tools))

    def compared(
        self,
        request: TurnRequest,
        following: Following,
        ids: Sequence[int],
        spliced: Container[int],
        dates: frozenset[str] = frozenset(),
    ) -> tuple[Prefix | None, SentPrompt]:
        """How the prompt `ids` of `request` goes on, None without an earlier one; and what is sent, for its answer.

        `spliced`: the numbers of the messages that have their own tokens in it. `dates`: see `SentPrompt`.
        """
        last = following.last
        sent = SentPrompt(array("I", ids), len(ids), following.said, following.tools, dates)
        conversation = _conversation(request.tenant, following.said)
        with self._lock:
            earlier = self._sent.setdefault(conversation, [])
            self._sent.move_to_end(conversation)
            if last is not None and last in earlier:
                earlier.remove(last)
                self._tokens -= len(last.ids)
            earlier.append(sent)
            self._tokens += len(sent.ids)
            self._forget(earlier)
        prefix = None if last is None else _prefix(request, last, sent, spliced)
        if last is not None and prefix is not None and prefix.cause is not None:
            sent.left = last.ids[prefix.kept : prefix.kept + _MOST_LEFT].tolist()
        return prefix, sent

    def answered(self, sent: SentPrompt, ids: Sequence[int], answer: Message) -> None:
        """`sent` got an answer with the tokens `ids`."""
        with self._lock:
            sent.ids.extend(ids)
            self._tokens += len(ids)
            sent.answer = _said_by(answer)

    def _forget(self, newest: list[SentPrompt]) -> None:
        while len(newest) > _MOST_PROMPTS:
            self._tokens -= len(newest.pop(0).ids)
        while self._tokens > _MOST_TOKENS and len(self._sent) > 1:
            _, prompts = self._sent.popitem(last=False)
            self._tokens -= sum(len(each.ids) for each in prompts)


def _conversation(tenant: Tenant | None, said: Sequence[_Said]) -> tuple[Tenant | None, int]:
    """A conversation is known by the first message of its user."""
    return tenant, next((each.text for each in said if each.role == "user"), 0)


def _said(messages: Sequence[Mapping[str, Any]]) -> list[_Said]:
    return [_said_in(message) for message in with_functions(messages)]


def _said_in(message: Mapping[str, Any]) -> _Said:
    role, text = message["role"], text_of(message.get("content")).strip()
    if role == "assistant":
        calls = calls_of(message)
        reasoning = next((each for name in REASONING_FIELDS if isinstance(each := message.get(name), str)), "")
        spelled = hash(tuple((call.name, str(call.arguments)) for call in calls))
        return _Said(role, hash(text), spelled, hash(reasoning.strip()))
    lines = tuple(map(hash, text.splitlines())) if role in SYSTEM else ()
    return _Said(role, hash(text), hash(message.get("tool_call_id")), 0, lines=lines)


def _said_by(answer: Message) -> _Said:
    spelled = hash(tuple((call.name, call.arguments) for call in answer.calls))
    text = answer.content.strip()
    meaning = digest_of_turn(text, answer.calls, {})
    return _Said("assistant", hash(text), spelled, hash(answer.reasoning.strip()), meaning)


def tool_hashes(tools: Any) -> tuple[int, ...]:
    """A hash of each tool of a request."""
    return tuple(hash(msgspec.json.encode(tool)) for tool in tools or ())


def _common(old: Sequence[_Said], new: Sequence[_Said]) -> int:
    """How many messages two requests share."""
    return sum(one.text == other.text for one, other in zip(old, new, strict=False))


def _prefix(request: TurnRequest, old: SentPrompt, new: SentPrompt, spliced: Container[int]) -> Prefix:
    expected, kept = len(old.ids), _shared(old.ids, new.ids)
    if kept >= expected - 1:  # the end of the turn is not computed
        return Prefix(expected, expected)
    cause, field = _cause(old, new, kept, request, spliced)
    return Prefix(expected, kept, expected - kept, cause, request.field_names.of(field))


def _shared(old: array[int], new: array[int]) -> int:
    """How many tokens two prompts begin with together."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _cause(
    old: SentPrompt, new: SentPrompt, kept: int, request: TurnRequest, spliced: Container[int]
) -> tuple[Cause, str]:
    """What of the request made its prompt leave the last one, and where that is."""
    if old.tools != new.tools:
        return ("tools_order" if sorted(old.tools) == sorted(new.tools) else "tools"), "tools"
    for i, (before, now) in enumerate(zip(old.said, new.said, strict=False)):
        if before == now or i in spliced:
            continue
        if now.role in SYSTEM and before.role == now.role:
            return _in_system(before, now, request.messages[i])[1], f"messages[{i}].content"
        if before.role == now.role == "assistant":
            return _in_answer(before, now, i)
        return "history", f"messages[{i}]"
    place = len(old.said)
    if place < len(new.said) and new.said[place].role != "assistant":
        return "history", f"messages[{place}]"
    if place >= len(new.said) or kept < old.prompt_tokens or old.answer is None:
        return "template", ""
    if place in spliced or "record" in (request.messages[place].get("dovetail") or {}):
        return "template", f"messages[{place}]"
    message = with_functions([request.messages[place]])[0]
    meaning = digest_of_turn(text_of(message.get("content")), calls_of(message), {})
    return _in_answer(old.answer, new.said[place]._replace(meaning=meaning), place)


def _in_system(before: _Said, now: _Said, message: Mapping[str, Any]) -> tuple[list[str], Cause]:
    """The lines of a system text that are new in it, and the cause that they are."""
    lines = text_of(message.get("content")).strip().splitlines()
    known = set(before.lines)
    changed = [line for line, seen in zip(lines, now.lines, strict=False) if seen not in known]
    dates = changed and len(before.lines) == len(now.lines) and all(map(DATE.search, changed))
    return changed, "date" if dates else "system"


def _in_answer(before: _Said, now: _Said, i: int) -> tuple[Cause, str]:
    if before.meaning != now.meaning or (not now.meaning and before.text != now.text):
        return "answer", f"messages[{i}]"
    if before.reasoning != now.reasoning:
        return "reasoning", f"messages[{i}].reasoning_content"
    if before.calls != now.calls:
        return "arguments", f"messages[{i}].tool_calls"
    return "tokens", f"messages[{i}]"
