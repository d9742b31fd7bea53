"""`ProseReader`: the walk over an output, which is reasoning, content and sections of calls.

A model may write about markup. So a marker in reasoning or content is weighed before it counts:

- What opens a section is read on trial (`Reader._try`). In content it opens one if a call to one of the tools begins
  there and its first argument, or its end, follows. In reasoning, nothing but the end of the answer or more markup may
  follow the calls. Otherwise the opener is text, and what comes after it is read anew.
- Any other marker that means nothing where it stands is text if more text follows; it is dropped before the end.
- A marker of reasoning, of an answer or of the turn's end may be a mention: see `mentions.py`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

from dovetail.events import Content, Defect, Reasoning
from dovetail.reading.json_text import WHITESPACE
from dovetail.reading.mentions import BEFORE, MentionReader, Prose
from dovetail.reading.reader import Abandoned, ReaderOptions, Script, Trial
from dovetail.tokens import Tokenizer

#: Characters of whitespace that are buffered until the next text shows whether they are markup.
MOST_SPACE: Final = 16
#: How many characters after an opener are withheld at most, until it is known whether it opens a section.
FARTHEST_CALL: Final = 4096
#: The same if a call that cannot be read is text, so that its section has to be read first.
_LONGEST_SECTION: Final = 1 << 13
#: How many misplaced markers, and other mistakes, may stand between an opener and its call.
_MOST_STRAYS: Final = 4
#: How many misplaced markers in a row are weighed together.
_LONGEST_RUN: Final = 16
#: Defects of a header that does not end with them: the call goes on.
_IN_HEADERS: Final = ("unreadable_id", "unknown_type")
#: Characters that a model writes once too often inside a call.
BRACKETS: Final = "<>[]{}"
#: The fewest characters of a marker that an output was cut off in. Fewer may be text.
_SHORTEST_BEGUN: Final = 4


class CallTrial(Trial):
    """A section of calls on trial. `kind`: what it stands in."""

    def __init__(self, start: int, kind: Prose, *, in_line: bool = False) -> None:
        super().__init__(start)
        self.kind = kind
        #: Whether it begins like a word in a line.
        self.in_line = in_line
        #: The ids of the calls that have begun.
        self.ids: list[str] = []
        #: Of the last call: whether it names one of the tools, has its first argument, lacks its end, and has ended.
        self.known = self.argument = self.unended = self.ended = False
        #: The same if its arguments cannot be read, so that it is a call only if nothing follows.
        self.named = False
        #: Whether the output is cut off in the header of a call.
        self.cut = False
        #: How much of it is text if it is no section; 0 for its opener.
        self.text = 0
        #: Whether it is a call, in an answer that may not have any.
        self.refused = False
        #: How many misplaced markers and other mistakes there were.
        self.strays = 0
        #: The section as it came and as it was mended, if the end of the output was.
        self.mended: tuple[str, str] | None = None

    def begin_call(self, call_id: str, *, known: bool, takes_none: bool) -> None:
        self.ids.append(call_id)
        self.known = self.named = known
        self.argument = self.unended = self.ended = False
        #: Whether its tool has no parameters.
        self.takes_none = takes_none


class ProseReader(MentionReader):
    """Reads reasoning, content and sections of calls. A subclass reads a section."""

    _trial: CallTrial | None

    #: The markers around reasoning. Newlines that the family's template writes before a marker are part of it; the
    #: marker is also recognized without them.
    think, think_end = "<think>", "</think>"
    #: Other tags around reasoning, each with the one that it stands for.
    other_thoughts: ClassVar[Mapping[str, str]] = {}
    #: What opens a section of calls, with leading newlines as above.
    openers: tuple[str, ...] = ()
    #: The same, for families in which one marker opens every section.
    section: str
    #: What ends a turn.
    ends: tuple[str, ...] = ()
    #: The openers that are ordinary text.
    text_openers: tuple[str, ...] = ()
    #: More ordinary text that opens calls in content, although the family does not write it.
    other_openers: tuple[str, ...] = ()
    #: Markers that have a meaning inside a section only.
    inner: tuple[str, ...] = ()
    #: Markers around the messages of one turn. They are dropped.
    around_messages: tuple[str, ...] = ()
    #: A regex for what begins a call without any marker, in families that have such calls.
    unmarked: ClassVar[str] = "(?!)"
    #: A regex for layout inside a call that means nothing and is dropped without a `Defect`.
    layout: ClassVar[str] = "(?!)"
    #: How many newlines the template writes before `<think>`, after it and after `</think>`. They are markup.
    before_think = after_think = after_think_end = 0
    #: Whether an answer without reasoning begins with `think_end`.
    lone_think_end = False
    #: How many newlines the family's template writes after the markers around content.
    after_answer = after_answer_end = 0
    #: Ordinary text that some models write around all that follows their reasoning: at its beginning and at its end.
    wrapper: str = ""
    wrapper_end: str = ""
    #: How many newlines the family's template writes before content.
    before_content = 0
    #: Whether a prompt that opens the reasoning block writes the newlines after the opening tag as well.
    prompted_after_think = False

    def __init__(self, options: ReaderOptions, tokenizer: Tokenizer | None = None) -> None:
        self._stray = False  # whether misplaced text has begun, so that its defect is reported once
        self._wrapped = self._mentioned = False
        self._shown = ""
        self._weighed, self._in_block, self._ticks = [], False, 0
        super().__init__(options, tokenizer)

    def _openers_in_text(self) -> tuple[str, ...]:
        in_text = self.text_openers if self._options.structured or not self._options.calls else ()
        return tuple(dict.fromkeys(opener.lstrip("\n") for opener in self.openers if opener not in in_text))

    # -- a whole output -----------------------------------------------------------------------------------------------

    def _read(self) -> Script[None]:
        place: Prose = Reasoning if self._options.thinking else Content
        think, think_end, openers, answers, marks, stops = _marks_of_answers(type(self))
        # Ordinary text opens calls only if the answer may contain calls.
        in_reasoning = marks if self._options.calls and not self._options.structured else stops
        in_content = (*in_reasoning, *self.other_openers, *self._unopened()) if in_reasoning is marks else stops
        if self.wrapper_end:
            in_content = (*in_content, self.wrapper_end, "\n" + self.wrapper_end)
        answer_ended = False
        if place is Reasoning:
            yield from self._skip("\n", 0 if self.prompted_after_think else self.after_think)
        else:
            if self.lone_think_end:
                yield from self._next_is(think_end)
            yield from self._content_begins()
            yield from self._bare_call()
        while True:
            marker = yield from self._text(place, *(in_reasoning if place is Reasoning else in_content))
            if marker is None:
                return
            marker = self.other_thoughts.get(marker, marker)
            if marker == think:
                again = place is Reasoning and self._shown
                if (yield from (self._is_mentioned_end(place) if again else self._is_mention(place))):
                    continue
                place = Reasoning
                self.in_reasoning = True
                self._shown, self._mentioned = "", False
                yield from self._skip("\n", self.after_think)
            elif marker == think_end:
                if place is Content:
                    if (yield from self._is_mention(place)):
                        continue
                    self._stray_marker(marker)
                place = Content
                self._shown, self._mentioned = "", False
                yield from self._skip("\n", self.after_think_end)
                yield from self._content_begins()
                yield from self._bare_call()
            elif marker in self.ends:
                if marker in self.around_messages or not (yield from self._is_mentioned_end(place)):
                    yield from self._end_passed(marker, place is Reasoning)
                    place, self._shown = Content, "\n"
            elif marker in answers:
                opens = marker == self.answer
                if (yield from (self._is_mentioned_answer(place) if opens else self._is_mentioned_end(place))):
                    continue
                if place is Reasoning:
                    self._defect("reasoning_not_closed")
                elif marker == answers[-1] and answer_ended:
                    self._stray_marker(marker)
                answer_ended = marker == answers[-1]
                place = Content
                yield from self._skip("\n", self.after_answer if marker == self.answer else self.after_answer_end)
            elif marker == self.wrapper_end and place is Content:
                yield from self._wrapper_ends()
            elif marker in self.around_messages:
                if not (yield from self._is_mentioned_end(place)):
                    self._stray_marker(marker)
            elif marker in openers or marker not in (*marks, *self.controls):
                if (yield from self._section_or_mention(marker, place)):
                    place = Content
            else:
                yield from self._stray_or_text(marker, place)

    def _text(self, kind: Prose, *stops: str) -> Script[str | None]:
        """Emit text as `kind` up to the first of `stops` or a control token of the family, and return that.

        A stop is returned without leading whitespace; None at the end of the output. A control token that the family
        does not have is dropped with a `Defect`.
        """
        self.in_reasoning = kind is Reasoning

        marker = yield from self._pass(self._writer(kind), None, stops)
        self.in_reasoning = False
        return marker

    def _is_begun_marker(self, begun: str) -> bool:
        return _is_begun_marker(type(self), begun)

    def _writer(self, kind: Prose) -> Callable[[str], None]:
        """A function that shows text as `kind`. It is called for each delta, so it is one call."""

        def write(text: str) -> None:
            if not self._shown:
                self._weighed, self._in_block, self._ticks = [], False, 0
            self._shown = text if len(text) > 1 else self._shown[-1:] + text
            self._weighed.append(text)
            self._events.append(kind(text))

        return write

    def _show(self, kind: Prose, text: str) -> None:
        self._writer(kind)(text)

    # -- is it a mention? ---------------------------------------------------------------------------------------------

    def _last_marker(self) -> str:
        """The last marker, as it was written."""
        return self._alphabet.spell(self._input[self._mark : self._at])

    def _stray_or_text(self, marker: str, kind: Prose) -> Script[None]:
        """Read a marker that means nothing here, and those after it. They are text if text follows them."""
        written, literals = self._last_marker(), [marker]
        in_line = written[0] != "\n" and self._shown[-1:] in BEFORE
        while len(literals) < _LONGEST_RUN:
            following = yield from self._after_space(*_inner_marks(type(self)))
            if following is None:
                break
            written += self._last_marker()
            literals.append(following)
        if not self._options.calls or self._mentioned or in_line or (yield from self._text_follows()):
            self._mentioned = True
            self._show(kind, written)
        else:
            for literal in literals:
                self._stray_marker(literal)

    def _after_space(self, *literals: str) -> Script[str | None]:
        """Read one of `literals` if it comes next, perhaps after whitespace, which counts as part of it; else None."""
        spelled = {self.in_alphabet(literal): literal for literal in literals}
        longest = MOST_SPACE + max(map(len, spelled), default=0)
        while True:
            text = self._input[self._at : self._at + longest]
            bare = text.lstrip(WHITESPACE)
            found = next(filter(bare.startswith, spelled), None)
            if found is not None and len(text) - len(bare) <= MOST_SPACE:
                self._mark, self._at = self._at, self._at + len(text) - len(bare) + len(found)
                return spelled[found]
            if self._over or len(text) == longest or not any(literal.startswith(bare) for literal in spelled):
                return None
            yield

    def _section_or_mention(self, opener: str, kind: Prose) -> Script[bool]:
        """Read the section that `opener`, the last marker, opens; False if it is a mention, which is text.

        Of openers one right after another, the last one opens the section.
        """
        shown = ""
        doubled: list[str] = []
        in_line = self._last_marker()[0] != "\n" and self._shown[-1:] in BEFORE
        while True:
            length = self._at - self._mark
            trial = CallTrial(self._mark, kind, in_line=in_line)
            longest = FARTHEST_CALL if self._options.on_malformed_call == "error" else _LONGEST_SECTION
            if (yield from self._try(self._tried_section(opener, kind, doubled), trial, longest)):
                self._shown = ""
                return True
            self._forget_calls(trial.ids)
            begin, length = self._at, trial.text or length
            if trial.refused:
                self._defect("call_not_allowed", opener)
            shown += self._alphabet.spell(self._input[self._at : self._at + length])
            self._at += length
            if trial.cut:
                rest = self._alphabet.spell(self._input[self._at :])
                is_text = opener in self.other_openers or (opener in self.text_openers and kind is Reasoning)
                if self._cut_off or not (rest.strip() or in_line or is_text):
                    self._defect("truncated_call" if self._cut_off else "empty_section", shown + rest)
                    self._at = len(self._input)
                    return False
            if trial.mended is not None:
                came, mended = trial.mended
                self._input = self._input[:begin] + came + self._input[begin + len(mended) :]
            doubled.append(opener)
            if trial.text or len(doubled) > _MOST_STRAYS:
                break
            again = yield from self._after_space(*self._openers_in_text())
            if again is None:
                break
            opener = again
        self._mentioned = True
        self._show(kind, shown)
        return False

    def _bare_call(self) -> Script[None]:
        """Read content that is nothing but the JSON of a call, if it is that."""
        raise NotImplementedError

    def _unopened(self) -> tuple[str, ...]:
        """The literals that begin a call to one of the tools, if its opener is missing."""
        raise NotImplementedError

    def _leave(self, kind: Prose) -> None:
        """Calls begin in open reasoning or content."""
        if kind is Reasoning:
            self._defect("reasoning_not_closed")

    def _forget_calls(self, ids: Sequence[str]) -> None:
        """The calls with these ids, the last that began, are mentions."""
        raise NotImplementedError

    def _begins_call(self, text: str) -> bool:
        """Whether `text`, the end of an output that was cut off, may begin a call to one of the tools."""
        raise NotImplementedError

    def _tried_section(self, opener: str, kind: Prose, doubled: Sequence[str]) -> Script[None]:
        for literal in doubled:
            self._defect("stray_marker", literal)
        if opener in self._unopened():
            self._defect("missing_section")
            self._unread()
        else:
            self._leave(kind)
        trial = self._trial
        assert trial is not None
        trial.strays = 0
        own_line = self._shown[-1:] in ("", "\n")
        yield from self._section(opener)
        trial = self._trial
        if trial is None:
            return
        if not trial.ids:
            trial.cut = self._over and self._at == len(self._input) and not self._has_text()
            empty = bool(self._events) and self._events[-1] == Defect("empty_section")
            if empty and own_line and self._options.calls and (yield from self._peek()) in ("", "\n", *self.controls):
                self._commit()
        elif trial.argument or trial.ended or len(trial.ids) > 1:
            if not (kind is Content and trial.known and self._options.calls):
                after = self._at - trial.start
                closers = (*_inner_marks(type(self)), *self.ends)
                while (yield from self._after_space(*closers)) is not None:
                    pass
                answer_end = (self.answer_end.lstrip(),) if self.answer_end and not trial.named else ()
                if (yield from self._after_space(*answer_end)) or (yield from self._text_follows()):
                    self._all_is_text(after, *self._options.tools)
                    return
                in_text = opener in self.text_openers and kind is Reasoning  # which may have mentioned it
                if in_text and (not trial.ended or (yield from self._after_space(self.think_end.lstrip()))):
                    return
                self._at = trial.start + after
                yield from self._skip(WHITESPACE, MOST_SPACE)
            self._certain()
        elif kind is Content and trial.known and self._over and self._at == len(self._input):
            self._certain()

    def _all_is_text(self, length: int, *names: str) -> None:
        """So much of what is on trial is text, and is not read from each opener in it again, unless it has `names`."""
        trial = self._trial
        assert trial is not None
        part = self._input[trial.start : trial.start + length].rstrip(WHITESPACE)
        text = self._alphabet.spell(part)
        if not any(name in text for name in (*names, self.think_end.lstrip())):
            trial.text = len(part)

    def _certain_at_once(self) -> bool:
        """Whether the section on trial is one as soon as a call in it has an argument or its end."""
        trial, options = self._trial, self._options
        assert trial is not None
        return trial.kind is Content and trial.known and options.calls and options.on_malformed_call == "error"

    def _argument_on_trial(self, fragment: str, complete: bool = False) -> None:
        """A piece of a call's arguments comes. Brackets alone may be the reader's own.

        `complete`: whether the model wrote JSON arguments, and this is the last piece of them.
        """
        trial = self._trial
        assert trial is not None
        if trial.argument or (not complete and fragment.strip(WHITESPACE) in ("", "{", "{}")):
            return
        trial.argument = True
        trial.certain = self._options.calls
        if self._certain_at_once():
            self._certain()

    def _call_ended_on_trial(self) -> None:
        trial = self._trial
        assert trial is not None
        if trial.unended and not trial.argument:
            marker = self._last_marker().strip()
            if not (trial.known and trial.takes_none) or marker in ("", self.think, self.think_end.strip()):
                raise Abandoned
        trial.ended = True
        if self._certain_at_once():
            self._certain()

    def _defect(self, kind: str, detail: str = "") -> None:
        trial = self._trial
        if trial is not None and kind == "missing_call_end":
            trial.unended = True
        elif trial is not None and kind == "truncated_call" and not trial.ids:
            trial.cut = True
            raise Abandoned
        elif trial is not None and (kind == "stray_marker" or not trial.ids):
            trial.strays += 1
            if trial.strays > _MOST_STRAYS:
                raise Abandoned
        super()._defect(kind, detail)

    def _stray_marker(self, literal: str) -> None:
        if self._trial is not None and literal.strip() in (self.think, self.think_end.strip()):
            raise Abandoned
        super()._stray_marker(literal)

    def _certain(self) -> None:
        """The section on trial, if there is one, is a section."""
        trial = self._trial
        if trial is None:
            return
        if not self._options.calls:
            trial.refused = True
            raise Abandoned
        if not trial.argument and self._has_text():
            raise Abandoned
        self._commit()

    def _cut_in_call(self) -> bool:
        """Whether an output in content was cut off behind the header of a call to one of the tools."""
        trial = self._trial
        return trial is not None and self._cut_off and trial.kind is Content and trial.known

    def _has_text(self) -> bool:
        """Whether there is text among what is withheld."""
        return any(isinstance(event, Content) and not event.text.isspace() for event in self._events)

    def _content_begins(self) -> Script[None]:
        """Read the beginning of the content, in families where it has a meaning."""
        yield from self._skip("\n", self.before_content)
        if (self.answer or self.wrapper) and not self._wrapped:
            yield from self._open_answer()
        if self._options.structured and self._options.calls and self.text_openers:
            yield from self._calls_or_structured()

    def _open_answer(self) -> Script[None]:
        """Read what opens the content, if it comes next. Newlines before a marker are layout."""
        space = yield from self._skip("\n", MOST_SPACE)
        self._wrapped = (yield from self._next_is(self.answer or self.wrapper)) is not None
        if self._wrapped:
            yield from self._skip("\n", 1 if self.wrapper else self.after_answer)
        elif space and self._options.calls and (yield from self._next_is(*self._unindented_openers())) is not None:
            self._unread()
        elif space and (len((yield from self._peek())) < 2 or (yield from self._peek()) in self.ends):
            self._events.append(Content(space))

    def _calls_or_structured(self) -> Script[None]:
        """Read calls that begin with ordinary text. No content of a response format begins like that."""
        space = yield from self._skip("\n", MOST_SPACE)
        opener = yield from self._next_is(*self._unindented_openers())
        if opener is not None:
            yield from self._section(opener)
        elif space:
            self._events.append(Content(space))

    def _unindented_openers(self) -> Iterable[str]:
        return dict.fromkeys(opener.lstrip() for opener in self.text_openers)

    def _end_passed(self, end: str, in_reasoning: bool) -> Script[None]:
        """Read what may follow `end`, one of `ends`, in families where a turn goes on after it.

        `in_reasoning`: whether reasoning was open before it.
        """
        yield from ()

    def _wrapper_ends(self) -> Script[None]:
        """The end of the wrapper was read. It is text unless the answer ends there."""
        text = self._alphabet.spell(self._input[self._mark : self._at])
        text += yield from self._skip("\n", MOST_SPACE)
        after = yield from self._peek()
        if not self._wrapped or not (after == "" or after in self.ends):
            self._events.append(Content(text))

    def _section(self, opener: str) -> Script[None]:
        """Read the section that `opener` opened. A marker that does not belong to it is put back."""
        raise NotImplementedError

    def _another_section(self, opener: str) -> Script[bool]:
        """Whether `opener` opens another section after this one. Whitespace is markup before a marker or the end."""
        space = yield from self._skip(WHITESPACE, MOST_SPACE)
        marker = yield from self._next_is(opener, *self.ends)
        if marker == opener:
            return True
        if marker is not None:
            self._unread()
        elif space and (yield from self._peek()):
            self._events.append(Content(space))
        return False

    def _between(self, *stops: str) -> Script[str | None]:
        """Read up to one of `stops` where no text belongs: whitespace and `>` are markup, other text is content."""
        self._stray = False
        held = ""  # text that is nothing but brackets of tags

        def write(text: str) -> None:
            nonlocal held
            if self._stray or not (held or text.strip(WHITESPACE)):
                self._stray_text(text)
                return
            text, held = held + text, ""
            if text.strip(WHITESPACE + ">") or len(text) > MOST_SPACE:
                self._stray_text(text)
            else:
                self._stray_on_trial(text)
                held = text

        marker = yield from self._pass(write, self._stray_marker, stops)
        if held:
            self._defect("stray_bracket", held.strip())
        return marker

    def _misplaced(self, text: str) -> None:
        """Report text that is misplaced, and that `_between` did not read."""
        if text.strip() and not text.strip(WHITESPACE + ">"):
            self._stray_on_trial(text)
            self._defect("stray_bracket", text.strip())
            return
        self._stray = False
        self._stray_text(text)

    def _stray_text(self, text: str) -> None:
        if not self._stray:
            text = text.lstrip()
            if not text:
                return
            self._stray_on_trial(text)
            self._stray = True
            self._defect("text_in_section")
        else:
            self._stray_on_trial(text)
        self._events.append(Content(text))

    def _stray_on_trial(self, text: str) -> None:
        """What is on trial is prose if text comes where none belongs, unless it is a bracket inside a known call."""
        trial = self._trial
        if trial is None:
            return
        if self._cut_in_call():  # the text is the beginning of a marker
            self._certain()
        elif not trial.known or text.strip(WHITESPACE + BRACKETS):
            trial.cut = self._cut_off and not trial.ids
            raise Abandoned

    def _abandon(self, text: str, defect: str) -> None:
        """`text` began like a call, but is content, because of `defect`."""
        words = len(text.split())
        goes_on = not words or defect in _IN_HEADERS or (defect == "missing_value" and words == 1)
        if self._cut_in_call():
            self._certain()
        elif self._trial is not None and not goes_on:
            self._trial.cut = defect == "truncated_call" and self._begins_call(text)
            raise Abandoned
        self._defect(defect, text[:80])
        if defect == "truncated_call" and self._cut_off and self._begins_call(text):
            return
        if text := text.lstrip():
            self._events.append(Content(text))


@functools.lru_cache(256)
def _marks_of_answers(
    kind: type[ProseReader],
) -> tuple[str, str, list[str], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The markers of a family outside of sections: of reasoning, those that open calls, those around content, all, and
    those that mean something in reasoning too."""
    think, think_end, *openers = (marker.lstrip() for marker in (kind.think, kind.think_end, *kind.openers))
    # Each marker with its newlines, and without them. A dict, because the order matters.
    answers = tuple(filter(None, (kind.answer, kind.answer_end.lstrip())))
    own = (
        think,
        think_end,
        kind.think_end,
        *kind.other_thoughts,
        *filter(None, (kind.answer, kind.answer_end)),
        *answers,
    )
    marks = tuple(dict.fromkeys((*own, *openers, *kind.openers, *kind.ends, *kind.inner)))
    return think, think_end, openers, answers, marks, tuple(mark for mark in marks if mark not in kind.text_openers)


