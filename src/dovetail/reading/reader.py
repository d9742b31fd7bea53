"""`Reader`: the stream side of a format. A family's subclass reads its output as if all of it were there.

1. A family writes `_read`, a generator that asks for input with ``yield from``: prose up to a marker, a value up to a
   marker, a short piece in one, what comes next. It never sees where its input was cut, so cuts cannot matter.
2. `feed` puts the next piece of output in front of it, and lets it run until it has to wait.
3. `finish` says that nothing more comes: whatever the family waits for returns `None`, and `_read` ends.

One-piece parsing is one `feed` and one `finish`. What a piece holds of markers is the alphabet's question: see there.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgspec

from dovetail.errors import ReaderMisuse
from dovetail.events import Content, Defect, Event, Reasoning
from dovetail.reading.alphabet import Alphabet, Literals, Search
from dovetail.tokens import Detokenizer, Segment, Tokenizer

T = TypeVar("T")
#: Characters that are looked at together where what is looked for may be near; no marker is longer.
_WINDOW = 512
#: A part of a family's reading: a generator that is resumed whenever there is more input, and returns a T.
Script: TypeAlias = Generator[None, None, T]


class Asked(msgspec.Struct, frozen=True):
    """What a reader knows of the request: tools by name with their parameters' schemas, and how they may be used.

    `call_prefix` and a number is the id of a call to which the model gave none. `structured` content is JSON, whose
    strings may hold anything: only a control token begins a call.
    """

    tools: Mapping[str, Any] = {}
    thinking: bool = True
    calls: bool = True
    repair_arguments: bool = False
    call_prefix: str = "call_"
    structured: bool = False


class Reader(ABC):
    """One output of one model. Not shared, not reused."""

    #: The literals of the control tokens that mean something to this family.
    controls: ClassVar[tuple[str, ...]]

    def __init__(self, asked: Asked, tokenizer: Tokenizer | None = None) -> None:
        self._asked = asked
        self._detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        spelled = [c for c in self.controls if c not in tokenizer.control] if tokenizer is not None else ()
        self._alphabet = Alphabet(self.controls, spelled)
        self._events: list[Event] = []
        self._input = ""  # in the alphabet; what is before `_at` has been read
        self._at = 0
        self._mark = 0  # where the last marker began, or what there was instead of one ended
        self._over = False
        self._cut_off = False  # whether the output, which is over, ended before its time
        self._script = self._read()
        next(self._script)

    # -- for whoever has an output ------------------------------------------------------------------------------------

    def feed(self, text: str, ids: Sequence[int] | None = None) -> list[Event]:
        """The events that the next piece of output completes.

        With `ids` the text is what the ids spell (`text` is not looked at), and a marker is a control token, never the
        characters of one. Raises `ReaderMisuse` after `finish`, or for ids if the reader was made without a tokenizer.
        """
        if ids is None:
            return self._advance(self._alphabet.from_text(text))
        if self._detokenizer is None:
            raise ReaderMisuse("this reader was made without a tokenizer, so it cannot read token ids")
        return self._advance(self._alphabet.from_segments(self._detokenizer.feed(ids)))

    def feed_segments(self, segments: Iterable[Segment]) -> list[Event]:
        """As `feed`, for a caller that knows which pieces are control tokens."""
        return self._advance(self._alphabet.from_segments(segments))

    def finish(self, reason: str = "stop") -> list[Event]:
        """The last events. `reason` is the engine's: "stop" or "tool_calls" when the model ended its turn.

        Whatever else it is ("length", an abort), the output was cut off.
        """
        rest = self._alphabet.from_segments(self._detokenizer.finish()) if self._detokenizer is not None else ""
        events = self._advance(rest + self._alphabet.end())
        self._over = True
        self._cut_off = reason not in ("stop", "tool_calls")
        for _ in self._script:
            raise AssertionError("a reader asked for input after its end")
        return events + self._events

    def _advance(self, fresh: str) -> list[Event]:
        if self._over:
            raise ReaderMisuse("this reader has finished; make a new one for the next output")
        self._input = self._input[self._at :] + fresh
        self._at = 0
        next(self._script)
        events, self._events = self._events, []
        return events

    # -- for families: the script and what it may ask for -------------------------------------------------------------

    @abstractmethod
    def _read(self) -> Script[None]:
        """Read one output, to its end: return when what it asked for came back as None, and only then."""

    def _prose(self, kind: type[Content] | type[Reasoning], *stops: str) -> Script[str | None]:
        """Emit text up to the first of `stops`, which is returned without whitespace in front, or None at the end.

        Any other control token is dropped with a `Defect`.
        """
        return self._pass(lambda text: self._events.append(kind(text)), self._stray_marker, stops)

    def _value(self, write: Callable[[str], None], *stops: str) -> Script[str | None]:
        """As `_prose`, into `write`. Any other control token is the characters that spell it: part of the value."""
        return self._pass(write, write, stops)

    def _until(
        self, take: Callable[[str], int | None], *stops: str, take_control: Callable[[str], int | None] | None = None
    ) -> Script[str | None]:
        """Give text to `take` as it comes, up to one of `stops` (control tokens), which is returned.

        Or to the offset in a piece that `take` returns: "" then. Any other control token is what spells it, for
        `take_control` if that is given; it is taken whole, or not at all and stays (0).
        """
        search, names = _stops(self.controls, stops)
        while True:
            # In pieces, because what lies behind the end of a short value would be searched in vain for each of many.
            text = self._input[self._at : self._at + _WINDOW]
            match = search(text, 0)
            end = len(text) if match is None else match.start()
            if end:
                if (taken := take(text[:end])) is not None:
                    self._at += taken
                    return ""
                self._at += end
            if match is not None:
                found = self._take(match.group(), names)
                if found is not None:
                    return found
                if (taken := (take_control or take)(self._alphabet.spell(match.group()))) is not None:
                    if not taken:
                        self._at = self._mark
                    return ""
            elif self._at == len(self._input):
                if self._over:
                    self._mark = self._at
                    return None
                yield

    def _hold(self, limit: int, *stops: str) -> Script[tuple[str, str | None]]:
        """The text up to the first of `stops`, and that; at `limit` characters without one, those and "".

        Any other control token in it is dropped with a `Defect`.
        """
        search, names = _stops(self.controls, stops)
        held: list[str] = []
        while True:
            match = search(self._input, self._at)
            end = len(self._input) if match is None else match.start()
            whole = match is not None and match.lastindex
            if end - self._at >= limit:
                end = self._at + limit
            held.append(self._input[self._at : end])
            limit -= end - self._at
            self._at = end
            self._mark = end
            if not limit:
                return "".join(held), ""
            if match is not None and whole:
                found = self._take(match.group(), names)
                if found is not None:
                    return "".join(held), found
                self._stray_marker(self._alphabet.literal(match.group()))
            elif not self._over:
                yield
            elif match is not None:
                # The beginning of a stop that did not come.
                literal = self._alphabet.spell(self._input[end])
                (held.append if literal == self._input[end] else self._stray_marker)(literal)
                self._at += 1
                limit -= 1
            else:
                return "".join(held), None

    def _skip(self, characters: str, most: int | None = None) -> Script[str]:
        """Pass over any, or at most so many, of some characters, and return them."""
        passed: list[str] = []
        while True:
            text = self._input[self._at : self._at + (_WINDOW if most is None else min(most, _WINDOW))]
            if run := len(text) - len(text.lstrip(characters)):
                passed.append(text[:run])
                self._at += run
                if most is not None:
                    most -= run
                if run == len(text):
                    continue
            if self._at < len(self._input) or self._over or most == 0:
                return "".join(passed)
            yield

    def _next_is(self, *literals: str) -> Script[str | None]:
        """Take the one of `literals` that comes next, if one does. None of them may be the beginning of another."""
        search, names = _stops(self.controls, literals)
        longest = max(map(len, names), default=0)
        while True:
            match = search(self._input[self._at : self._at + longest], 0)
            here = match is not None and match.start() == 0
            if match is not None and here and match.group() in names:
                return self._take(match.group(), names)
            begun = match is not None and here and not match.lastindex
            if (self._at < len(self._input) and not begun) or self._over:
                return None
            yield

    def _peek(self) -> Script[str]:
        """The next character, which stays where it is; "" at the end. A control token is its whole literal."""
        while self._at == len(self._input) and not self._over:
            yield
        return self._alphabet.spell(self._input[self._at : self._at + 1])

    def _unread(self) -> None:
        """Put back the marker that came last, if one did. Only before anything else is read."""
        self._at = self._mark

    def _defect(self, kind: str, detail: str = "") -> None:
        self._events.append(Defect(kind, detail[:200]))

    def _stray_marker(self, literal: str) -> None:
        self._defect("stray_marker", literal)

    # -- the loop under `_prose` and `_value` -------------------------------------------------------------------------

    def _pass(
        self, write: Callable[[str], None], other: Callable[[str], None], stops: tuple[str, ...]
    ) -> Script[str | None]:
        search, names = _stops(self.controls, stops)
        while True:
            text, at = self._input, self._at
            match = search(text, at)
            if match is None:
                self._at = len(text)
                if len(text) > at:
                    write(text[at:])
                if self._over:
                    self._mark = self._at
                    return None
                yield
                continue
            start = match.start()
            self._at = start
            if start > at:
                write(text[at:start])
            if match.lastindex:
                found = self._take(match.group(), names)
                if found is not None:
                    return found
                other(self._alphabet.literal(match.group()))
            elif self._over or self._breaks_off(text[start:], search):
                # The beginning of a stop that did not come is text; the rest of it may still hold a control token.
                self._at = start + 1
                literal = self._alphabet.spell(text[start])
                (write if literal == text[start] else other)(literal)
            else:
                yield

    def _breaks_off(self, begun: str, search: Search) -> bool:
        """Whether the beginning of a stop cannot go on, whatever the characters that the alphabet holds back are."""
        following = self._alphabet.next_characters()
        matches = (search(begun + character, 0) for character in following)
        return bool(following) and not any(match is not None and match.start() == 0 for match in matches)

    def _take(self, found: str, names: Mapping[str, str]) -> str | None:
        self._mark = self._at
        self._at += len(found)
        return names.get(found)


@functools.cache
def _stops(controls: tuple[str, ...], literals: tuple[str, ...]) -> tuple[Callable[[str, int], Any], Mapping[str, str]]:
    """What finds `literals` in the alphabet, and how they are called there."""
    alphabet = Alphabet(controls)
    spelled = {alphabet.from_text(literal) + alphabet.end(): literal.lstrip(" \n") or literal for literal in literals}
    return Literals(tuple(spelled), controls=True).search, spelled
