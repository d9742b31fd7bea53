"""Regular expressions for strings that are written as they are, and for what they must not hold."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

#: A regex in pieces: escapes, classes, single characters.
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_CHARACTER = re.compile(r"\\.|[^\\]", re.DOTALL)
#: Escapes that mean more than these in one dialect or another.
_ASCII = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
_SPELLED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_SPECIAL = frozenset("\\^$.|?*+()[]{}/-")
_OPERATORS = frozenset("^$|()?*+{}")

#: What a name is made of, as a class without its brackets.
NAME = "A-Za-z0-9_.\\-"
_ALL = frozenset(string.ascii_letters + string.digits + "_.-")

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#: What each `format` says (RFC 3339, 4122, 2673), but for leap seconds and small letters in times.
FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
}


def of_the_whole(pattern: Any) -> str | None:
    """The pattern of a whole string in which `pattern`, as JSON Schema has it, is found.

    None for anchors in the midst of one.
    """
    branches: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECE.findall(pattern) if isinstance(pattern, str) else "^^":
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            branches.append([])
        else:
            branches[-1].append(piece)
    whole = []
    for branch in branches:
        first = branch[:1] == ["^"]
        last = branch[first:][-1:] == ["$"]
        inside = branch[first : len(branch) - last]
        if "^" in inside or "$" in inside:
            return None
        whole.append("".join((r"[\s\S]*" * (not first), *inside, r"[\s\S]*" * (not last))))
    return "|".join(whole)


def of_strings(schema: Mapping[str, Any]) -> list[str]:
    """The patterns, each of the whole string, that the strings of a schema match by its `pattern` and `format`, as far
    as these can be said so. Digits and word characters are ASCII's."""
    found = []
    if "pattern" in schema and (whole := of_the_whole(schema["pattern"])) is not None:
        found.append("".join(map(_ascii, _PIECE.findall(whole))))
    if isinstance(named := schema.get("format"), str) and named in FORMATS:
        found.append(FORMATS[named])
    return found


def _ascii(piece: str) -> str:
    if piece.startswith("["):
        return "".join(_ASCII.get(each, each) for each in _CHARACTER.findall(piece))
    return f"[{_ASCII[piece]}]" if piece in _ASCII else piece


def may_hold(pattern: str, character: str) -> bool:
    """Whether a text that matches may have the character in it; True where that is not easily told."""
    for piece in _PIECE.findall(pattern):
        if piece in _OPERATORS:
            continue
        try:
            if re.fullmatch(piece, character, re.DOTALL):
                return True
        except re.error:
            return True
    return False


def quoted(text: str) -> str:
    """A regex of just this text, in any dialect."""
    return "".join(_quoted(character) for character in text)


def _quoted(character: str) -> str:
    if character in _SPELLED:
        return _SPELLED[character]
    return f"\\{character}" if character in _SPECIAL else character


@functools.lru_cache(256)
def without(words: tuple[str, ...]) -> str:
    """A regex of the texts that hold none of `words`, without a "not", which not every dialect has.

    Each word begins with `<`, or with a new line and `<`, and has neither again (`ValueError`): a text is lines, and a
    line is what stands before, between and behind its `<`.
    """
    if not words:
        return r"[\s\S]*"
    anywhere = [word[1:] for word in words if word.startswith("<")]
    in_front = [word[2:] for word in words if word.startswith("\n<")]
    if len(anywhere) + len(in_front) < len(words) or any({*word} & {"<", "\n"} for word in anywhere + in_front):
        raise ValueError("only what begins with '<', perhaps in a new line, can be left out of a text")
    inside = f"(?:<{_not_begun_by(anywhere)})*"
    line = f"(?:(?:[^\\n<]+|<{_not_begun_by(anywhere + in_front)}){inside})?"
    return f"[^\\n<]*{inside}(?:\\n{line})*"


def _not_begun_by(words: Iterable[str]) -> str:
    """A regex of text without `<` and new lines that begins with none of `words`."""
    rest: dict[str, list[str]] = {}
    for word in words:
        rest.setdefault(word[0], []).append(word[1:])
    other = "".join(map(_in_class, sorted(rest)))
    branches = [f"[^\\n<{other}][^\\n<]*"]
    branches += (quoted(first) + _not_begun_by(rests) for first, rests in sorted(rest.items()) if "" not in rests)
    return f"(?:{'|'.join(branches)})?"


def _in_class(character: str) -> str:
    return f"\\{character}" if character in "\\]^-/[" else character


def other_names(known: Iterable[str]) -> str:
    """A regex of the names, of one character or more of `NAME`, that are none of `known`."""
    return _other({name for name in known if _ALL.issuperset(name)} | {""})


def _other(known: set[str]) -> str:
    rest: dict[str, set[str]] = {}
    for name in known - {""}:
        rest.setdefault(name[0], set()).add(name[1:])
    branches = [f"[{_ranges(_ALL - rest.keys())}][{NAME}]*"] if rest.keys() < _ALL else []
    branches += (quoted(first) + _other(rests) for first, rests in sorted(rest.items()))
    return f"(?:{'|'.join(branches)}){'' if '' in known else '?'}"


def _ranges(characters: Iterable[str]) -> str:
    """A class of these characters, without its brackets."""
    said = ""
    codes = sorted(map(ord, characters))
    for start in (code for code in codes if code - 1 not in codes):
        end = next(code for code in range(start, 128) if code + 1 not in codes)
        few = end < start + 3
        said += "".join(map(_in_class, map(chr, range(start, end + 1)))) if few else f"{chr(start)}-{chr(end)}"
    return said
