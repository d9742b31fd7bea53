"""Which repairs of a history are new in this turn: the others were reported in the turns before it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.formats.prompts.history import Repair

_MESSAGE = re.compile(r"messages\[(\d+)\]")


def new_repairs(repairs: Sequence[Repair], messages: Sequence[Mapping[str, Any]]) -> list[Repair]:
    """Those of `repairs` that are in the last message of the assistant or after it, or in no message at all.

    The client got that message in the turn before, so it has come back for the first time.
    """
    last = next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "assistant"), 0)
    places = (_MESSAGE.match(repair.where) for repair in repairs)
    return [repair for repair, place in zip(repairs, places, strict=True) if place is None or int(place[1]) >= last]
