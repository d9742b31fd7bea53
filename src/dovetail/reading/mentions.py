"""`MentionReader`: whether a marker in reasoning or content is meant, or is text that mentions it.

A marker of reasoning, of an answer or of the turn's end is text if it stands like a word or a quotation in a line, or
in code. So is one that can be real at the end of a line only, if the line goes on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from dovetail.events import Content, Reasoning
from dovetail.reading.reader import Reader, Script

_TEXT = re.compile(r"\s{0,16}[^\s\ud800-\udfff]")
_MAY_BE_TEXT = re.compile(r"\s{0,16}")
_TEXT_IN_LINE = re.compile(r"[ \t]{0,16}[^\s\ud800-\udfff]")
_MAY_BE_TEXT_IN_LINE = re.compile(r"[ \t]{0,16}")
#: Marks that begin a quotation, each with the one that ends it.
_QUOTED: Final = {"`": "`", "'": "'", '"': '"', "“": "”", "‘": "’", "«": "»", "「": "」", "『": "』"}
QUOTES: Final = frozenset(_QUOTED)
#: What stands before and after a word or a quotation.
BEFORE: Final = frozenset(" \t([{*_|:,=/（《【、，：") | QUOTES
AFTER: Final = frozenset(" \t)]}*_|.,;:!?/…-）》】、，：。；！？") | frozenset(_QUOTED.values())
#: How long the rest of a quotation is at most, in a line and in a block of code.
_LONGEST_QUOTATION: Final = 160
_LONGEST_CODE: Final = 1024
_NOT_ALONE = "(?![\ud800-\udfff])"
_REST_OF_LINE = re.compile(rf"[^\n]{{0,{_LONGEST_QUOTATION}}}")
#: A mark may stand alone at the end of a message. Then another marker follows.
_QUOTATION_ENDS = {
    mark: re.compile(rf"{_NOT_ALONE if mark != '`' else ''}[^\n{end}]{{0,{_LONGEST_QUOTATION - 1}}}{end}")
    for mark, end in _QUOTED.items()
}
_REST_OF_CODE = re.compile(rf"[\s\S]{{0,{_LONGEST_CODE}}}")
_CODE_ENDS = re.compile(rf"[\s\S]{{0,{_LONGEST_CODE - 8}}}?\n[ \t]{{0,4}}```(?!\w)")

Prose: TypeAlias = type[Reasoning] | type[Content]


class MentionReader(Reader):
    _index: int  # of the open or last call

    #: The markers around content, in families that have them. Newlines in front of the closing one are part of it.
    answer: str = ""
    answer_end: str = ""

    _shown: str  # the last text of the open reasoning or content; "" at its beginning
    _weighed: list[str]  # its text since `_in_code` looked at it
    _in_block: bool  # whether a block of code is open in it
    _ticks: int  # how many backticks its last line has outside of fences
    _mentioned: bool  # whether it is about markup
    _wrapped: bool  # whether the wrapper is open

    def _show(self, kind: Prose, text: str) -> None:
        """Emit text as `kind`."""
        raise NotImplementedError

    def _last_marker(self) -> str:
        """The last marker, as it was written."""
        raise NotImplementedError

    def _openers_in_text(self) -> tuple[str, ...]:
        """What opens sections in reasoning and content, without newlines in front."""
        raise NotImplementedError

    def _text_follows(self) -> Script[bool]:
        """Whether text comes next, perhaps after whitespace, and not a marker or the end."""
        return (yield from self._look(_TEXT, _MAY_BE_TEXT)) is not None

    def _text_in_line_follows(self) -> Script[bool]:
        return (yield from self._look(_TEXT_IN_LINE, _MAY_BE_TEXT_IN_LINE)) is not None

    def _in_code(self) -> bool:
        """Whether the text so far ends in a block or in a span of code."""
        if not self._shown:
            return False
        text = "".join(self._weighed)
        self._weighed.clear()
        self._in_block ^= text.count("```") % 2 == 1
        _, newline, line = text.rpartition("\n")
        self._ticks = (0 if newline else self._ticks) + line.replace("```", "").count("`")
        return self._in_block or self._ticks % 2 == 1

    def _opens_quotation(self) -> bool:
        """Whether the text so far ends in a mark that begins a quotation, which one at the end of a word does not."""
        *before, last = ("", *self._shown[-2:])
        return last in QUOTES and last != "`" and (before[-1] in BEFORE or before[-1] in ("", "\n"))

    def _is_mention(self, kind: Prose, written: str = "") -> Script[bool]:
        """Whether the last marker stands like a word or a quotation in a line or in code. Then it is shown as `kind`.

        `written`: the marker as it was written, if more has been asked for since.
        """
        return (yield from self._shown_if(kind, written, self._mention))

    def _is_mentioned_end(self, kind: Prose, written: str = "") -> Script[bool]:
        """The same for a marker that ends something: then its line does not go on."""
        return (yield from self._shown_if(kind, written, self._mention, self._mention_in_line))

    def _is_mentioned_answer(self, kind: Prose) -> Script[bool]:
        """The same for a marker that opens an answer."""
        return (yield from self._shown_if(kind, "", self._mention, self._mention_of_answer))

    def _shown_if(self, kind: Prose, written: str, *mentions: Callable[[Prose, str], Script[str]]) -> Script[bool]:
        """Emit what one of `mentions` finds of a mention that the last marker begins; False if none finds any."""
        written = written or self._last_marker()
        for mention in mentions:
            if text := (yield from mention(kind, written)):
                self._show(kind, text)
                return True
        return False

    def _mention(self, kind: Prose, written: str) -> Script[str]:
        last = self._shown[-1:]
        in_line = written[0] != "\n" and last in BEFORE and (yield from self._peek()) in AFTER
        if in_line and (yield from self._text_follows()):
            return written
        in_code = self._in_code()
        if in_code and self._in_block:
            # Reasoning may have forgotten the end of its code.
            ends = kind is Content or (yield from self._look(_CODE_ENDS, _REST_OF_CODE)) is not None
            return written if ends and (yield from self._text_follows()) else ""
        quote = "`" if in_code else last if self._opens_quotation() else ""
        if not quote or written[0] == "\n":
            return ""
        rest = yield from self._look(_QUOTATION_ENDS[quote], _REST_OF_LINE)
        if rest is None or (kind is Content and self._holds_call(self._alphabet.spell(rest.group()))):
            return ""
        self._at = rest.end()
        return written + self._alphabet.spell(rest.group())

    def _holds_call(self, quotation: str) -> bool:
        """Whether a call begins in what looks like a quotation. Its last mark stands in the arguments then."""
        begun = [opener for opener in self._openers_in_text() if opener in quotation]
        after = quotation[min(map(quotation.index, begun)) :] if begun and self._options.calls else ""
        return any(name in after for name in self._options.tools)

    def _mention_in_line(self, kind: Prose, written: str) -> Script[str]:
        if not self._shown and self._index >= 0:
            return ""
        in_line = "\n" not in (self._shown[-1:], written[0], written[-1]) and (yield from self._text_in_line_follows())
        return written if in_line or (self._mentioned and (yield from self._text_follows())) else ""

    def _mention_of_answer(self, kind: Prose, written: str) -> Script[str]:
        """An answer begins no second time in its line, and does not end in the line of the reasoning before it."""
        if self._shown[-1:] in ("", "\n") or written[0] == "\n":
            return ""
        if kind is Content and self._wrapped and self._index < 0:
            return written if (yield from self._text_in_line_follows()) else ""
        return written if (yield from self._look(_answer_in_line(type(self)), _REST_OF_LINE)) is not None else ""


@functools.lru_cache(256)
def _answer_in_line(kind: type[MentionReader]) -> re.Pattern[str]:
    """What follows the marker that opens an answer, if the line goes on behind the one that closes it."""
    if not kind.answer_end:
        return re.compile("(?!)")
    end = re.escape(kind.in_alphabet(kind.answer_end.lstrip()))
    return re.compile(rf"[^\n\ud800-\udfff]{{0,{_LONGEST_QUOTATION - 32}}}{end}[ \t]{{0,16}}[^\s\ud800-\udfff]")
