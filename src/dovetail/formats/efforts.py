"""Levels of reasoning effort: those that APIs have, and the one of a model that is nearest to one of them."""

from __future__ import annotations

from collections.abc import Sequence

#: From the least.
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


def nearest_effort(effort: str | None, known: Sequence[str]) -> str | None:
    """The one of `known` that is nearest to `effort`, of two the greater; `effort` itself if nothing is known.

    `known` are some of `EFFORTS`, in their order.
    """
    if effort is None or effort in known or not known:
        return effort
    level = EFFORTS.index(effort)
    return min(reversed(known), key=lambda other: abs(EFFORTS.index(other) - level))
