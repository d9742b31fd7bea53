"""Whether an engine that is to draft does: a short completion, and what it then counts.

A drafter that was left out, or that never proposes anything, costs no error anywhere: only the speed it was bought for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from dovetail.completion import Completion, EngineInfo, Sampling, TokenBatch
from dovetail.errors import DovetailError

TOKENS = 24  # long enough for lookups to find something too
PATIENCE_S = 6.0  # for the counters to move, once the answer is there
_POLL_S = 1.2  # the gauges of a server are read once a second


class Finding(msgspec.Struct, frozen=True):
    """Draft tokens that were counted and accepted, or why none were."""

    drafted: float = 0
    accepted: float = 0
    warning: str | None = None


class Probed(Protocol):
    """An engine, or one of the servers that are one."""

    @property
    def info(self) -> EngineInfo: ...

    def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]: ...

    def gauges(self) -> dict[str, float]: ...


async def probe(engine: Probed, prompt: tuple[int, ...], method: str | None) -> Finding:
    """Continue `prompt`, ids of a text that repeats itself, greedily, and see what the engine drafts by `method`.

    Others' requests meanwhile count too: they were drafted for as well. Raises nothing: a probe that fails is a
    finding.
    """
    drafted = accepted = 0
    before = _counted(engine)
    try:
        async for batch in engine.complete(Completion(prompt, TOKENS, Sampling(temperature=0), request_id="probe")):
            drafted, accepted = drafted + (batch.drafted or 0), accepted + batch.accepted
    except DovetailError as error:
        return Finding(warning=f"the probe failed: {error.message}")
    if drafted:
        return Finding(drafted, accepted)
    until, now = asyncio.get_running_loop().time() + PATIENCE_S, _counted(engine)
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_POLL_S)
        last, now = now, _counted(engine)
        if now == last and now[0] > before[0]:
            break
    if now[0] > before[0]:
        return Finding(now[0] - before[0], now[1] - before[1])
    return Finding(warning=_reason(engine, method))


def _counted(engine: Probed) -> tuple[float, float]:
    """Draft tokens verified and accepted so far, over all servers."""
    gauges = engine.gauges()
    drafted, accepted = (
        sum(value for name, value in gauges.items() if name.partition("{")[0] == total)
        for total in ("drafted_total", "accepted_total")
    )
    return drafted, accepted


def _reason(engine: Probed, method: str | None) -> str:
    if not engine.info.draft_tokens:
        return (
            "it has no counters of drafted tokens, so it was started without speculation, or took no part of its "
            "--speculative-config"
        )
    if method in ("ngram", "suffix"):
        return f"{method} found nothing to draft in a text that repeats itself: look at prompt_lookup_min"
    return (
        "it counts drafted tokens and drafted none: its drafter is off at this length or load (a limit, a gate), or "
        "proposes nothing"
    )
