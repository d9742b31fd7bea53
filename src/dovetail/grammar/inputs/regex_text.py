"""Reads a regular expression that a client wrote, in what Rust's and Python's dialects have in common.

Look-arounds, back-references and word boundaries are refused: no grammar enforces them. Lazy repetitions match the same
whole texts as others.
"""

from __future__ import annotations

import re
from typing import NoReturn

from dovetail.grammar.inputs.charsets import ANY, Chars, category, normal, posix_class, short_class
from dovetail.grammar.inputs.expressions import EMPTY, Expression, either, sequence, times

_MOST_TIMES = 10_000
_DEEPEST = 50
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_TIMES = re.compile(r"\{([0-9]{0,9})(?:(,)([0-9]{0,9}))?\}")
_HEX = re.compile(
    r"x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})"
)
_PROPERTY = re.compile(r"[pP](?:\{(\^?)(?:(?:gc|General_Category)=)?([A-Za-z]+)\}|()([A-Z]))")
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_][A-Za-z0-9_]*>|([a-z]*)(?:-([a-z]+))?(:|\)))")
_FLAGS = frozenset("imsux")


class RegexError(ValueError):
    """The regex is not well formed, or has what no grammar enforces."""


def parse(regex: str, flags: str = "", *, whole: bool = False) -> Expression:
    """The expression of a regex. `flags`: some of the letters i, m, s, u, x. Raises `RegexError`.

    `whole`: the regex is about a whole text, so that `^` at the beginning of a branch and `$` at its end say nothing.
    """
    if unknown := set(flags) - _FLAGS:
        raise RegexError(f"the flag {min(unknown)!r} is not supported")
    parser = _Parser(regex, frozenset(flags), whole)
    expression = parser.alternatives(0)
    if parser.at < len(regex):
        parser.refuse("unbalanced )")
    return expression


