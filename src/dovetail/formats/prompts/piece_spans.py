"""Spans of a prompt's pieces: alternately texts and control tokens, which begin and end with a text.

A position is the index of a text and an offset in it. A span is itself such a list: its first and last text are those
parts of the prompt's texts that lie inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dovetail.tokens import CUT, TokenSpan

Position = tuple[int, int]
Pieces = Sequence[str]


def whole(pieces: Iterable[str]) -> list[str]:
    """A prompt's pieces, which may end in a control token, with a text at the end."""
    listed = list(pieces)
    return listed if len(listed) % 2 else [*listed, ""]


def between(pieces: Pieces, begin: Position, end: Position) -> list[str]:
    (first, start), (last, stop) = begin, end
    if first == last:
        return [pieces[first][start:stop]]
    return [pieces[first][start:], *pieces[first + 1 : last], pieces[last][:stop]]


def end_of(pieces: Pieces) -> Position:
    return len(pieces) - 1, len(pieces[-1])


def begin_of_span(pieces: Pieces, span: Pieces, end: Position) -> Position | None:
    """Where `span` begins if it ends at `end`; None if something else is there."""
    first = end[0] - len(span) + 1
    if first < 0:
        return None
    head, *rest = between(pieces, (first, 0), end)
    if rest != list(span[1:]) or not head.endswith(span[0]):
        return None
    return first, len(head) - len(span[0])


def end_of_span(pieces: Pieces, span: Pieces, begin: Position) -> Position | None:
    """Where `span` ends if it begins at `begin`; None if something else is there."""
    last = begin[0] + len(span) - 1
    if last >= len(pieces):
        return None
    *rest, tail = between(pieces, begin, (last, len(pieces[last])))
    if rest != list(span[:-1]) or not tail.startswith(span[-1]):
        return None
    return last, len(span[-1]) + (begin[1] if len(span) == 1 else 0)


def begins(pieces: Pieces, span: Pieces, *, after: Position, before: Position) -> Iterator[Position]:
    """The positions inside the limits where `span`, a control token after an empty text, begins."""
    for at in range(after[0] + 2, before[0] + 1, 2):
        text = between(pieces, (at, 0), min((at, len(pieces[at])), before))[0]
        if text.startswith(span[-1]):
            begin = begin_of_span(pieces, span, (at, len(span[-1])))
            if begin is not None and begin >= after:
                yield begin


def join(pieces: list[str], span: Pieces) -> None:
    """Add `span` to the end of `pieces`. The texts that meet become one, unless the ids of one are given."""
    left, right = pieces[-1], span[0]
    if left and right and (isinstance(left, TokenSpan) or isinstance(right, TokenSpan)):
        pieces += (CUT, *span)
    else:
        pieces[-1:] = (left + right if left and right else left or right, *span[1:])
