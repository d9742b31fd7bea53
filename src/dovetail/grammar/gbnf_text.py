"""Texts and regular expressions in GBNF, llama.cpp's notation of grammars.

GBNF has neither "not" nor "and", and reads a control token as the characters that it spells. What a text must not
contain is therefore an automaton of Aho and Corasick (https://doi.org/10.1145/360825.360855), a rule for each state.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence

from dovetail.events import INVISIBLE

Rules = dict[str, str]
"""The names of rules by their body."""

#: A regex in pieces: escapes, classes, groups, repetitions and characters.
_PIECE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|\[(?:\\.|[^\]\\])*\]|\(\?:|(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??|.",
    re.DOTALL,
)
_IN_CLASS = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|.", re.DOTALL)
_CLASSES = {"\\d": "0-9", "\\w": "A-Za-z0-9_", "\\s": " \\t\\n\\r\\x0B\\x0C"}
_ANY = ("[\\s\\S]", "[\\S\\s]")
_SPELLED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"'}
_ESCAPED = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\f": "\f", "\\v": "\v"}
#: llama.cpp refuses a repetition of more rules than 2,000, and counts them its own way.
_MOST_REPEATED = 1_000


def quoted(text: str) -> str:
    """Exactly this text. Raises `ValueError` for NUL, at which llama.cpp ends a grammar."""
    if "\0" in text:
        raise ValueError("GBNF cannot write NUL")
    return f'"{"".join(_SPELLED.get(character, _visibly(character)) for character in text)}"'


def named(rules: Rules, prefix: str, body: str) -> str:
    """The name of the rule with this body: what is repeated has a name, because llama.cpp copies what has none."""
    return rules.setdefault(body, f"{prefix}{len(rules)}")


@functools.lru_cache(1024)
def of_regex(regex: str) -> str:
    """A regular expression in the syntax of `patterns`. Raises `ValueError` for what GBNF does not have."""
    written: list[str] = []
    sizes = [0]  # of the groups around, how often their parts are repeated at most
    last = 0
    for piece in _PIECE.findall(regex):
        if piece in ("(", "(?:"):
            written.append("(")
            sizes.append(0)
            continue
        if piece == ")":
            last = sizes.pop()
            written.append(")" if written[-1] not in ("(", "|") else '"")')
        elif piece == "|":
            written.append("|" if written and written[-1] not in ("(", "|") else '""|')
            continue
        elif piece[0] in "*+?" or (piece[0] == "{" and len(piece) > 1):
            times = piece.removesuffix("?") if len(piece) > 1 else piece
            most = max(map(int, re.findall("[0-9]{1,9}", times)), default=1)
            if most * last > _MOST_REPEATED:
                raise ValueError("GBNF cannot repeat that often")
            written.append(times)
            sizes[-1] += last * (most - 1)
            continue
        else:
            last = 1
            written.append(_of_piece(piece))
        sizes[-1] += last
    if len(sizes) > 1:
        raise ValueError("a group without an end")
    return " ".join(written) if written and written[-1] != "|" else f'{" ".join(written)} ""'


def _of_piece(piece: str) -> str:
    if piece.startswith("["):
        return _of_class(piece)
    if piece in _CLASSES:
        return f"[{_CLASSES[piece]}]"
    if piece == ".":
        return "[^\\n]"
    if piece in ("^", "$"):
        raise ValueError("an anchor in the middle")
    return quoted(_character(piece))


def _of_class(piece: str) -> str:
    if piece in _ANY:
        return "."
    inside = piece[1:-1]
    negated = inside.startswith("^")
    parts = [_class_part(part) for part in _IN_CLASS.findall(inside.removeprefix("^"))]
    if not parts:
        raise ValueError("a class without characters")
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


def without(
    rules: Rules,
    words: Iterable[str],
    *,
    but: Iterable[str] = (),
    barred: str = "",
    escape: str = "",
    visible: bool = False,
) -> str:
    """The name of the rule for the texts that contain none of `words`.

    `but`: whole texts that are not allowed. `barred`: characters that are not allowed. `escape`: an expression that
    may stand for any of them, after which a word begins anew. `visible`: the text has a character that can be seen.
    """
    words, but = tuple(dict.fromkeys(words)), tuple(but)
    key = f"# {words} {but} {barred!r} {escape} {visible}"
    first = rules.get(key)
    if first is None:
        made = _Automaton(len(rules), words, but, barred, escape, visible).rules()
        first = rules[key] = next(iter(made))  # the entry says that its rules are there; it is no rule itself
        rules.update((f"{body} # {name}", name) for name, body in made.items())
    return first


_State = tuple[str, bool, str | None]


class _Automaton:
    """A state is the longest end of the text that begins a word; whether something was seen; and the whole text, as
    long as it begins one of `but`."""

    def __init__(
        self, number: int, words: Sequence[str], but: Sequence[str], barred: str, escape: str, visible: bool
    ) -> None:
        self._words, self._escape, self._visible = words, escape, visible
        self._barred = frozenset(barred)
        self._begun = {word[:length] for word in words for length in range(len(word))}
        self._whole, self._texts = {*but}, {text[:length] for text in but for length in range(len(text) + 1)}
        self._letters = frozenset("".join(words))
        self._prefix = f"text{number}x"
        self._names: dict[_State, str] = {}
        self._pending: list[_State] = []

    def rules(self) -> dict[str, str]:
        """The bodies of the rules by their names; the first one is where a text begins."""
        first = self._name(("", not self._visible, "" if self._whole else None))
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
        _, seen, text = state
        letters = {*self._letters}
        if text is not None:
            letters |= {begun[-1] for begun in self._texts if begun and begun[:-1] == text}
        then, unseen = ("", True, None), ("", False, None)
        by_target: dict[_State, set[str]] = {}
        apart = {*self._barred}  # characters that the last option does not allow
        for letter in letters - self._barred:
            target = self._after(state, letter)
            if target != then:
                apart.add(letter)
                if target is not None:
                    by_target.setdefault(target, set()).add(letter)
        if not seen:
            by_target.setdefault(unseen, set()).update(_UNSEEN - apart)
            apart |= _UNSEEN
        options = ['""'] if seen and text not in self._whole else []
        options += (f"{_class(each)} {self._name(target)}" for target, each in sorted(by_target.items(), key=str))
        options.append(f"{_class(apart, '^')} {self._name(then)}")
        if self._escape:
            options.append(f"{self._escape} {self._name(then)}")
        return " | ".join(options)

    def _after(self, state: _State, letter: str) -> _State | None:
        """The state after another letter; None if a word ends there."""
        begun, seen, text = state
        longer = begun + letter
        if any(longer.endswith(word) for word in self._words):
            return None
        begun = next((longer[at:] for at in range(len(longer)) if longer[at:] in self._begun), "")
        whole = None if text is None or text + letter not in self._texts else text + letter
        return begun, seen or letter not in _UNSEEN, whole


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
