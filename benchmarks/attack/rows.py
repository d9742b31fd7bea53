"""The table of attacks: what each row attacks, what is asked, and what was measured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec


class Row(msgspec.Struct, frozen=True):
    attack: str
    asked: str
    measured: str
    passed: bool


#: An attack with a server of its own, or several rows against one server.
Attack = Callable[[], AsyncIterator[Row]]
ATTACKS: dict[str, Attack] = {}


def attack(run: Attack) -> Attack:
    """Adds `run` to the attacks, by its name."""
    ATTACKS[run.__name__] = run
    return run
