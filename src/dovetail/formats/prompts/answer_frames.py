"""What a template writes around an answer, seen in small conversations with neighbours of the same roles.

Marks show where a prompt has an answer's texts. They are random words, so that no text of a request contains one, and
no template changes one. Of the markup between them and the neighbours' texts, a part belongs to the answer; only small
prompts, with the neighbour and without it, show which part.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.errors import DovetailError
from dovetail.formats.prompts.history import REASONING_FIELDS, HistoryRules
from dovetail.formats.prompts.piece_spans import (
    Position,
    begin_of_span,
    begins,
    between,
    end_of,
    end_of_span,
    whole,
)
from dovetail.tokens import Prompt

Message = Mapping[str, Any]
#: (messages, whether the prompt opens an answer) -> the prompt. Raises `DovetailError`.
Render = Callable[[Sequence[Message], bool], Prompt]

#: The longest text in a generation prompt. A longer one would be a text of the request.
_LONGEST_TEXT = 80
_BEFORE, _ANSWER, _AFTER = range(3)  # the numbers of marked messages in a small conversation
_USER = {"role": "user", "content": "x"}
_MOST_FRAMES = 4096


class Frame(NamedTuple):
    """What stands around an answer's marks.

    `before`: the generation prompt, and the markup between it and the first mark.
    `start`: where in `before` the generation prompt ends.
    `after`: the markup from the last mark to the end of the message.
    """

    before: list[str]
    start: Position
    after: list[str]

    def around(self, pieces: Sequence[str], begin: Position, end: Position) -> tuple[Position, Position] | None:
        """Where the answer begins and ends whose marks are from `begin` to `end`; None if the frame is not there."""
        first, last = begin_of_span(pieces, self.before, begin), end_of_span(pieces, self.after, end)
        if first is None or last is None:
            return None
        return (first[0] + self.start[0], self.start[1]), last


_UNKNOWN = Frame([], (0, 0), [])


class Frames:
    """Finds the frames of answers in prompts with the same options, which `render` renders.

    It remembers them, because a growing conversation repeats its earlier answers. Threads may share it.
    """

    def __init__(self, render: Render, rules: HistoryRules) -> None:
        self._render = render
        self._rules = rules
        self._marks = Marks(rules.reasoning_field)
        self._known: dict[bytes, Frame | None] = {}

    def opening(self, before: str | None) -> list[str]:
        """The generation prompt after a message of the role `before`; [] if it cannot be told from that message.

        It begins with a control token, after an empty text. Where a template writes none, it is the end of the prompt,
        from the last control token on.
        """
        earlier = self._earlier(before)
        try:
            closed, opened = (whole(self._render(earlier, opens).pieces) for opens in (False, True))
        except DovetailError:
            return []
        same = next((i for i, (a, b) in enumerate(zip(closed, opened, strict=False)) if a != b), len(closed))
        first = min(same | 1, len(opened) - 2)  # the first control token that differs, or the last one of all
        opening = ["", *opened[first:]] if first > 0 else []
        if self._marks.places(opening) or max(map(len, opening), default=0) > _LONGEST_TEXT:
            return []
        return opening

    def of(
        self, message: Message, opening: Sequence[str], before: str | None, after: str | None, *, reasoned: bool
    ) -> Frame | None:
        """The frame of an answer that continued `opening`, between messages of the roles `before` and `after`.

        None if the template does not write `opening` before it, or leaves a part of the answer out.
        """
        marked, marks = self._marks.marked(message, _ANSWER, reasoned=reasoned)
        calls = [(call["id"], call["function"]["name"]) for call in message.get("tool_calls") or ()]
        shape = repr((opening, sorted(marks), message.get("content") is None, calls, before, after))
        key = hashlib.sha256(shape.encode(errors="surrogatepass")).digest()  # an id may be of any length
        known = self._known.get(key, _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        try:
            frame = self._frame(marked, marks, opening, before, after)
        except DovetailError:
            frame = None
        if len(self._known) >= _MOST_FRAMES:
            self._known.clear()
        self._known[key] = frame
        return frame

    def _frame(
        self,
        marked: Message,
        marks: frozenset[str],
        opening: Sequence[str],
        before: str | None,
        after: str | None,
    ) -> Frame | None:
        earlier, later = self._earlier(before), self._later(after, marked)
        alone, among = (
            whole(self._render(messages, False).pieces) for messages in ([*earlier, marked], [*earlier, marked, *later])
        )
        place_alone, places = self._marks.places(alone).get(_ANSWER), self._marks.places(among)
        place = places.get(_ANSWER)
        if place is None or place_alone is None or not place.marks == place_alone.marks == marks:
            return None
        closing = between(alone, place_alone.end, end_of(alone))
        limit = places[_BEFORE].end if _BEFORE in places else (0, 0)
        found = [*begins(among, opening, after=limit, before=place.begin)]
        # After the message before, the first one opens the answer: another may stand inside the answer, before a call.
        if not found or (len(found) > 1 and _BEFORE not in places) or end_of_span(among, closing, place.end) is None:
            return None
        return Frame(between(among, found[0], place.begin), (len(opening) - 1, len(opening[-1])), closing)

    def _earlier(self, role: str | None) -> list[Message]:
        """A short conversation whose last message has `role`."""
        if role is None:
            return []
        last = {"role": role, "content": self._content(_BEFORE)}
        if role == "user":
            return [last]
        if role in ("system", "developer"):
            return [_USER, last]
        if role == "assistant":
            return [_USER, last | {self._rules.reasoning_field: "x"}]
        arguments: Any = {} if self._rules.arguments == "object" else "{}"
        call = {"id": "call00000", "type": "function", "function": {"name": "x", "arguments": arguments}}
        calling = {"role": "assistant", "content": None if self._rules.null_beside_calls else "", "tool_calls": [call]}
        return [_USER, calling, last | {"tool_call_id": "call00000", "name": "x"}]

    def _later(self, role: str | None, answer: Message) -> list[Message]:
        """What follows an answer: a message with `role`, or a result for each of its calls."""
        if role is None:
            return []
        message = {"role": role, "content": self._content(_AFTER)}
        if role != "tool":
            return [message]
        return [
            message | {"tool_call_id": call["id"], "name": call["function"]["name"]}
            for call in answer.get("tool_calls") or ()
        ]

    def _content(self, number: int) -> Any:
        text = self._marks.of(number, "content")
        return [{"type": "text", "text": text}] if self._rules.parts == "parts" else text


class Place(NamedTuple):
    """Where a prompt shows a message: from the begin of its first mark to the end of its last, and all its marks."""

    begin: Position
    end: Position
    marks: frozenset[str]


class Marks:
    """Makes marks, and finds them in prompts. `reasoning_field`: the field that the template reads reasoning from."""

    def __init__(self, reasoning_field: str) -> None:
        self._reasoning_field = reasoning_field
        # Letters and digits only, which no JSON writer escapes, and a letter first, so that it can be a name.
        self._word = f"zq{secrets.token_hex(8)}"
        self._pattern = re.compile(rf"{self._word}x(\d+)x[a-z0-9]+?z")

    def of(self, number: int, field: str) -> str:
        """The mark of one field of message `number`."""
        return f"{self._word}x{number}x{field}z"

    def marked(
        self, message: Mapping[str, Any], number: int, *, reasoned: bool
    ) -> tuple[dict[str, Any], frozenset[str]]:
        """`message` with marks in place of its content and of its calls' arguments, and these marks.

        Blank content has no mark.
        `reasoned`: adds a mark for reasoning, which the message itself may lack.
        """
        marks: set[str] = set()

        def mark(field: str) -> str:
            marks.add(word := self.of(number, field))
            return word

        marked = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
        if reasoned:
            marked[self._reasoning_field] = mark("reasoning")
        content = message.get("content")
        if isinstance(content, str) and content.strip():
            marked["content"] = mark("content")
        elif content and not isinstance(content, str) and any(part.get("text", "").strip() for part in content):
            marked["content"] = [{"type": "text", "text": mark("content")}]
        if calls := message.get("tool_calls"):
            marked["tool_calls"] = [_marked_call(call, mark(str(j))) for j, call in enumerate(calls)]
        return marked, frozenset(marks)

    def places(self, pieces: Sequence[str]) -> dict[int, Place]:
        """Where `pieces` show each marked message, by its number."""
        places: dict[int, Place] = {}
        for at, piece in enumerate(pieces):
            if self._word in piece:
                for mark in self._pattern.finditer(piece):
                    place = Place((at, mark.start()), (at, mark.end()), frozenset((mark[0],)))
                    earlier = places.get(int(mark[1]), place)
                    places[int(mark[1])] = Place(earlier.begin, place.end, earlier.marks | place.marks)
        return places


def _marked_call(call: Mapping[str, Any], mark: str) -> dict[str, Any]:
    function = call["function"]
    arguments: Any = {mark: mark}
    if isinstance(function["arguments"], str):
        arguments = json.dumps(arguments)
    return {**call, "function": {**function, "arguments": arguments}}
