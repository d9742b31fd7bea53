"""Levels of reasoning effort: those that APIs have, the one of a model that is nearest to one of them, and budgets."""

from __future__ import annotations

from collections.abc import Sequence

#: From the least.
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")

#: The most tokens of reasoning at an effort, for models that know only one of the two. The others have no limit.
_BUDGETS = {"minimal": 512, "low": 2_048, "medium": 8_192, "high": 32_768}


def effort_of(budget: int) -> str:
    """The effort that a budget of reasoning asks for: the first one whose budget is not less."""
    return next((effort for effort, most in _BUDGETS.items() if budget <= most), "max")


def budget_of(effort: str) -> int | None:
    """The budget of reasoning that an effort asks for; None: any number of tokens."""
    return _BUDGETS.get(effort)


def nearest_effort(effort: str | None, known: Sequence[str]) -> str | None:
    """The one of `known` that is nearest to `effort`, of two the greater; `effort` itself if nothing is known.

    `known` are some of `EFFORTS`, in their order.
    """
    if effort is None or effort in known or not known:
        return effort
    level = EFFORTS.index(effort)
    return min(reversed(known), key=lambda other: abs(EFFORTS.index(other) - level))
