"""`Reader`: turns a model's output, piece by piece, into events.

1. A family writes `_read`, a generator that requests input with ``yield from``: prose up to a marker, a value up to a
   marker, a short piece as a whole, the next character. It never sees where the output was cut, so cuts do not matter.
2. `feed` hands the next piece to the generator, which runs until it needs more.
3. `finish` tells the generator that the output is over: each request for input returns None, and `_read` ends.

A whole output is parsed by one `feed` and one `finish`. `alphabet.py` finds the markers in a piece.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import msgspec

from dovetail.errors import ReaderMisuse
from dovetail.events import Content, Defect, Event, Reasoning
from dovetail.reading.alphabet import Alphabet, Literals, Search, any_control
from dovetail.reading.required_calls import RequiredCalls
from dovetail.tokens import Detokenizer, Segment, Tokenizer

T = TypeVar("T")
#: How many characters are searched at once if the match may be near. No marker is longer.
_WINDOW = 512
#: How many characters are taken in at once.
_LONGEST_PIECE = 8192
#: Called as ``weigh(text, at)`` for a stop that ends at `at` and may only spell a marker, because a value is open.
#: Returns how many characters after it belong to the value too; -1 if it is a marker; None if that depends on text
#: that has not come.
Weigh: TypeAlias = Callable[[str, int], int | None]
#: How many characters after such a stop are waited for at most. Without an answer, the stop is text.
FARTHEST = 1024
#: What takes the text of a script that waits for text only: see `Reader._accept`.
Accept: TypeAlias = Callable[[str], int | None]
#: A generator that reads one part of an output. It is resumed when there is more input, and returns a T.
Script: TypeAlias = Generator[None, None, T]


#: See `ReaderOptions`.
OnMalformedCall: TypeAlias = Literal["error", "text"]
#: The key under which a call that cannot be read has its text.
MALFORMED: Final = "malformed_arguments"


class ReaderOptions(msgspec.Struct, frozen=True):
    """What a reader knows about the request.

    `tools`: the schema of each tool's parameters, by the tool's name.
    `thinking`: whether the prompt left a reasoning block open.
    `calls`: whether the answer may contain calls.
    `repair_arguments`: whether to close the brackets and strings that a call cut off by the end left open.
    `call_prefix`: with a number, the id of a call to which the model gave none.
    `structured`: whether content is JSON of a response format. A string in it may contain anything, so that ordinary
    text begins a call at the start of the content only.
    `required`: whether the answer has to be calls; see `RequiredCalls`.
    `on_malformed_call`: what becomes of a call that names a tool and cannot be read. "error": it is a call whose
    arguments have its text under the key `MALFORMED`. "text": it is content.
    `bare_calls`: whether an answer that is nothing but the JSON of a call to one of the tools is that call.
    """

    tools: Mapping[str, Any] = {}
    thinking: bool = True
    calls: bool = True
    repair_arguments: bool = False
    call_prefix: str = "call_"
    structured: bool = False
    required: bool = False
    on_malformed_call: OnMalformedCall = "error"
    bare_calls: bool = True


class Trial:
    """What a reader has to know of a part that it reads on trial: see `Reader._try`.

    `start`: where the part begins in the unread output. `before`: the events from before it.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self.before: list[Event] = []
        #: Whether it is kept if it is longer than what may be withheld.
        self.certain = False


class Abandoned(Exception):
    """What was read on trial is not what it was tried for."""


