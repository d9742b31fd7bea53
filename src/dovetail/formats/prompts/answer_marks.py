"""Marks in place of the texts of answers, which show where a prompt has them.

A mark is a random word, so no text of a request contains one, and no template changes it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.formats.prompts.history import REASONING_FIELDS
from dovetail.formats.prompts.piece_spans import Position


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
