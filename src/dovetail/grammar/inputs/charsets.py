"""Sets of characters: the classes of a regex.

The classes that Unicode defines (`\\w`, `\\p{L}`) are listed for ASCII and named for the rest, because a list of all
characters would be long.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Iterable

import msgspec

_LAST = 0x10FFFF
#: The last character before the halves of surrogate pairs, which are no characters, and the first after them.
_BEFORE_HALVES, _AFTER_HALVES = 0xD7FF, 0xE000
_FIRST_OTHER = 0x80  # the first character that is not ASCII
_MOST_FOLDED = 1_000

Ranges = tuple[tuple[int, int], ...]


class Chars(msgspec.Struct, frozen=True):
    """One character of a set.

    `ranges`: the first and last code points of ranges, sorted and apart.
    `named`: beyond ASCII, the characters of these classes are in the set too, in the syntax of a class in Rust's
    regexes, without its brackets.
    """

    ranges: Ranges
    named: str = ""

    @staticmethod
    def of(characters: str) -> Chars:
        """One of these characters."""
        return Chars(normal((ord(character), ord(character)) for character in characters))

    def __or__(self, other: Chars) -> Chars:
        ranges = normal((*self.ranges, *other.ranges))
        if self.named and other.named and self.named in (f"[^{other.named}]", other.named.removeprefix("[^")[:-1]):
            return Chars(normal((*ranges, (_FIRST_OTHER, _LAST))))  # a class and its complement
        return Chars(ranges, self.named if other.named in self.named else self.named + other.named)

    def complement(self) -> Chars:
        """Every other character."""
        outside = _outside(self.ranges)
        if not self.named:
            return Chars(outside)
        ascii_ranges, rest = (_within(self.ranges, 0, _FIRST_OTHER - 1), _within(self.ranges, _FIRST_OTHER, _LAST))
        named = f"[^{''.join(f'{_letter(a)}-{_letter(b)}' for a, b in rest)}{self.named}]"
        return Chars(_within(_outside(ascii_ranges), 0, _FIRST_OTHER - 1), named)

    def without(self, characters: Iterable[int]) -> Chars:
        """The set without some characters of ASCII."""
        taken = normal((code, code) for code in characters)
        kept = (_within(self.ranges, a, b) for a, b in _outside(taken))
        return Chars(normal(each for some in kept for each in some), self.named)

    def __contains__(self, code: int) -> bool:
        """Whether a character of ASCII is in the set."""
        return any(a <= code <= b for a, b in self.ranges)

    def in_both_cases(self) -> Chars:
        """The set with the other case of each of its letters."""
        codes = [code for a, b in self.ranges for code in range(a, min(b, a + _MOST_FOLDED) + 1)]
        others = (other for code in codes for other in (chr(code).lower(), chr(code).upper()) if len(other) == 1)
        return Chars(normal((*self.ranges, *((ord(other), ord(other)) for other in others))), self.named)

    def regex(self) -> str:
        """The class in the syntax of `patterns`; a set with `named` only in Rust's."""
        if not self.named:
            if len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1] >= 32:
                return _quoted(chr(self.ranges[0][0]))
            negated = bool(self.ranges) and self.ranges[-1][1] == _LAST
            inside = _listed(_outside(self.ranges) if negated else self.ranges)
            return r"[\s\S]" if negated and not inside else f"[{'^' * negated}{inside}]"
        return rf"[{_listed(self.ranges)}[[{self.named}]&&[^\x00-\x7F]]]"


def normal(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges sorted and merged."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= _after(merged[-1][1]):
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return tuple(merged)


ANY = Chars(((0, _LAST),))


def _outside(ranges: Ranges) -> Ranges:
    outside, begin = [], 0
    for first, last in ranges:
        if begin < first:
            outside.append((begin, _BEFORE_HALVES if first == _AFTER_HALVES else first - 1))
        begin = _after(last)
    if begin <= _LAST:
        outside.append((begin, _LAST))
    return tuple(outside)


def _after(code: int) -> int:
    """The next character."""
    return _AFTER_HALVES if code == _BEFORE_HALVES else code + 1


def _within(ranges: Ranges, least: int, most: int) -> Ranges:
    return tuple((max(a, least), min(b, most)) for a, b in ranges if a <= most and b >= least)


def _listed(ranges: Ranges) -> str:
    return "".join(_letter(a) if a == b else f"{_letter(a)}-{_letter(b)}" for a, b in ranges)


def _letter(code: int) -> str:
    """A character in a class."""
    if code < 32 or 0x7F <= code < 0xA0:
        return f"\\x{code:02x}"
    return f"\\{chr(code)}" if chr(code) in "\\]^-/[&~" else chr(code)


def _quoted(character: str) -> str:
    return f"\\{character}" if character in "\\^$.|?*+()[]{}/-" else character


# -- Unicode's classes ------------------------------------------------------------------------------------------------

#: The general categories, and the groups of them.
_CATEGORIES = frozenset(
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co".split()
)
_POSIX: dict[str, Callable[[str], bool]] = {
    "alpha": str.isalpha,
    "digit": str.isdigit,
    "alnum": str.isalnum,
    "upper": str.isupper,
    "lower": str.islower,
    "space": lambda character: character in " \t\n\r\f\v",
    "punct": lambda character: character.isprintable() and not character.isalnum() and character != " ",
    "xdigit": lambda character: character in "0123456789abcdefABCDEF",
    "word": lambda character: character.isalnum() or character == "_",
    "blank": lambda character: character in " \t",
    "cntrl": lambda character: not character.isprintable(),
    "print": str.isprintable,
    "graph": lambda character: character.isprintable() and character != " ",
}


def _ascii(is_member: Callable[[str], bool]) -> Ranges:
    return normal((code, code) for code in range(_FIRST_OTHER) if is_member(chr(code)))


_SHORT = {
    "d": Chars(_ascii(_POSIX["digit"]), r"\d"),
    "w": Chars(_ascii(_POSIX["word"]), r"\w"),
    "s": Chars(_ascii(_POSIX["space"]), r"\s"),
}


@functools.cache
def short_class(letter: str) -> Chars:
    """The set of `\\d`, `\\w` or `\\s`, or of the capital letter: every other character."""
    return _SHORT[letter] if letter in _SHORT else _SHORT[letter.lower()].complement()


def posix_class(name: str) -> Chars | None:
    """The set of `[:name:]`, which is ASCII's; None for an unknown name."""
    return Chars(_ascii(_POSIX[name])) if name in _POSIX else None


@functools.lru_cache(256)
def category(name: str) -> Chars | None:
    """The set of `\\p{name}` for a general category of Unicode; None for another name."""
    if name not in _CATEGORIES:
        return None
    return Chars(_ascii(lambda character: unicodedata.category(character).startswith(name)), rf"\p{{{name}}}")
