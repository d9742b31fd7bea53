"""Where a text stops being JSON, for the words that explain it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*+)"')
_SCALAR = re.compile(
    r'"(?:[^"\\\x00-\x1f]|\\.)*+"|(?:true|false|null|-?[0-9]++(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?)(?!\w)'
)
_PROSE = re.compile(r"[^\W\d_][^\s]*+\s++\S")

Path = tuple[str | int, ...]


class Break(NamedTuple):
    """The keys and indices that lead to the first place that is not JSON, and the text from there on."""

    path: Path
    rest: str


def is_prose(text: str) -> bool:
    """Whether `text` begins like a sentence: a word, and another one."""
    return _PROSE.match(text) is not None


def named(path: Sequence[str | int]) -> str:
    """A path as one name: `stops[0].city`."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path).removeprefix(".")


def break_of(text: str) -> Break | None:
    """Where `text` stops being JSON; None if it does not, or if it only ends too early. Takes linear time."""
    path: list[str | int] = []  # the key, or the index, in each object or array that is open
    wants = "value"
    at = 0
    while (at := _end(_SPACE, text, at)) < len(text):
        mark = text[at]
        if wants == "nothing":
            return Break((), text[at:])
        if mark == '"' and _STRING.match(text, at) is None:
            return None  # it ends inside a string
        if wants.startswith("value") and mark in "{[":
            path.append("" if mark == "{" else 0)
            wants = "key or end" if mark == "{" else "value or end"
        elif wants.startswith("value") and (scalar := _SCALAR.match(text, at)) is not None:
            at, wants = scalar.end() - 1, "comma or end" if path else "nothing"
        elif wants.startswith("key") and mark == '"':
            key = _STRING.match(text, at)
            assert key is not None
            at, path[-1], wants = key.end() - 1, key[1], "colon"
        elif wants == "colon" and mark == ":":
            wants = "value"
        elif wants.endswith("end") and path and mark == ("]" if isinstance(path[-1], int) else "}"):
            path.pop()
            wants = "comma or end" if path else "nothing"
        elif wants == "comma or end" and mark == ",":
            here = path[-1]
            if isinstance(here, int):
                path[-1], wants = here + 1, "value"
            else:
                wants = "key"
        else:
            inside = path[:-1] if wants.startswith("key") else path
            return Break(tuple(inside), text[at:])
        at += 1
    return None


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()