#: A beginning of a marker that no text ends in, however short.
_NO_TEXT = re.compile(r"</?｜|<\|/?\w\w")


@functools.lru_cache(1024)
def _is_begun_marker(kind: type[ProseReader], begun: str) -> bool:
    """Whether `begun`, in which an output was cut off, is the beginning of one of the family's markers: more than half
    of it, or what cannot be text."""
    if begun[:1] not in ("<", "[", "]", "｜") or (len(begun) < _SHORTEST_BEGUN and not _NO_TEXT.match(begun)):
        return False
    marks = (*kind.controls, *kind.around_messages, *kind.other_openers)
    marks += _marks_of_answers(kind)[4] if hasattr(kind, "openers") else ()
    begins = (mark.lstrip() for mark in marks if mark.lstrip().startswith(begun) and mark.lstrip() != begun)
    return any(2 * len(begun) > len(mark) or _NO_TEXT.match(begun) for mark in begins)


@functools.lru_cache(256)
def _inner_marks(kind: type[ProseReader]) -> tuple[str, ...]:
    """The markers of a family that mean nothing outside of sections."""
    others = (*kind.openers, *kind.ends, kind.think, kind.think_end, kind.answer, kind.answer_end)
    alone = (c for c in kind.controls if not any(c in m for m in (*others, *kind.inner)))
    return tuple(dict.fromkeys((*kind.inner, *alone)))
