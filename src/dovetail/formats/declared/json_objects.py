"""A call's arguments as values whose numbers keep their digits, for families that write them in another syntax."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dovetail.errors import RenderError
from dovetail.events import Call
from dovetail.formats.answers import call_envelope
from dovetail.tokens import Segment


class Members(list[tuple[str, Any]]):
    """The members of a JSON object."""


class Number(NamedTuple):
    """A JSON number, as it is written."""

    digits: str


def members_of(
    call: Call, write: Callable[[Any, tuple[str, ...]], Iterator[Segment]], controls: tuple[str, ...]
) -> Iterator[Segment]:
    """A call's arguments as `write` writes them; the placeholder of `call_envelope` as it is.

    Raises `RenderError` if the arguments are not a JSON object.
    """
    if call.arguments == call_envelope.ARGUMENTS:
        return iter([Segment(call.arguments, False)])
    try:
        value = json.loads(call.arguments, parse_int=Number, parse_float=Number, object_pairs_hook=Members)
        if not isinstance(value, Members):
            raise ValueError
        return iter([*write(value, controls)])
    except (ValueError, RecursionError):
        raise RenderError(f"the arguments of {call.name} are not a JSON object") from None
