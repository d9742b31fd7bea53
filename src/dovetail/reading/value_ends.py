"""`OpenValue`: where a value between tags ends, although its text may spell the tags, or the model misspells them.

A value ends at a closing tag that the rest of the call follows. With anything else behind it, the tag is text if the
value's own closing tag comes again before any other marker. So what the grammar derives is read as derived: no value
has its own closing tag in it. A near-miss of that tag counts by the same rule, reversed: it is text if the proper
closing tag comes before any other marker. A closing tag is not the value's own if another parameter was opened before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from dovetail.reading.alphabet import Literals, Search, any_control
from dovetail.reading.reader import FARTHEST

_SPACE: Final = re.compile(r"[ \t\r\n]*+")
#: The rest of a closing tag after the last letter of its name. A tag that a line break ends lacks its bracket.
REST: Final = re.compile(r"[\w/.:=\"' \t-]{0,32}+(?:>|(?=\r?\n))", re.ASCII)
REST_BEGUN: Final = re.compile(r"[\w/.:=\"' \t-]{0,32}+\r?", re.ASCII)
#: What stands for the end of the output where a marker is expected.
_END_OF_OUTPUT: Final = "\n"
#: How many characters of a tag are waited for to see its name.
_LONGEST_TAG: Final = 256


#: See `OpenValue`.
OpensNext: TypeAlias = Callable[[str, int, int], bool]
#: See `ValueEnds`.
Closer: TypeAlias = Literal["whole", "own", "other"]


class ValueEnds(NamedTuple):
    """What may end a family's values, as it stands in the input.

    `closers`: the closing tag and its near-misses, up to the last bracket. It is "whole" if it has no bracket, "own" if
    a bracket makes it the family's, and "other" if nothing does. `nested`: what opens another parameter. `end`: all of
    the closing tag. `other` finds that and the ordinary text that ends a value in its place; `walk` finds the same and
    `nested`; `misspelled` finds any of `closers`. `marks` finds what may follow a value, of which `longest` is the
    longest. `after`: what may follow the closing tag and belongs to it. `one_line`: whether the family writes nothing
    between a value and what follows it.
    """

    closers: Mapping[str, Closer]
    nested: frozenset[str]
    end: str
    other: re.Pattern[str]
    misspelled: re.Pattern[str]
    walk: re.Pattern[str]
    marks: Search
    longest: int
    after: str
    one_line: bool


def value_ends(
    end: str,
    closers: Mapping[str, Closer],
    nested: Iterable[str],
    stops: Iterable[str],
    marks: Iterable[str],
    after: str = "",
    *,
    one_line: bool,
) -> ValueEnds:
    """`stops`: the ordinary text that ends a value in the place of `end`. See `ValueEnds`."""
    marks = {mark.lstrip() for mark in marks}
    # No literal may begin another.
    marks = tuple(mark for mark in marks if not any(mark != other and mark.startswith(other) for other in marks))
    nested, stops = frozenset(nested), tuple(stops)
    other = Literals((end, *stops), controls=False).pattern
    openers = (tag for tag in nested if not any(tag != other and tag.startswith(other) for other in (*stops, *nested)))
    walk = Literals((end, *stops, *openers), controls=False).pattern
    search = Literals(marks, controls=False).search
    any_closer = Literals(tuple(closers), controls=False).pattern
    return ValueEnds(
        closers, nested, end, other, any_closer, walk, search, max(map(len, marks), default=0), after, one_line
    )


class OpenValue:
    """Judges the markers in one value.

    `closers`: closing tags of this value that are no spelling of the family's, named after its key.
    `lenient`: whether the value was not opened as the family does, so that no grammar derives it.
    `excludes`: whether a nested tag, of which it gets all up to its bracket, is no parameter of the tool.
    `opens_next`: whether a nested tag is a parameter that the call lacks, or one of another call. It gets the unread
    text, and where in it a marker ended and the tag begins: between them may be the parameter's name, or another call.
    """

    def __init__(
        self,
        ends: ValueEnds,
        closers: Iterable[str],
        excludes: Callable[[str], bool],
        opens_next: OpensNext,
        *,
        lenient: bool = False,
    ) -> None:
        self._ends = ends
        self._closers = frozenset(closers)
        self._excludes = excludes
        self._opens_next = opens_next
        self._lenient = lenient
        #: How many nested parameters are open in the value's text.
        self._depth = 0

    def weigh(self, text: str, begin: int, at: int, *, over: bool) -> int | None:
        """Whether the marker from `begin` to `at` ends the value: see `reading.reader.Weigh`."""
        marker = text[begin:at].lstrip(" \t\r\n")
        own = self._ends.closers.get(marker)
        nested = marker in self._ends.nested
        if own is not None or marker in self._closers:
            length = self._closer(text, at, own, over)
            self._depth += nested and length == 0
            return length
        if not any_control.search(marker):
            if not nested:
                return -1
            if text[begin] == "\n":
                return self._nested_line(text, at - len(marker), at, over)
            self._depth += 1
            return 0
        length = self.goes_on(text, at, over, begin if nested else None)
        if nested and length is not None and length >= 0:
            self._depth += 1
        return length

    def goes_on(self, text: str, at: int, over: bool, opener: int | None = None) -> int | None:
        """Whether the value goes on at `at`, because its end comes before anything else that ends it: see `weigh`.

        `opener`: where a parameter's opening tag is before `at`, whose end has to come first.
        """
        depth = 0 if opener is None else 1
        ended = False
        limit = at + FARTHEST
        for match in (self._ends.misspelled if self._lenient else self._ends.walk).finditer(text, at, limit):
            if not match.lastindex:
                break
            if match.group() in self._ends.nested:
                opener = match.start() if opener is None else opener
                depth += 1
            elif not (self._lenient or match.group() == self._ends.end):
                return -1
            elif not depth:
                return 0
            else:
                depth -= 1
                ended = True
        if len(text) < limit and not over:
            return None
        if opener is not None and self._opens_next(text, at, opener):
            return -1
        return 0 if ended or len(text) >= limit else None

    # -- one marker ---------------------------------------------------------------------------------------------------

    def _closer(self, text: str, at: int, own: Closer | None, over: bool) -> int | None:
        """The same for a closing tag up to its last bracket. `own`: None if it is named after the key."""
        exact = own == "whole"
        if own in ("own", "other"):
            end = self._end_of_tag(text, at, over)
            if end <= 0:
                return None if end < 0 else 0
            exact = own == "own" and text[at : at + 1] == ">"
            at = end
        if self._ends.after and text.startswith(self._ends.after, at):
            at += len(self._ends.after)
        end, mark = self._next_mark(text, at, over)
        if mark is None or mark == _END_OF_OUTPUT:
            return -1 if mark else None
        if exact or self._lenient:
            return self._own_closer(text, at, end, mark, over)
        if not mark or mark.removesuffix(">") in self._ends.closers:
            return 0
        stop = self._ends.other.match(text, end - 1)
        if stop is not None and stop.lastindex:  # what no value has in it
            return -1
        return self.goes_on(text, at, over)

    def _own_closer(self, text: str, at: int, end: int, mark: str, over: bool) -> int | None:
        """The same for the family's closing tag, after which `mark` comes, at `end`."""
        if not mark:
            return self.goes_on(text, at, over)
        if mark in self._ends.closers or mark.removesuffix(">") in self._ends.closers:
            if self._depth:
                self._depth -= 1
                return 0
            return -1
        if mark in self._ends.nested:
            excluded = self._depth > 0 and self._excluded(text, end, over)
            if excluded:
                self._depth -= 1
            return None if excluded is None else 0 if excluded else -1
        if self._depth and (length := self._ends_again(text, at, over)) != -1:
            self._depth -= length == 0
            return length
        closes = mark[:2] == "</" or mark[-1] == ">" or any_control.match(mark, len(mark) - 1)
        if not closes or self._ends.one_line or "\n" in text[at:end]:
            return -1
        # Behind a marker in the same line, more markup or the end has to follow.
        end += len(mark)
        if mark[:2] == "</" and mark[-1] != ">":
            end = self._end_of_tag(text, end, over)
            if end <= 0:
                return None if end < 0 else self.goes_on(text, at, over)
        following = self._next_mark(text, end, over)[1]
        return None if following is None else -1 if following else self.goes_on(text, at, over)

    def _ends_again(self, text: str, at: int, over: bool) -> int | None:
        """Whether a closing tag in front of `at` is text, because the value's own comes later: see `weigh`.

        So many parameters as are opened before it are closed before it, which no call is that follows this one.
        """
        depth, limit = 1, at + FARTHEST
        for match in self._ends.walk.finditer(text, at, limit):
            if match.lastindex and match.group() in self._ends.nested:
                depth += 1
            elif match.lastindex and match.group() == self._ends.end:
                depth -= 1
                if not depth:
                    return 0
            elif match.lastindex:
                return -1
        return None if len(text) < limit and not over else -1

    def _nested_line(self, text: str, begin: int, at: int, over: bool) -> int | None:
        """The same for a parameter's opening tag at the beginning of a line. It ends the value unless it is foreign.

        It is, if the tool has no such parameter and the value goes on after the foreign one.
        """
        excluded = self._excluded(text, begin, over)
        if not excluded:
            return None if excluded is None else -1
        limit = at + FARTHEST
        while excluded:
            if (end := text.find(self._ends.end, at, limit)) < 0:
                return -1 if over or len(text) >= limit else None
            at = end + len(self._ends.end)
            end, mark = self._next_mark(text, at, over)
            if mark is None:
                return None
            if not mark or mark.removesuffix(">") in self._ends.closers:
                length = self.goes_on(text, at, over)
                if length == 0:
                    self._depth += 1
                return length
            # Of several foreign parameters, the last decides.
            excluded = mark in self._ends.nested and self._excluded(text, end, over)
        return None if excluded is None else -1

    @staticmethod
    def _end_of_tag(text: str, at: int, over: bool) -> int:
        """Where a closing tag ends, after the beginning that was recognized; 0 if it is no tag, -1 if that is open."""
        if (rest := REST.match(text, at)) is not None:
            return rest.end()
        if not REST_BEGUN.fullmatch(text, at):
            return 0
        return len(text) if over else -1

    # -- what follows -------------------------------------------------------------------------------------------------

    def _next_mark(self, text: str, at: int, over: bool) -> tuple[int, str | None]:
        """Where whitespace ends, and the marker there: "" for text, None if that depends on text that has not come."""
        end = _SPACE.match(text, at, at + FARTHEST).end()  # type: ignore[union-attr]  # it matches everywhere
        if end == at + FARTHEST:
            return end, ""
        match = self._ends.marks(text[end : end + self._ends.longest], 0)
        here = match is not None and match.start() == 0
        if match is not None and here and match.lastindex:
            return end, match.group()
        if end == len(text) or here:
            return end, _END_OF_OUTPUT if over else None
        return end, ""

    def _excluded(self, text: str, at: int, over: bool) -> bool | None:
        """Whether the tag that begins at `at` has the name of no parameter. None if it is not known yet."""
        end = text.find(">", at, at + _LONGEST_TAG)
        if end < 0:
            return None if len(text) < at + _LONGEST_TAG and not over else False
        return self._excludes(text[at:end])
