"""Truncation: a conversation that is too long for the context loses its oldest messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.gateway.turn.turn_request import FieldNames, TurnRequest

_MESSAGE = re.compile(r"messages\[(\d+)\]")
_INSTRUCTIONS = ("system", "developer")


def truncated(request: TurnRequest, fits: Callable[[TurnRequest], bool]) -> TurnRequest:
    """`request` without as few of its oldest messages as make it fit, or without all but the last ones.

    The system messages at the beginning stay, and results stay with their calls. What is dropped is in `omitted`.
    """
    if fits(request):
        return request
    first = next((i for i, message in enumerate(request.messages) if message["role"] not in _INSTRUCTIONS), 0)
    ends = _ends(request.messages, first)
    if not ends:
        return request
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(_without(request, first, ends[middle])):
            high = middle
        else:
            low = middle + 1
    return _without(request, first, ends[low])


def _ends(messages: Sequence[Any], first: int) -> list[int]:
    """Where what is dropped, which begins at `first`, may end."""
    return [i for i in range(first + 1, len(messages)) if messages[i]["role"] != "tool"]


def _without(request: TurnRequest, first: int, end: int) -> TurnRequest:
    names = request.field_names
    dropped = (names.of(f"messages[{i}]") for i in range(first, end))
    return msgspec.structs.replace(
        request,
        messages=[*request.messages[:first], *request.messages[end:]],
        omitted=tuple(dict.fromkeys((*request.omitted, *dropped))),
        field_names=FieldNames(dict(_renumbered(names.prefixes, first, end))),
    )


def _renumbered(names: Mapping[str, str], first: int, end: int) -> Iterator[tuple[str, str]]:
    """`names` without those of the messages from `first` to `end`, and with the new numbers of the later ones."""
    for path, name in names.items():
        message = _MESSAGE.match(path)
        if message is None or int(message[1]) < first:
            yield path, name
        elif int(message[1]) >= end:
            yield f"messages[{int(message[1]) - end + first}]{path[message.end() :]}", name