class Reader(ABC):
    """Reads one output of one model. It cannot be shared or reused."""

    #: The literals of the family's control tokens.
    controls: ClassVar[tuple[str, ...]]
    #: The literals of tokens that begin a text or a turn, which mean nothing in an answer.
    begin_of_text: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._options = options
        self._detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        spelled = [c for c in self.controls if c not in tokenizer.control] if tokenizer is not None else ()
        self._alphabet = Alphabet(self.controls, spelled)
        self._not_spelled = tuple(c for c in self.controls if c not in spelled) if spelled else self.controls
        known = tokenizer.control if tokenizer is not None else ()
        self._begins_in_ids = tuple(c for c in self.begin_of_text if c not in known) if known else self.begin_of_text
        #: Whether the last input came as tokens, so that a control token is known from text that spells it.
        self._exact = False
        self._events: list[Event] = []
        self._required = RequiredCalls() if options.required else None
        #: Unread output, in the alphabet. Everything before `_at` has been read.
        self._input = ""
        self._at = 0
        #: Where the last marker begins, or where the text ended that came in its place.
        self._mark = 0
        self._over = False
        #: The part of the output that is read on trial, if there is one.
        self._trial: Trial | None = None
        #: While the script waits for more of a text and nothing is unread or buffered: what finds a character that may
        #: begin a marker, what finds a marker, what takes the text, and the offset in the text at which it stopped.
        self._first: Callable[[str], Any] | None = None
        self._search: Search = any_control.search
        self._accept: Accept = len
        self._accepted: int | None = None
        #: Whether the script waits for more of a value.
        self._in_value = False
        #: Whether the output is over because the engine stopped it, and not the model.
        self._cut_off = False
        #: Whether what was read last is inside a reasoning block.
        self.in_reasoning = options.thinking
        self._script = self._answer()
        next(self._script)

    # -- for callers --------------------------------------------------------------------------------------------------

    def feed(self, text: str, ids: Sequence[int] | None = None) -> list[Event]:
        """Read the next piece of output, and return the events that it completes.

        With `ids`, the ids are read and `text` is ignored: a marker is then a control token, never the characters that
        spell one. Raises `ReaderMisuse` after `finish`, and for ids if the reader was made without a tokenizer.
        """
        if ids is None:
            if text:
                self._exact = False
                first = self._first
                if first is not None and (first(text) is None or self._is_plain(text)):
                    accepted = self._accept(text)
                    if accepted is not None:
                        return self._stopped(text, accepted)
                    return self._taken()
            return self._advance(self._alphabet.from_text(text))
        if self._detokenizer is None:
            raise ReaderMisuse("this reader was made without a tokenizer, so it cannot read token ids")
        if ids:
            self._exact = True
        segments = self._detokenizer.feed(ids)
        first = self._first
        if first is not None and len(segments) == 1:
            text, control = segments[0]
            if not control and (first(text) is None or self._is_plain(text)):
                accepted = self._accept(text)
                return self._stopped(text, accepted) if accepted is not None else self._taken()
        return self._advance(self._alphabet.from_segments(segments))

    def feed_segments(self, segments: Iterable[Segment]) -> list[Event]:
        """Like `feed`, for a caller that knows which pieces are control tokens."""
        self._exact = True
        return self._advance(self._alphabet.from_segments(segments))

    def finish(self, reason: str = "stop") -> list[Event]:
        """End the output, and return the last events.

        `reason`: why the engine stopped. "stop" and "tool_calls" mean that the model ended its turn; anything else
        ("length", an abort) means that the output was cut off.
        """
        rest = self._alphabet.from_segments(self._detokenizer.finish()) if self._detokenizer is not None else ""
        self._cut_off = reason not in ("stop", "tool_calls")
        if self._cut_off and not self._exact:
            self._drop_begun_marker()
        events = self._advance(rest + self._alphabet.end())
        self._over = True
        for _ in self._script:
            raise AssertionError("a reader requested input after its end")
        events += self._taken()
        return events if self._required is None else events + self._required.finish()

    @property
    def ended(self) -> bool:
        """Whether the answer is over although the model goes on. Later events are dropped."""
        return self._required is not None and self._required.ended

    def _drop_begun_marker(self) -> None:
        """Drop the beginning of a marker in which the output was cut off. A token is never cut."""
        begun = self._alphabet.spell(self._input[self._at :]) + self._alphabet.buffered
        if not self._in_value and self._trial is None and self._is_begun_marker(begun.lstrip("\n")):
            self._at, self._alphabet.buffered = len(self._input), ""
            self._defect("truncated_marker", begun)

    def _is_begun_marker(self, begun: str) -> bool:
        """Whether `begun`, at the end of the output, can only be the beginning of a marker."""
        return False

    def _is_plain(self, text: str) -> bool:
        """Whether `text` has no control token and no stop that the script waits for, not even the beginning of one."""
        return self._search(text, 0) is None and not self._alphabet.has_literal(text)

    def _stopped(self, text: str, accepted: int) -> list[Event]:
        """Resume the script, because what it waited with stopped at the offset `accepted` in `text`."""
        self._input, self._at, self._accepted = text, 0, accepted
        next(self._script)
        return self._taken()

    def _taken(self) -> list[Event]:
        if self._trial is None:
            events, self._events = self._events, []
        else:
            events, self._trial.before = self._trial.before, []
        return events if self._required is None else self._required.take(events)

    def _advance(self, fresh: str) -> list[Event]:
        if self._over:
            raise ReaderMisuse("this reader has finished; make a new one for the next output")
        # A long piece comes in parts, so that what is tried and unread again is never followed by much text.
        for at in range(0, len(fresh) or 1, _LONGEST_PIECE):
            part = fresh if len(fresh) <= _LONGEST_PIECE else fresh[at : at + _LONGEST_PIECE]
            if (trial := self._trial) is not None:
                start, trial.start = trial.start, 0
                self._input = self._input[start:] + part
                self._at, self._mark = self._at - start, self._mark - start
            else:
                self._input = self._input[self._at :] + part if self._at < len(self._input) else part
                self._at = 0
            next(self._script)
        if self._alphabet.buffered:
            self._first = None
        return self._taken()

    # -- for families: the script and its requests for input ----------------------------------------------------------

    def _answer(self) -> Script[None]:
        """Read one output, after control tokens that mean nothing at its beginning. A sentence may begin with one."""
        while True:
            first = yield from self._peek()
            begins = self._begins_in_ids if self._exact else self.begin_of_text
            if begins and (yield from self._look(*_sentences(self.controls, begins))) is not None:
                break
            marker = yield from self._next_is(*begins)
            if marker is None and len(first) > 1 and first not in self.controls:
                marker, self._at = first, self._at + 1
            if marker is None:
                break
            self._stray_marker(marker)
        yield from self._read()

    @abstractmethod
    def _read(self) -> Script[None]:
        """Read one output. Return when a request for input returns None, and not before."""

    def _prose(self, kind: type[Content] | type[Reasoning], *stops: str) -> Script[str | None]:
        """Emit text as `kind` up to the first of `stops`, and return that stop without leading whitespace.

        Returns None at the end of the output. Any other control token is dropped with a `Defect`.
        """
        self.in_reasoning = kind is Reasoning
        stop = yield from self._pass(lambda text: self._events.append(kind(text)), self._stray_marker, stops)
        self.in_reasoning = False
        return stop

    def _value(
        self, write: Callable[[str], None], *stops: str, weigh: Weigh | None = None, leaves: Search | None = None
    ) -> Script[str | None]:
        """Like `_prose`, but text goes to `write`. Another control token is part of the value, as its characters.

        `leaves` finds in a piece of text what may be no part of the value: by default, a stop. It may find too much.
        """
        self._in_value = True
        stop = yield from self._pass(write, write, stops, weigh, leaves)
        self._in_value = False
        return stop

    def _until(
        self,
        take: Callable[[str], int | None],
        *stops: str,
        take_control: Callable[[str], int | None] | None = None,
        weigh: Weigh | None = None,
    ) -> Script[str | None]:
        """Pass text to `take` while it comes, up to one of `stops`, which is returned.

        `take` returns None to go on, or the offset in its text at which to stop; then "" is returned. Another control
        token is passed as its characters, to `take_control` if there is one. That function stops after the token, or
        before it by returning 0.
        """
        search, names, first, _ = _stops(self.controls, stops)
        while True:
            # A window, because after each of many short values the rest of the input would be searched in vain.
            text = self._input[self._at : self._at + _WINDOW]
            match = search(text, 0)
            end = len(text) if match is None else match.start()
            if end:
                if (taken := take(text[:end])) is not None:
                    self._at += taken
                    return ""
                self._at += end
            if match is None:
                if self._at == len(self._input):
                    if self._over:
                        self._mark = self._at
                        return None
                    self._first, self._search, self._accept, self._in_value = first, search, take, True
                    yield
                    self._first, self._in_value = None, False
                    if self._accepted is not None:
                        self._at, self._accepted = self._accepted, None
                        return ""
                continue
            marker, accept = match.group(), take
            if not match.lastindex:
                if end and self._at + len(marker) < len(self._input):
                    continue  # the window ends inside the stop
                if not self._over and not self._breaks_off(marker, search):
                    self._in_value = True
                    yield
                    self._in_value = False
                    continue
                marker = marker[0]  # the beginning of a stop that did not come is text, or another control token
                accept = take if self._alphabet.spell(marker) == marker else take_control or take
            elif (stop := names.get(marker)) is not None:
                length = yield from self._spelled(stop, marker, weigh, tokens=True)
                if not length:
                    return self._take(marker, names)
                marker = self._input[self._at : self._at + length]
            else:
                accept = take_control or take
            self._mark = self._at
            self._at += len(marker)
            if (taken := accept(self._alphabet.spell(marker))) is not None:
                self._at = self._mark + min(taken, len(marker))
                return ""

    def _read_up_to(self, limit: int, *stops: str) -> Script[tuple[str, str | None]]:
        """Return the text up to the first of `stops`, and that stop.

        After `limit` characters without a stop, return those and ""; at the end of the output, the text and None. Any
        other control token in the text is dropped with a `Defect`.
        """
        search, names, _, _ = _stops(self.controls, stops)
        pieces: list[str] = []
        while True:
            match = search(self._input, self._at)
            end = len(self._input) if match is None else match.start()
            whole = match is not None and match.lastindex
            if end - self._at >= limit:
                end = self._at + limit
            pieces.append(self._input[self._at : end])
            limit -= end - self._at
            self._at = end
            self._mark = end
            if not limit:
                return "".join(pieces), ""
            if match is not None and whole:
                stop = self._take(match.group(), names)
                if stop is not None:
                    return "".join(pieces), stop
                self._stray_marker(self._alphabet.literal(match.group()))
            elif not self._over:
                yield
            elif match is not None:
                # The beginning of a stop that did not come is text.
                literal = self._alphabet.spell(self._input[end])
                (pieces.append if literal == self._input[end] else self._stray_marker)(literal)
                self._at += 1
                limit -= 1
            else:
                return "".join(pieces), None

    def _skip(self, characters: str, most: int | None = None) -> Script[str]:
        """Skip a run of `characters`, at most `most` of them, and return it."""
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
        """Read one of `literals` if it comes next, and return it; else None. No literal may begin another."""
        search, names, _, longest = _stops(self.controls, literals)
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
        """The next character, which stays unread; "" at the end. For a control token, its whole literal."""
        while self._at == len(self._input) and not self._over:
            yield
        return self._alphabet.spell(self._input[self._at : self._at + 1])

    def _look(self, pattern: re.Pattern[str], begun: re.Pattern[str]) -> Script[re.Match[str] | None]:
        """What `pattern` matches next, which stays unread. `begun` matches every text that it may still match."""
        while (match := pattern.match(self._input, self._at)) is None:
            if self._over or not begun.fullmatch(self._input, self._at):
                return None
            yield
        return match

    def _try(self, script: Script[None], trial: Trial, longest: int) -> Script[bool]:
        """Run `script`, whose events are withheld until `_commit`; whether that was called.

        If it was not when the script ends or raises `Abandoned`, then all of its input is unread again and its events
        are dropped. The same if the script has seen `longest` characters and wants more, unless the trial is `certain`.
        """
        trial.before, self._events, self._trial = self._events, [], trial
        ended = False
        while self._trial is not None and not ended:
            limit = trial.start + longest
            whole, over = self._input, self._over
            more = len(whole) > limit
            if more:  # what is decided must not depend on how much more has come
                self._input, self._over = whole[:limit], False
            try:
                next(script)
            except (StopIteration, Abandoned):
                ended = True
            if more:
                self._input, self._over = whole, over
            self._first = None  # so that all input passes through `_advance`, which keeps it
            if more and trial.certain and not ended:
                Reader._commit(self)
            if self._trial is not None and not ended:
                ended = more
                if not ended:
                    yield
        if self._trial is None:
            if not ended:
                yield from script
            return True
        script.close()
        self._trial, self._events, self._at, self._in_value = None, trial.before, trial.start, False
        return False

    def _commit(self) -> None:
        """What is read on trial is what it was tried for."""
        trial = self._trial
        if trial is not None:
            self._trial, self._events = None, trial.before + self._events

    def _unread(self) -> None:
        """Put back the last marker. Only possible before anything else is read."""
        self._at = self._mark

    @classmethod
    def in_alphabet(cls, literal: str) -> str:
        """A literal as it stands in the input."""
        return _in_alphabet(cls.controls, literal)

    def _defect(self, kind: str, detail: str = "") -> None:
        self._events.append(Defect(kind, detail[:200]))

    def _stray_marker(self, literal: str) -> None:
        self._defect("stray_marker", literal)

    # -- the loop under `_prose` and `_value` -------------------------------------------------------------------------

    def _pass(
        self,
        write: Callable[[str], None],
        other: Callable[[str], None] | None,
        stops: tuple[str, ...],
        weigh: Weigh | None = None,
        leaves: Search | None = None,
    ) -> Script[str | None]:
        """Pass text to `write` and other control tokens to `other`, up to one of `stops`, which is returned.

        Without `other`, any control token of the family is returned, and a foreign one is dropped with a `Defect`.
        """
        search, names, first, _ = _stops(self.controls, stops)
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
                self._first, self._search, self._accept = first, leaves or search, write
                yield
                self._first = None
                continue
            start = match.start()
            self._at = start
            if start > at:
                write(text[at:start])
            if match.lastindex:
                if weigh is not None and (stop := names.get(match.group())) is not None:
                    length = yield from self._spelled(stop, match.group(), weigh)
                    if length:
                        spelled = self._input[self._at : self._at + length]
                        self._at += length
                        write(self._alphabet.spell(spelled))
                        continue
                stop = self._take(match.group(), names)
                literal = match.group() if stop is not None else self._alphabet.literal(match.group())
                if stop is not None or (other is None and literal in self.controls):
                    return stop or literal
                (other or self._stray_marker)(literal)
            elif self._over or self._breaks_off(text[start:], search):
                # The beginning of a stop that did not come is text. The rest may still contain a control token.
                self._mark, self._at = start, start + 1
                literal = self._alphabet.spell(text[start])
                if literal == text[start]:
                    write(literal)
                elif other is None and literal in self.controls:
                    return literal
                else:
                    (other or self._stray_marker)(literal)
            else:
                yield

    def _spelled(self, stop: str, marker: str, weigh: Weigh | None, *, tokens: bool = False) -> Script[int]:
        """How many of the next characters are text that only spells the stop that comes next; 0 if it is a marker.

        `marker`: the stop as it stands in the input. `tokens`: whether a control token may be text, too.
        """
        if weigh is None or (self._exact and not tokens and any(control in stop for control in self._not_spelled)):
            return 0
        while (length := weigh(self._input, self._at + len(marker))) is None:
            if self._over:
                # An output that was cut off may go on as a well-formed one does; one that ended cannot.
                return len(self._input) - self._at if self._cut_off else 0
            yield
        return len(marker) + length if length >= 0 else 0

    def _breaks_off(self, begun: str, search: Search) -> bool:
        """Whether `begun`, the beginning of a stop, cannot continue with the characters that the alphabet buffers."""
        if not self._alphabet.buffered:
            return False
        following = self._alphabet.next_characters()
        matches = (search(begun + character, 0) for character in following)
        return not any(match is not None and match.start() == 0 for match in matches)

    def _take(self, marker: str, names: Mapping[str, str]) -> str | None:
        self._mark = self._at
        self._at += len(marker)
        return names.get(marker)