class _Parser:
    def __init__(self, regex: str, flags: frozenset[str], whole: bool) -> None:
        self._regex = regex
        self._flags = flags
        self._whole = whole
        self.at = 0

    def refuse(self, complaint: str, at: int | None = None) -> NoReturn:
        raise RegexError(f"{complaint} at character {self.at if at is None else at} of the regex {self._regex[:80]!r}")

    def alternatives(self, depth: int) -> Expression:
        if depth > _DEEPEST:
            self.refuse(f"groups are nested more than {_DEEPEST} deep")
        before = self._flags  # flags that are set in a group end with it
        branches = [self._branch(depth)]
        while self._next("|"):
            branches.append(self._branch(depth))
        self._flags = before
        return either(branches)

    def _branch(self, depth: int) -> Expression:
        if self._whole and depth == 0 and not self._next("^"):
            self._next("\\A")
        items = []
        while self.at < len(self._regex) and self._regex[self.at] not in "|)":
            if self._whole and depth == 0 and self._ends():
                break
            if "x" in self._flags and self._skipped():
                continue
            items.append(self._repeated(self._atom(depth)))
        return sequence(items)

    def _ends(self) -> bool:
        """Whether an anchor at the end of the branch comes next, which is then read."""
        for anchor in ("$", "\\z", "\\Z"):
            end = self.at + len(anchor)
            if self._regex.startswith(anchor, self.at) and (end == len(self._regex) or self._regex[end] == "|"):
                self.at = end
                return True
        return False

    def _skipped(self) -> bool:
        """Whether layout of the flag x came next, which is then read."""
        if self._regex[self.at] == "#":
            self.at = (self._regex.find("\n", self.at) + 1) or len(self._regex)
            return True
        if self._regex[self.at].isspace():
            self.at += 1
            return True
        return False

    def _next(self, text: str) -> bool:
        if not self._regex.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _repeated(self, item: Expression) -> Expression:
        start = self.at
        least, most = self._times()
        if self.at == start:
            return item
        if self._next("+"):
            self.refuse("possessive repetitions are not supported", start)
        self._next("?")
        if max(least, most or 0) > _MOST_TIMES:
            self.refuse(f"more than {_MOST_TIMES} repetitions", start)
        if most is not None and most < least:
            self.refuse("the repetitions have their bounds the wrong way round", start)
        end = self.at
        self._times()
        if self.at > end:
            self.refuse("a repetition of a repetition needs a group")
        return times(item, least, most)

    def _times(self) -> tuple[int, int | None]:
        for operator, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._next(operator):
                return bounds
        braces = _TIMES.match(self._regex, self.at)
        if braces is None or not (braces[1] or braces[3]):
            return 1, 1
        self.at = braces.end()
        least = int(braces[1] or 0)
        return least, least if braces[2] is None else int(braces[3]) if braces[3] else None

    def _atom(self, depth: int) -> Expression:
        start, character = self.at, self._regex[self.at]
        self.at += 1
        match character:
            case "(":
                return self._group(depth, start)
            case "[":
                return self._class(start)
            case ".":
                return ANY if "s" in self._flags else Chars.of("\n").complement()
            case "\\":
                return self._cased(self._escape(start))
            case "^" | "$":
                self.refuse(f"the anchor {character} is not supported here", start)
            case "*" | "+" | "?":
                self.refuse("nothing to repeat", start)
        return self._cased(Chars.of(character))

    def _cased(self, characters: Chars) -> Chars:
        return characters.in_both_cases() if "i" in self._flags else characters

    def _group(self, depth: int, start: int) -> Expression:
        before = self._flags
        if self._regex.startswith("?", self.at):
            opening = _GROUP.match(self._regex, start)
            if opening is None:
                self.refuse("look-arounds and other special groups are not supported", start)
            self.at = opening.end()
            if opening[3] is not None:
                on, off = frozenset(opening[1]), frozenset(opening[2] or "")
                if (on | off) - _FLAGS:
                    self.refuse("unknown flags", start)
                self._flags = (self._flags | on) - off
                if opening[3] == ")":
                    return EMPTY
        expression = self.alternatives(depth + 1)
        self._flags = before
        if not self._next(")"):
            self.refuse("a group has no end", start)
        return expression

    def _escape(self, start: int, *, in_class: bool = False) -> Chars:
        """The characters of an escape, after its backslash."""
        letter = self._regex[self.at : self.at + 1]
        if coded := _HEX.match(self._regex, self.at):
            self.at = coded.end()
            code = int(next(filter(None, coded.groups())), 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                self.refuse("no character has this code", start)
            return Chars.of(chr(code))
        if named := _PROPERTY.match(self._regex, self.at):
            self.at = named.end()
            known = category(named[2] or named[4])
            if known is None:
                self.refuse("only the general categories of Unicode are supported", start)
            return known.complement() if (letter == "P") != bool(named[1]) else known
        self.at += 1
        if letter and letter in "dwsDWS":
            return short_class(letter)
        if letter in _CONTROL and letter:
            return Chars.of(_CONTROL[letter])
        if letter == "b" and in_class:
            return Chars.of("\b")
        if not letter or letter.isalnum():
            self.refuse(f"the escape \\{letter} is not supported", start)
        return Chars.of(letter)

    def _class(self, start: int) -> Chars:
        negated = self._next("^")
        characters = Chars(())
        first = True
        while first or not self._next("]"):
            if self.at >= len(self._regex):
                self.refuse("a class has no end", start)
            if self._regex[self.at : self.at + 2] in ("&&", "--", "~~") and not first:
                self.refuse("operations between classes are not supported")
            characters |= self._member()
            first = False
        characters = self._cased(characters)
        return characters.complement() if negated else characters

    def _member(self) -> Chars:
        """A character, a range or a class inside of a class."""
        if self._regex.startswith("[:", self.at) and (end := self._regex.find(":]", self.at)) > 0:
            name = self._regex[self.at + 2 : end]
            known = posix_class(name.removeprefix("^"))
            if known is None:
                self.refuse("unknown class")
            self.at = end + 2
            return known.complement() if name.startswith("^") else known
        low = self._single()
        if self._regex[self.at : self.at + 1] != "-" or self._regex[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.at += 1
        high = self._single()
        bounds = [each.ranges[0][0] for each in (low, high) if not each.named and len(each.ranges) == 1]
        if len(bounds) < 2 or bounds[0] > bounds[1] or any(a != b for each in (low, high) for a, b in each.ranges):
            self.refuse("a range is not from one character to a later one")
        return Chars(normal([(bounds[0], bounds[1])]))

    def _single(self) -> Chars:
        if self._next("\\"):
            return self._escape(self.at - 1, in_class=True)
        self.at += 1
        return Chars.of(self._regex[self.at - 1])
