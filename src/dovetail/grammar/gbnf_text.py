"""Texts and regular expressions in GBNF, llama.cpp's notation of grammars.

GBNF has neither "not" nor "and", and reads a control token as the characters that it spells. What a text must not
contain is therefore an automaton of Aho and Corasick (https://doi.org/10.1145/360825.360855), a rule for each state.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dovetail.events import INVISIBLE

NameByBody = dict[str, str]
"""The names of rules by their body."""

#: A regex in pieces: escapes, classes, groups, repetitions and characters.
_PIECE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\[(?:\\.|[^\]\\])*\]|\(\?:?|(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??|.",
    re.DOTALL,
)
_IN_CLASS = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|.", re.DOTALL)
_NUL = re.compile(r"\\x00|\\u0000|\x00|-")
_CLASSES = {"\\d": "0-9", "\\w": "A-Za-z0-9_", "\\s": " \\t\\n\\r\\x0B\\x0C"}
_ANY = ("[\\s\\S]", "[\\S\\s]")
_SPELLED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"'}
_ESCAPED = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\f": "\f", "\\v": "\v"}
#: What control tokens begin with, in all families.
MARKS = "<[]｜"
_BODY = re.compile(r"\(\?:\[\^((?:\\.|[^\]\\])+)\]\|")
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
#: llama.cpp multiplies the rules inside a group by the times that it is repeated, and refuses more than 2,000.
_MOST_REPEATED = 1_000


def quoted(text: str) -> str:
    """Exactly this text. Raises `ValueError` for NUL, at which llama.cpp ends a grammar."""
    if "\0" in text:
        raise ValueError("GBNF cannot write NUL")
    return f'"{"".join(_SPELLED.get(character, _visibly(character)) for character in text)}"'


def named(rules: NameByBody, prefix: str, body: str) -> str:
    """The name of the rule with this body. What is repeated becomes a rule, because llama.cpp copies it otherwise."""
    return rules.setdefault(body, f"{prefix}{len(rules)}")


@functools.lru_cache(1024)
def of_regex(regex: str, but: str = "") -> str:
    """A regular expression in the syntax of `patterns`. Raises `ValueError` for what GBNF does not have, and for what
    llama.cpp refuses: a repetition of what may be empty or is repeated already, and too many of them.

    `but`: characters that a negated class does not match either.
    """
    pieces = _PIECE.findall(regex)
    pieces.reverse()
    written, _, _ = _alternatives(pieces, but)
    if pieces:
        raise ValueError("a group that ends and does not begin")
    return written


def of_regex_without(regex: str, rules: NameByBody, words: tuple[str, ...]) -> str:
    """As `of_regex`, for texts that contain none of `words`.

    That is exact for the bodies of strings, `(?:[^…]|escapes)*`. Other negated classes exclude the first letters.
    """
    if not words:
        return of_regex(regex)
    bodies: dict[str, str] = {}
    for match in reversed([*_BODY.finditer(regex)]):
        end = _group_end(regex, match.start())
        if regex[end : end + 2] == ")*":
            mark = chr(0xE000 + len(bodies))  # stands for the body: a character for private use
            characters = "".join(_characters(match[1]))
            escape = named(rules, "escape", of_regex(regex[match.end() : end]))
            bodies[quoted(mark)] = text(rules, Excluded(words, (), (), characters, escape))
            regex = regex[: match.start()] + mark + regex[end + 2 :]
    written = of_regex(regex, "".join(sorted({word[0] for word in words})))
    for mark, body in bodies.items():
        written = written.replace(mark, body)
    return written


def _group_end(regex: str, start: int) -> int:
    """Where the group that begins at `start` ends."""
    depth = 0
    for piece in _PIECE.finditer(regex, start):
        depth += piece[0].startswith("(") - (piece[0] == ")")
        if depth == 0:
            return piece.start()
    return len(regex)


def _alternatives(pieces: list[str], but: str) -> tuple[str, int, bool]:
    """What `pieces`, a stack, says up to the end of its group; how many rules that makes; whether it may be empty."""
    options: list[list[str]] = [[]]
    rules, size = 0, 1  # that llama.cpp makes, and that it counts of the last item
    is_empty = is_before_empty = may_repeat = False  # the last item; what is before it; whether it may be repeated
    is_sequence_empty, empties = True, []
    while pieces and pieces[-1] != ")":
        piece = pieces.pop()
        if piece == "|":
            empties.append(is_sequence_empty)
            options.append([])
            may_repeat, is_sequence_empty = False, True
            continue
        if piece[0] in "*+?" or (piece[0] == "{" and len(piece) > 1):
            times = piece.removesuffix("?") if len(piece) > 1 else piece
            least, most = _bounds(times)
            if not may_repeat or (is_empty and most is None):
                raise ValueError("GBNF cannot repeat this")
            if most is not None and most < least:
                raise ValueError("a repetition of more times than it allows")
            if size * max(least, most or 0) > _MOST_REPEATED:
                raise ValueError("GBNF cannot repeat that often")
            options[-1].append(times)
            rules += 1 if most is None else most - least
            is_sequence_empty = is_before_empty and (is_empty or least == 0)
            may_repeat = False
            continue
        is_before_empty = is_sequence_empty
        if piece in ("(", "(?:"):
            inner, size, is_empty = _alternatives(pieces, but)
            if not pieces:
                raise ValueError("a group without an end")
            pieces.pop()
            options[-1].append(f"({inner})")
            size += 1
            rules += size
        else:
            options[-1].append(_of_piece(piece, but))
            size, is_empty = 1, False
        may_repeat, is_sequence_empty = True, is_sequence_empty and is_empty
    empties.append(is_sequence_empty)
    return " | ".join(" ".join(option) or '""' for option in options), rules, any(empties)


def _bounds(times: str) -> tuple[int, int | None]:
    if times in _TIMES:
        return _TIMES[times]
    least, comma, most = times[1:-1].partition(",")
    return int(least), (int(most) if most else None) if comma else int(least)


def _of_piece(piece: str, but: str) -> str:
    if piece.startswith("[") and len(piece) > 1:
        return _of_class(piece, but)
    if piece in _CLASSES:
        return f"[{_CLASSES[piece]}]"
    if piece == ".":
        return _class({*but, "\n"}, "^")
    if piece in ("^", "$", "[") or piece.startswith("(?"):
        raise ValueError(f"GBNF has no {piece}")
    return quoted(_character(piece))


def _of_class(piece: str, but: str) -> str:
    if piece in _ANY:
        return _class(but, "^")
    inside = piece[1:-1]
    negated = inside.startswith("^")
    parts = [_class_part(part) for part in _IN_CLASS.findall(inside.removeprefix("^"))]
    if not parts or (not negated and inside != "-" and not _NUL.sub("", inside)):
        raise ValueError("a class without a character that llama.cpp takes")
    if negated:
        parts += map(_in_class, but)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _class_part(part: str) -> str:
    if part == "-":
        return part
    return _CLASSES.get(part) or _in_class(_character(part))


def _character(piece: str) -> str:
    """The character that an escape or a character stands for. Raises `ValueError` for other escapes."""
    if len(piece) == 1:
        return piece
    if piece in _ESCAPED:
        return _ESCAPED[piece]
    if piece[1] in "xu" and len(piece) > 2:
        return chr(int(piece[2:], 16))
    if piece[1].isalnum():
        raise ValueError(f"GBNF has no {piece}")
    return piece[1]


def _in_class(character: str) -> str:
    return f"\\x{ord(character):02x}" if character in "^-[]\\" else _SPELLED.get(character, _visibly(character))


def _visibly(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Excluded(NamedTuple):
    """What a text is not. `inside`: words that it does not contain. `whole`: texts that it is not. `first`: words with
    which what can be seen of it does not begin. `characters`: what it does not contain, but as `escape` says."""

    inside: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    characters: str = ""
    escape: str = ""


def text(rules: NameByBody, excluded: Excluded, *, visible: bool = False) -> str:
    """The name of the rule for the texts without what is `excluded`. `visible`: with a character that can be seen."""
    key = f"# {excluded} {visible}"
    first = rules.get(key)
    if first is None:
        made = _Automaton(len(rules), excluded, visible=visible).rules()
        first = rules[key] = next(iter(made))  # the entry says that its rules are there; it is no rule itself
        rules.update((f"{body} # {name}", name) for name, body in made.items())
    return first


class _State(NamedTuple):
    """`begun`: the longest end of the text that begins one of the words inside. `seen`: whether anything was seen.
    `known`: the text from its beginning, or what was seen of it, as long as one of `whole` or `first` begins so."""

    begun: str
    seen: bool
    known: str | None


class _Automaton:
    def __init__(self, number: int, excluded: Excluded, *, visible: bool) -> None:
        inside, self._whole, self._first, characters, self._escape = excluded
        self._inside = tuple(dict.fromkeys(inside))
        self._visible = visible
        self._barred = frozenset(characters)
        self._begun = {word[:length] for word in inside for length in range(len(word))}
        self._letters = frozenset("".join(inside))
        #: What may follow what is known.
        self._next: dict[str, set[str]] = {}
        for word in (*self._whole, *self._first):
            for length, letter in enumerate(word):
                self._next.setdefault(word[:length], set()).add(letter)
        self._known = {*self._next, *self._whole}
        self._prefix = f"text{number}x"
        self._names: dict[_State, str] = {}
        self._pending: list[_State] = []

    def rules(self) -> dict[str, str]:
        """The bodies of the rules by their names; the first one is where a text begins."""
        first = self._name(_State("", not self._visible, "" if self._known else None))
        made = {first: ""}
        while self._pending:
            state = self._pending.pop()
            made[self._names[state]] = self._body(state)
        return made

    def _name(self, state: _State) -> str:
        if state not in self._names:
            self._names[state] = f"{self._prefix}{len(self._names)}"
            self._pending.append(state)
        return self._names[state]

    def _body(self, state: _State) -> str:
        letters = self._letters
        if state.known is not None:
            letters |= self._next.get(state.known, set())
        then, unseen = _State("", True, None), _State("", False, state.known)
        by_target: dict[_State, set[str]] = {}
        apart = {*self._barred}  # characters that the last option does not allow
        for letter in letters - self._barred:
            target = self._after(state, letter)
            if target != then:
                apart.add(letter)
                if target is not None:
                    by_target.setdefault(target, set()).add(letter)
        if not state.seen:
            by_target.setdefault(unseen, set()).update(_UNSEEN - apart)
            apart |= _UNSEEN
        options = ['""'] if state.seen and state.known not in self._whole else []
        options += (f"{_class(each)} {self._name(target)}" for target, each in sorted(by_target.items(), key=str))
        options.append(f"{_class(apart, '^')} {self._name(then)}")
        if self._escape:
            options.append(f"{self._escape} {self._name(then)}")
        return " | ".join(options)

    def _after(self, state: _State, letter: str) -> _State | None:
        """The state after another letter; None if something that is excluded ends there."""
        longer = state.begun + letter
        if any(longer.endswith(word) for word in self._inside):
            return None
        begun = next((longer[at:] for at in range(len(longer)) if longer[at:] in self._begun), "")
        is_seen = state.seen or letter not in _UNSEEN
        known = state.known
        if known is not None and is_seen:
            known += letter
            if known in self._first:
                return None
        return _State(begun, is_seen, known if known in self._known else None)


def _class(characters: Iterable[str], negated: str = "") -> str:
    """The class of these characters, or of all others."""
    codes = sorted(map(ord, characters))
    if not codes:
        return "."
    starts = [code for i, code in enumerate(codes) if not i or codes[i - 1] < code - 1]
    ends = [code for i, code in enumerate(codes) if i + 1 == len(codes) or codes[i + 1] > code + 1]
    parts = (
        "".join(_in_class(chr(code)) for code in (range(start, end + 1) if end < start + 3 else (start,)))
        + (f"-{_in_class(chr(end))}" if end >= start + 3 else "")
        for start, end in zip(starts, ends, strict=True)
    )
    return f"[{negated}{''.join(parts)}]"


def _characters(inside: str) -> Iterator[str]:
    """The characters of the inside of a class."""
    parts = [_character(part) if part != "-" else part for part in _IN_CLASS.findall(inside)]
    index = 0
    while index < len(parts):
        if index + 2 < len(parts) and parts[index + 1] == "-":
            yield from map(chr, range(ord(parts[index]), ord(parts[index + 2]) + 1))
            index += 3
        else:
            yield parts[index]
            index += 1


_UNSEEN = frozenset(_characters(INVISIBLE))
