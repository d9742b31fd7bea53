"""Families whose calls begin with ordinary text: content that their readers can never take for a call.

A text is cut in front of each character that a call, or a marker that is no control token, may begin with. No piece
begins like one of those. So the last character by which a call differs from text is never in a text, and up to there a
text may still become a call: that is the shape llguidance's lexer needs, which always takes as much as it can.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from dovetail.formats.answer_grammar import AnswerGrammar
from dovetail.grammar import Choice, Concat, ExactText, Grammar, Maybe, Node, Regex, Repeat, TextUntil
from dovetail.grammar.patterns import quoted

#: White space, as what is between the brackets of a regex's class.
BLANK = r" \t\r\n\f"
#: Characters of a marker that are not said in text: `</thi` is no HTML. To tell all of it costs xgrammar, which makes a
#: mask for each state beforehand, half a second more for each marker.
_ENOUGH = 5


class PlainTextAnswers(AnswerGrammar):
    """For a reader that finds calls in content, and reasoning between tags that may be ordinary text."""

    @abstractmethod
    def call_marker(self) -> str:
        """The control token that opens calls even if content is JSON."""

    def marks(self) -> list[str]:
        """The first characters of each marker. A text contains none of them, not even those of control tokens: an
        engine whose grammars confuse a token with its characters could write any call after it."""
        marks = (self.reader.think.strip(), self.reader.think_end.strip(), *self.reader.controls)
        return [*dict.fromkeys(mark[:_ENOUGH] for mark in marks)]

    def reasoning(self, thinking: bool) -> tuple[Node, ...]:
        """If a reasoning block is ordinary text, the model may open one whether or not its prompts contain any."""
        opener, closer = self.reader.think.strip(), self.reader.think_end.strip()
        if self.format.reasoning != "none" or not isinstance(self.mark(closer), ExactText):
            return super().reasoning(thinking)
        spelled = tuple(mark for mark in self.marks() if mark[0] == "<")
        return (Maybe(Concat((self.mark(opener), TextUntil(closer, spelled)))),)

    def calls_or_structured(self, calls: Node | None, content: Node | None, thinking: bool) -> Grammar:
        marked = None if calls is None else Concat((self.mark(self.call_marker()), calls))
        return super().calls_or_structured(marked, content, thinking)


def text(first: Iterable[Node], more: Iterable[Node]) -> Node:
    """Text of one character or more: white space, then one of `first`, then any number of `more`."""
    blank = Regex(f"[{BLANK}]+")
    begun = Concat((Maybe(blank), Choice(tuple(first)), Repeat(Choice(tuple(more)), 0)))
    return Choice((begun, blank))


def stops(marks: Iterable[str], *more: str) -> str:
    """The characters that a text is cut in front of: those that `marks` begin with, and `more`."""
    return "".join(sorted({mark[0] for mark in marks}.union(more)))


def pieces(marks: Sequence[str], stops: str) -> list[Node]:
    """Text up to the next of `stops` that begins with the first character of a mark, and with none of `marks`."""
    found: list[Node] = []
    for first in sorted({mark[0] for mark in marks}):
        behind = others((mark[1:] for mark in marks if mark[0] == first), in_class(stops))
        found.append(Regex(f"{quoted(first)}(?:{behind})?"))
    return found


def words(stops: str, not_first: str = "") -> Regex:
    """Text up to the next of `stops` that begins with no white space and none of `not_first`."""
    return Regex(f"[^{BLANK}{in_class(stops + not_first)}][^{in_class(stops)}]*")


def behind_blanks(stops: str, unlike: Iterable[str]) -> str:
    """A regex of text up to the next of `stops`: white space, and then what begins with none of `unlike`."""
    return f"(?:[{BLANK}]*(?:{others(unlike, in_class(stops), not_first=BLANK)})|[{BLANK}]+)"


def others(words: Iterable[str], stops: str, *, not_first: str = "", whole: bool = False) -> str:
    """A regex of any text that begins with none of `words` (with `whole`: that is none of them).

    It has one character or more, but none of `stops`, and does not begin with one of `not_first`; both are written as
    in a class.
    """
    words = list(words)
    unlike = f"(?:{'|'.join(_unlike(words, stops, not_first, whole))})[^{stops}]*"
    return "|".join((unlike, *_begun(words, whole)))


def _unlike(words: Iterable[str], stops: str, not_first: str, whole: bool) -> list[str]:
    """Regexes of what is as the beginning of a word, and then one other character."""
    behind = _by_first(words, whole)
    taken = {word[0] for word in words if word}
    found = [f"[^{not_first}{stops}{in_class(''.join(sorted(taken)))}]"]
    for character, rests in behind.items():
        found += _led_by(character, _unlike(rests, stops, "", whole), len(behind))
    return found


def _begun(words: Iterable[str], whole: bool) -> list[str]:
    """Regexes of the beginnings of words: one character or more, and not all of one."""
    behind = _by_first(words, whole)
    found: list[str] = []
    for character, rests in behind.items():
        found += [quoted(character)] * ("" not in rests)
        found += _led_by(character, _begun(rests, whole), len(behind))
    return found


def _by_first(words: Iterable[str], whole: bool) -> dict[str, set[str]]:
    """What stands behind the first characters of words; without those that are words unless `whole` is asked for."""
    behind: dict[str, set[str]] = {}
    for word in sorted(words):
        if word:
            behind.setdefault(word[0], set()).add(word[1:])
    return {character: rests for character, rests in behind.items() if whole or "" not in rests}


def _led_by(character: str, regexes: list[str], beside: int) -> list[str]:
    """Each behind a character. Side by side where there is no other, because groups may not be nested as deeply."""
    if beside == 1 or len(regexes) < 2:
        return [quoted(character) + regex for regex in regexes]
    return [f"{quoted(character)}(?:{'|'.join(regexes)})"]


def in_class(characters: str) -> str:
    """Characters as they are written in a class."""
    return "".join(f"\\{c}" if c in "\\]^-/[" else _SPELLED.get(c, c) for c in characters)


_SPELLED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f"}
