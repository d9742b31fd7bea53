"""The highest rate at which an endpoint keeps its service level."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from dovetail.bench.load import LoadFigures
from dovetail.client.not_tested import NotTested

#: The share of requests that have to be within the limits.
_SHARE = 0.95
#: Doublings, or halvings, until the rate is between a kept and a missed one; then bisections.
_DOUBLINGS, _BISECTIONS = 12, 4


class Knee(msgspec.Struct, frozen=True):
    """`rate`: the highest jobs a second at which 95 % of the requests were within the limits; None if at no rate tried.

    `missed`: the lowest rate tried at which fewer were; None if at none.
    """

    rate: float | None
    missed: float | None


async def find_knee(start: float, figures_at: Callable[[float], Awaitable[LoadFigures]]) -> Knee:
    """Doubles the rate from `start` until the limits are missed, or halves it until they are kept, then bisects.

    Raises `NotTested` if a load was not measured for another reason than that the endpoint does not keep up.
    """

    async def keeps(rate: float) -> bool:
        figures = await figures_at(rate)
        if figures.because is not None and figures.kept_up:
            raise NotTested(figures.because)
        return figures.goodput is not None and figures.goodput.share >= _SHARE

    kept: float | None = None
    missed: float | None = None
    rate = start
    for _ in range(_DOUBLINGS):
        if await keeps(rate):
            kept, rate = rate, 2 * rate
        else:
            missed, rate = rate, rate / 2
        if kept is not None and missed is not None:
            break
    if kept is not None and missed is not None:
        for _ in range(_BISECTIONS):
            middle = (kept * missed) ** 0.5
            if await keeps(middle):
                kept = middle
            else:
                missed = middle
    return Knee(kept, missed)
