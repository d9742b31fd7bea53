"""The size of the automata that a schema's regexes become, before a library makes them.

A library writes repetitions out: `\\p{L}{1,200}` becomes 200 copies of a class of 600 ranges. That takes a quarter of
a second, lets no other thread run, and needs 14 MB. Sizes are in transitions; one takes about 2 microseconds and 120
bytes (jsonschema-rs 0.58, one core).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dovetail.grammar.schemas.keywords import BY_NAME, VALUES

#: Transitions of all regexes of one request: a tenth of a second.
MAX_SIZE = 40_000
#: Bytes of memory for a transition.
BYTES = 120

_PIECE = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\{[0-9]+(?:,[0-9]*)?\}|.", re.DOTALL)
_PROPERTY = re.compile(r"\\[pP]")
_COUNT = re.compile(r"\{([0-9]{1,6})(?:(,)([0-9]{0,6}))?\}")
#: Transitions of a class of Unicode, of a class of all but some characters, and of a class such as `\s`.
_UNICODE, _NEGATED, _ESCAPED = 600, 15, 5
_OPERATORS = frozenset("*+?|^$")


def size(regex: Any) -> int:
    """The transitions of a regex with its repetitions written out, at most."""
    return written_out(_PIECE.findall(regex) if isinstance(regex, str) else (), _transitions)


def written_out(pieces: Iterable[str], size_of: Callable[[str], int]) -> int:
    """The sizes of the pieces of a regex added up, with its repetitions written out."""
    groups = [[0, 0]]  # of each open group: the size before its last piece, and of its last piece
    for piece in pieces:
        if piece == "(":
            groups.append([0, 0])
        elif piece == ")" and len(groups) > 1:
            inner = sum(groups.pop())
            groups[-1] = [sum(groups[-1]), inner]
        elif len(piece) > 1 and piece[0] == "{":
            groups[-1][1] *= max(1, *map(int, re.findall("[0-9]{1,6}", piece)))
        elif piece not in _OPERATORS:
            groups[-1] = [sum(groups[-1]), size_of(piece)]
    return sum(map(sum, groups))


def _transitions(piece: str) -> int:
    properties = len(_PROPERTY.findall(piece))
    if piece == "." or piece.startswith("[^"):
        return _NEGATED + properties * _UNICODE + len(piece)
    if piece.startswith("["):
        return properties * _UNICODE + len(piece) // 2
    if properties:
        return _UNICODE
    return _ESCAPED if piece[:1] == "\\" and piece[1:].isalpha() else 1


def total_size(schema: Any) -> int:
    """The transitions of all regexes in a schema."""
    return sum(map(size, _regexes(schema)))


def _regexes(schema: Any) -> Iterator[Any]:
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, Mapping):
            for keyword, value in part.items():
                if keyword == "pattern":
                    yield value
                elif keyword in BY_NAME and isinstance(value, Mapping):
                    pending += value.values()
                    yield from value if keyword == "patternProperties" else ()
                elif keyword not in VALUES:
                    pending.append(value)


def counted(regex: Any) -> tuple[str, int, int | None] | None:
    """A regex of the form `^C{m,n}$`, where C is one character or class, as `^C*$`, m and n; None for any other.

    The text matches if it matches `^C*$` and has m to n characters (n None: or more), which needs no copies of C.
    """
    pieces = _PIECE.findall(regex) if isinstance(regex, str) else []
    if len(pieces) != 4 or (pieces[0], pieces[3]) != ("^", "$") or pieces[1] in "()|{}*+?^$":
        return None
    count = _COUNT.fullmatch(pieces[2])
    if count is None or (pieces[1][0] == "\\" and pieces[1][1] in "bB0123456789k"):
        return None
    least, comma, most = count.groups()
    return f"^{pieces[1]}*$", int(least), int(most) if most else None if comma else int(least)
