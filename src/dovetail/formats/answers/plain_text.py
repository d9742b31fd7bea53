"""Grammars for families whose calls begin with ordinary text: content that their readers never take for a call.

The grammar splits text into pieces. A piece begins at each character with which a call, or a marker of ordinary text,
may begin; and no piece begins like a call or a marker. Up to its last distinguishing character, a text may still become
a call. llguidance's lexer needs this shape, because it always takes the longest match.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from dovetail.events import INVISIBLE
from dovetail.formats.answers.answer_grammar import BLANKS, AnswerGrammar
from dovetail.grammar import Choice, Concat, ExactText, Grammar, Maybe, Node, Regex, Repeat, TextUntil
from dovetail.grammar.patterns import quoted

#: Whitespace, as the inside of a regex's character class.
BLANK = r" \t\r\n\f"
#: How many first characters of a marker text may not contain: `</thi` is no HTML. The whole marker would cost xgrammar,
#: which computes a mask for each state, half a second more per marker.
_FORBIDDEN = 5


class PlainTextAnswers(AnswerGrammar):
    """For a reader that finds calls in content, and reasoning between tags that may be ordinary text."""

    @abstractmethod
    def call_marker(self) -> str:
        """The control token that opens calls even if content is JSON."""

    def marks(self) -> list[str]:
        """The first characters of each marker. A text has none of them, not even where it spells a control token: an
        engine whose grammars confuse a token with its characters could write any call after it."""
        marks = (self.reader.think.strip(), self.reader.think_end.strip(), *self.reader.controls)
        return [*dict.fromkeys(mark[:_FORBIDDEN] for mark in marks)]

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        """If a reasoning block is ordinary text, the model may open one whether or not its prompts contain any."""
        opener, closer = self.reader.think.strip(), self.reader.think_end.strip()
        if self.format.reasoning != "none" or not isinstance(self.mark(closer), ExactText):
            return super().reasoning(thinking)
        spelled = tuple(mark for mark in self.marks() if mark[0] == "<")
        return (Maybe(Concat((self.mark(opener), TextUntil(closer, spelled)))),)

    @property
    def new_lines_before_calls(self) -> int:
        return 0

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        marked = None if calls is None else Concat((self.mark(self.call_marker()), calls))
        return super().calls_or_structured(marked, content, thinking)


def text(first: Iterable[Node], more: Iterable[Node]) -> Node:
    """Text that a reader can see: perhaps `BLANKS`, then one of `first`, then any number of `more`."""
    return Concat((Maybe(BLANKS), Choice(tuple(first)), Repeat(Choice(tuple(more)), 0)))


def perhaps(text: Node) -> Node:
    """`text`, or nothing that a reader can see."""
    return Maybe(Choice((text, BLANKS)))


def stops(marks: Iterable[str], *more: str) -> str:
    """The characters at which a new piece begins: the first of each of `marks`, and `more`."""
    return "".join(sorted({mark[0] for mark in marks}.union(more)))


def pieces(marks: Sequence[str], stops: str) -> list[Node]:
    """Text up to the next of `stops` that begins with the first character of a mark, but with no whole mark."""
    nodes: list[Node] = []
    for first in sorted({mark[0] for mark in marks}):
        rest = others((mark[1:] for mark in marks if mark[0] == first), in_class(stops))
        nodes.append(Regex(f"{quoted(first)}(?:{rest})?"))
    return nodes


def words(stops: str, not_first: str = "") -> Regex:
    """Text up to the next of `stops` that begins with a character that a reader can see, and none of `not_first`."""
    return Regex(f"[{INVISIBLE}]*[^{INVISIBLE}{in_class(stops + not_first)}][^{in_class(stops)}]*")


def after_blanks(stops: str, unlike: Iterable[str]) -> str:
    """A regex of text up to the next of `stops`: whitespace, and then text that begins with none of `unlike`."""
    return f"(?:[{BLANK}]*(?:{others(unlike, in_class(stops), not_first=BLANK)})|[{BLANK}]+)"


def others(words: Iterable[str], stops: str, *, not_first: str = "", whole: bool = False) -> str:
    """A regex of any text that begins with none of `words`; with `whole`, of any text that is none of `words`.

    The text has at least one character, contains none of `stops` and begins with none of `not_first`. Both are given as
    the inside of a character class.
    """
    words = list(words)
    unlike = f"(?:{'|'.join(_unlike(words, stops, not_first, whole))})[^{stops}]*"
    return "|".join((unlike, *_begun(words, whole)))


def _unlike(words: Iterable[str], stops: str, not_first: str, whole: bool) -> list[str]:
    """Regexes of texts that are the beginning of a word and then one character that differs."""
    rests_by_first = _by_first(words, whole)
    taken = {word[0] for word in words if word}
    regexes = [f"[^{not_first}{stops}{in_class(''.join(sorted(taken)))}]"]
    for character, rests in rests_by_first.items():
        regexes += _led_by(character, _unlike(rests, stops, "", whole), len(rests_by_first))
    return regexes


def _begun(words: Iterable[str], whole: bool) -> list[str]:
    """Regexes of the beginnings of words: at least one character, and no whole word."""
    rests_by_first = _by_first(words, whole)
    regexes: list[str] = []
    for character, rests in rests_by_first.items():
        regexes += [quoted(character)] * ("" not in rests)
        regexes += _led_by(character, _begun(rests, whole), len(rests_by_first))
    return regexes


def _by_first(words: Iterable[str], whole: bool) -> dict[str, set[str]]:
    """The rests of words, by their first character. Without `whole`, first characters that are words are left out."""
    rests_by_first: dict[str, set[str]] = {}
    for word in sorted(words):
        if word:
            rests_by_first.setdefault(word[0], set()).add(word[1:])
    return {character: rests for character, rests in rests_by_first.items() if whole or "" not in rests}


def _led_by(character: str, regexes: list[str], beside: int) -> list[str]:
    """Each regex after a character. An only character gets no group, because the nesting of groups is limited."""
    if beside == 1 or len(regexes) < 2:
        return [quoted(character) + regex for regex in regexes]
    return [f"{quoted(character)}(?:{'|'.join(regexes)})"]


def in_class(characters: str) -> str:
    """Characters as the inside of a regex's character class."""
    return "".join(f"\\{c}" if c in "\\]^-/[" else _SPELLED.get(c, c) for c in characters)


_SPELLED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f"}
