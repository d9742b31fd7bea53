"""Prompts in which an assistant's message has the very tokens that the model wrote.

1. `Splice.messages` has marks in place of the texts of such messages. The format renders it like any conversation.
2. `Splice.spliced` replaces what that prompt shows of each message, marks and markup, by the tokens of the answer.
3. A message of which the template leaves something out, as templates do with the reasoning of earlier turns, cannot be
   replaced: the model was trained without it. It is named in `Incomplete`, and is to be rendered from its text.

So no format needs code for it. docs/decisions/0022 has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from dovetail.formats.prompts.answer_frames import Frame, Frames, Marks, Message, Place
from dovetail.formats.prompts.piece_spans import Position, between, end_of, join, whole
from dovetail.tokens import Prompt


class Spelling(NamedTuple):
    """An answer as the model wrote it. Pieces begin and end with a text.

    `pieces`: its texts, as `TokenSpan`s, and control tokens, without the one that ended the turn.
    `opening`: the pieces of the generation prompt that it continued, from a control token on; without one, the answer
    cannot be found in a prompt.
    `ended`: whether the model ended the turn, and was not cut off.
    `open`: in which text it would go on after `pieces`; "markup" for neither.
    `reasoned`: whether it has reasoning.
    """

    pieces: Sequence[str]
    opening: Sequence[str]
    ended: bool
    open: Literal["content", "reasoning", "markup"]
    reasoned: bool


class Incomplete(Exception):
    """The prompt does not show everything of the `messages` with these numbers."""

    def __init__(self, messages: Sequence[int]) -> None:
        super().__init__(f"messages {messages} have to be rendered from their text")
        self.messages = messages


class Splice:
    """One prompt in which the answers of `spellings`, by the numbers of their messages, have their own tokens."""

    def __init__(self, messages: Sequence[Message], spellings: Mapping[int, Spelling], reasoning_field: str) -> None:
        self._marks = Marks(reasoning_field)
        self._originals = messages
        self._spellings = spellings
        self._expected: dict[int, frozenset[str]] = {}
        self.messages: list[Message] = list(messages)
        for i, spelling in spellings.items():
            self.messages[i], self._expected[i] = self._marks.marked(messages[i], i, reasoned=spelling.reasoned)

    def spliced(self, prompt: Prompt, frames: Frames, *, continues: bool = False) -> Prompt:
        """`prompt`, which renders `self.messages`, with the tokens of the answers.

        `continues`: it ends inside the last message, which the model continues. Raises `Incomplete`.
        """
        pieces = whole(prompt.pieces)
        places = self._marks.places(pieces)
        result = [""]
        at: Position = (0, 0)
        incomplete: list[int] = []
        for i, spelling in sorted(self._spellings.items()):
            last = continues and i == len(self.messages) - 1
            found = self._answer(pieces, places.get(i), i, frames, last)
            if found is None:
                incomplete.append(i)
                continue
            (begin, end), closing = found
            join(result, between(pieces, at, begin))
            join(result, spelling.pieces)
            join(result, closing)
            at = end
        if incomplete:
            raise Incomplete(incomplete)
        join(result, between(pieces, at, end_of(pieces)))
        return Prompt.alternating(result)

    def _answer(
        self, pieces: Sequence[str], place: Place | None, i: int, frames: Frames, last: bool
    ) -> tuple[tuple[Position, Position], Sequence[str]] | None:
        """Where `pieces` show answer `i`, and what has to follow its tokens; None if it cannot be replaced."""
        spelling = self._spellings[i]
        if place is None or place.marks != self._expected[i] or len(spelling.opening) < 2:
            return None
        frame = frames.of(
            self._originals[i], spelling.opening, self._role(i - 1), self._role(i + 1), reasoned=spelling.reasoned
        )
        goes_on = self._marks.of(i, spelling.open) in place.marks
        if frame is None or not (goes_on or (spelling.ended and not last)):
            return None
        if last:
            frame = frame._replace(after=[""])
        around = frame.around(pieces, place.begin, place.end)
        return None if around is None else (around, closing(spelling, frame))

    def _role(self, i: int) -> Any:
        return self._originals[i]["role"] if 0 <= i < len(self._originals) else None


def closing(spelling: Spelling, frame: Frame) -> Sequence[str]:
    """What follows the tokens of an answer, of what the template writes after its last text.

    All of it if the answer was cut off. Otherwise the answer has that markup in its own spelling, and only the end of
    the turn follows, which is the template's last control token.
    """
    if not spelling.ended:
        return frame.after
    if len(frame.after) == 1:
        return [""]
    *_, end, text = frame.after
    has_it = len(spelling.pieces) > 1 and not spelling.pieces[-1] and spelling.pieces[-2] == end
    return [text] if has_it else ["", end, text]
