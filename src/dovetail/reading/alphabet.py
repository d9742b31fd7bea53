"""The alphabet that readers work in: ordinary characters, and one extra character for each control token.

A control token becomes a lone surrogate, which decoded text never contains. A marker such as `</｜DSML｜parameter>`,
whose middle is a control token, is then an ordinary string, and differs from text that only spells the control token.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from dovetail.tokens import Segment

_SURROGATES: Final = range(0xD800, 0xE000)
_SURROGATE: Final = "[\ud800-\udfff]"
#: Finds the next control token in the alphabet; in other text, a lone surrogate.
any_control: Final = re.compile(_SURROGATE)

Search: TypeAlias = Callable[[str, int], "re.Match[str] | None"]


class Literals:
    """Finds the first of some literals in a text, or the beginning of a literal at the end of the text.

    No literal may begin another, because then the cuts of the text would decide which of the two is found.
    """

    def __init__(self, literals: Sequence[str], *, controls: bool) -> None:
        for literal in literals:
            if any(other != literal and other.startswith(literal) for other in literals):
                raise ValueError(f"{literal!r} is the beginning of another literal")
        self.pattern = re.compile(_pattern(literals, controls), re.DOTALL)
        #: Called as ``search(text, start)``. The match has a group if it is a whole literal (or, with `controls`, a
        #: control token that begins no literal), and no group if it is only the beginning of a literal.
        self.search = self.pattern.search


def _pattern(literals: Sequence[str], controls: bool) -> str:
    firsts = sorted({literal[0] for literal in literals if literal})
    # With a class of first characters in front, the regex engine skips all other text fast.
    first = "".join(map(re.escape, firsts)) + ("\ud800-\udfff" if controls else "")
    if not first:
        return r"(?!)()"
    whole = [f"(?<={re.escape(f)}){_alternatives([s[1:] for s in literals if s[0] == f])}" for f in firsts]
    begun = [f"(?<={re.escape(f)}){_alternatives([s[1:] for s in literals if s[0] == f], begun=True)}" for f in firsts]
    patterns = [f"(?:{'|'.join(whole)})()", f"(?:{'|'.join(begun)})\\Z"] if firsts else []
    if controls:  # last, because a literal may begin with a control token
        patterns.append(f"(?<={_SURROGATE})()")
    return f"[{first}](?:{'|'.join(patterns)})"


def _alternatives(endings: Iterable[str], *, begun: bool = False) -> str:
    """A pattern for each of `endings`, none of which begins another; `begun`: for every beginning of them.

    It is a tree of characters, because that is compiled in a fraction of the time.
    """
    by_first: dict[str, list[str]] = {}
    for ending in endings:
        if ending:
            by_first.setdefault(ending[0], []).append(ending[1:])
    branches = [re.escape(first) + _alternatives(rest, begun=begun) for first, rest in by_first.items()]
    if begun:
        return f"(?:{'|'.join(branches)})?" if branches else ""
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""


@functools.cache
def _literals_in_text(literals: tuple[str, ...]) -> Literals:
    return Literals(literals, controls=False)


@functools.cache
def _known(controls: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str], Search]:
    """Each literal's character, each character's literal, and what finds a literal in text."""
    character = {literal: chr(_SURROGATES[i]) for i, literal in enumerate(controls)}
    return character, {c: literal for literal, c in character.items()}, _literals_in_text(controls).search


class Alphabet:
    """Turns the text or the segments of one output into the alphabet and back.

    `controls`: the literals of the family's control tokens.
    `spelled`: the ones for which the model's tokenizer has no control token. They are recognized in ordinary text, even
    if the output comes as ids.
    """

    def __init__(self, controls: Sequence[str], spelled: Iterable[str] = ()) -> None:
        character, literal, self._all = _known(tuple(controls))
        self._character, self._literal = character.copy(), literal.copy()  # other control tokens are added
        spelled = tuple(spelled)
        self._some = _literals_in_text(spelled).search if spelled else None
        #: Text that may be the beginning of a literal.
        self.buffered = ""

    def has_literal(self, text: str) -> bool:
        """Whether ordinary text has a literal, or the beginning of one at its end."""
        return self._all(text, 0) is not None

    def from_text(self, text: str) -> str:
        """Text in which every literal counts as a control token. The beginning of one at the end is buffered."""
        if not text.isascii():
            text = any_control.sub("\ufffd", text)
        text = self.buffered + text if self.buffered else text
        if self._all(text, 0) is None:
            self.buffered = ""
            return text
        return self._replace(text, self._all)

    def from_segments(self, segments: Iterable[Segment]) -> str:
        """Pieces of which it is known whether they are control tokens."""
        pieces: list[str] = []
        for text, control in segments:
            if control:
                pieces += (self.end(), self._control(text))
                continue
            if not text.isascii():
                text = any_control.sub("\ufffd", text)
            if self._some is not None:
                text = self._replace(self.buffered + text, self._some)
            elif self.buffered:
                pieces.append(self.end())
            pieces.append(text)
        return "".join(pieces)

    def end(self) -> str:
        """The buffered text. Nothing can complete it any more."""
        rest, self.buffered = self.buffered, ""
        return rest

    def next_characters(self) -> tuple[str, ...]:
        """The characters that the buffered text, of which there is some, may turn out to begin with."""
        return (self.buffered[0], *(c for literal, c in self._character.items() if literal.startswith(self.buffered)))

    def literal(self, character: str) -> str:
        return self._literal[character]

    def spell(self, text: str) -> str:
        """`text` with the literal of each control token in place of its character."""
        if text.isascii():
            return text
        return any_control.sub(lambda match: self._literal[match.group()], text)

    def _control(self, literal: str) -> str:
        character = self._character.get(literal)
        if character is None:
            if len(self._character) == len(_SURROGATES):
                return literal  # the output has more kinds of control tokens than there are surrogates
            character = chr(_SURROGATES[len(self._character)])
            self._character[literal] = character
            self._literal[character] = literal
        return character

    def _replace(self, text: str, search: Search) -> str:
        pieces: list[str] = []
        at = 0
        while (match := search(text, at)) is not None:
            pieces.append(text[at : match.start()])
            if not match.lastindex:
                self.buffered = text[match.start() :]
                return "".join(pieces)
            pieces.append(self._character[match.group()])
            at = match.end()
        self.buffered = ""
        pieces.append(text[at:])
        return "".join(pieces)