@functools.lru_cache(256)
def _sentences(controls: tuple[str, ...], words: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What finds a sentence whose first word is one of `words`, and what may become that."""
    spelled = _stops(controls, words)[1]
    word = "|".join(map(re.escape, spelled))
    begun = "|".join(re.escape(literal[:n]) for literal in spelled for n in range(len(literal)))
    return re.compile(rf"(?:{word})[ \t]{{1,16}}[a-z]"), re.compile(rf"(?:{word})[ \t]{{0,16}}|{begun}")


@functools.lru_cache(1 << 14)
def _in_alphabet(controls: tuple[str, ...], literal: str) -> str:
    alphabet = Alphabet(controls)
    return alphabet.from_text(literal) + alphabet.end()


@functools.lru_cache(4096)
def _stops(
    controls: tuple[str, ...], literals: tuple[str, ...]
) -> tuple[Search, Mapping[str, str], Callable[[str], Any], int]:
    """How to search for `literals`: their pattern, each literal's name by its spelling, both in the alphabet; a pattern
    of the characters in text that may begin a literal or a control token; the length of the longest spelling."""
    spelled = {_in_alphabet(controls, literal): literal.lstrip(" \n") or literal for literal in literals}
    firsts = "".join(re.escape(first) for first in sorted({literal[0] for literal in (*controls, *literals)}))
    longest = max(map(len, spelled), default=0)
    return (
        Literals(tuple(spelled), controls=True).search,
        spelled,
        re.compile(f"[{firsts}\ud800-\udfff]").search,
        longest,
    )
